// Beside a judgement: work under a lease, charges after the fact, signals.

package tidegate

import (
	"context"
	"math"
	"time"
)

// Limit runs work under a lease: it sleeps off a WAIT first, and releases when work returns or panics. The error is
// *Denied, that of ctx, or what work returned.
func (c *Client) Limit(
	ctx context.Context, domain string, a Attributes, work func(context.Context) error, options ...CallOption,
) error {
	d := c.Acquire(ctx, domain, a, options...)
	outcome := Dropped
	defer func() { d.ReleaseAs(outcome) }()
	if err := d.Err(); err != nil {
		return err
	}
	if err := d.AwaitStart(ctx); err != nil {
		return err
	}
	err := work(ctx)
	if outcome = OK; err != nil {
		outcome = Failed
	}
	return err
}

// AwaitStart sleeps off a WAIT; the error is that of ctx, when it ended first.
func (d *Decision) AwaitStart(ctx context.Context) error {
	if d.Wait <= 0 {
		return nil
	}
	timer := time.NewTimer(d.Wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Charge takes Cost or Costs, after the fact, from every rate that matches, into debt; below 0 it gives back. False:
// none matched, or the daemon did not answer.
func (c *Client) Charge(ctx context.Context, domain string, a Attributes, options ...CallOption) (charged bool) {
	q := newRequest(ctx, opCharge, isDone, a)
	defer func() {
		if broken := recover(); broken != nil {
			c.unwritten(broken)
		}
	}()
	for _, option := range options {
		option(q)
	}
	q.priority, q.options = "", nil
	q.judge(domain)
	charged, _ = c.exchange(q)
	return charged
}

// Signal says how loaded this process is by a measure of its own, from 0 to 1; the daemon forgets it after 3 s.
func (c *Client) Signal(name string, value float64) {
	if value >= 0 { // which NaN is not
		c.tell(opSignal, silent, c.pool, name, int64(math.Round(1000*math.Min(value, 1))))
	}
}
