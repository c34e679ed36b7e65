// Beside Acquire and Hit: work under a lease, charges after the fact, signals, how the client fares.

package tidegate

import (
	"context"
	"fmt"
	"math"
	"time"
)

const opPeek, opRenew, opSignal = 4, 6, 7

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

// Peek is what Acquire would say; nothing is charged.
func (c *Client) Peek(ctx context.Context, domain string, a Attributes, options ...CallOption) *Decision {
	return c.judge(ctx, opPeek, domain, a, options)
}

// Renew starts the lease's time again, for long work. False: it has ended, or the daemon does not answer.
func (d *Decision) Renew() bool {
	if d == nil || d.client == nil || d.Lease == 0 || d.ended.Load() {
		return false
	}
	ok, _ := d.client.tell(opRenew, isDone, 1, aUint.append(nil, int64(d.Lease)))
	return ok
}

// Charge takes Cost or Costs, after the fact, from every rate that matches, into debt. Below 0 it refunds what Of names,
// at most its amount and once. Idem makes a repeat free; no other option counts. False: no rule matched, the daemon did
// not answer, or it refused; a refusal is logged once.
func (c *Client) Charge(ctx context.Context, domain string, a Attributes, options ...CallOption) (charged bool) {
	q := newRequest(ctx, opCharge, isDone, domain, a)
	options = append(options[:len(options):len(options)], func(q *request) {
		q.priority = ""
		delete(q.options, "queued_us")
		delete(q.options, "max_wait_us")
	})
	bad := c.ask(q, options)
	return bad == nil && q.ok
}

// Signal says how loaded this process is by a measure of its own, from 0 to 1; the daemon forgets it after 3 s.
func (c *Client) Signal(name string, value float64) {
	if value >= 0 { // which NaN is not
		said := appendText(appendText(nil, c.pool), name)
		c.tell(opSignal, silent, 3, aUint.append(said, int64(math.Round(1000*math.Min(value, 1)))))
	}
}

// Check says whether the daemon answers; false, without asking, if the breaker is open or the client disabled.
func (c *Client) Check() bool {
	ok, _ := c.tell(opPing, isDone, 0, nil)
	return ok
}

// Stats are what happened so far.
type Stats struct {
	Missed      Units // decisions without the daemon, by reason
	Refused     Units // requests refused because of themselves or this client: invalid, quota, not_allowed, forbidden
	Connections int   // open now
	BreakerOpen bool
}

// Stats so far.
func (c *Client) Stats() Stats {
	c.connections.Lock()
	open := c.connections.open
	c.connections.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	stats := Stats{Units{}, Units{}, open, c.until.Load() != 0}
	for reason, n := range c.missed {
		stats.Missed[reason] = n
	}
	for reason, n := range c.refused {
		stats.Refused[reason] = n
	}
	return stats
}

// Close closes idle connections. The client may be used again.
func (c *Client) Close() {
	p := &c.connections
	p.Lock()
	idle := p.idle
	p.idle, p.open = nil, p.open-len(idle)
	if p.reaper != nil {
		p.reaper.Stop()
		p.reaper = nil
	}
	p.Unlock()
	for _, k := range idle {
		_ = k.Close()
	}
}

// CallbackFailed allows what an application's function left unjudged by a panic; for middlewares.
func (c *Client) CallbackFailed(what string, why any) *Decision {
	c.log(fmt.Sprintf("%s panicked (%T): such requests are not limited", what, why), true) // no user's data
	c.report("callback", nil)
	return degraded("callback", false)
}
