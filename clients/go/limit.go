// Further calls: work under a lease, charges after the fact, signals, statistics.

package tidegate

import (
	"context"
	"fmt"
	"math"
	"time"
)

const opPeek, opRenew, opSignal = 4, 6, 7

// Limit runs work under a lease: it sleeps Wait first, and releases when work returns or panics. The error is *Denied,
// that of ctx, or that of work.
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

// AwaitStart sleeps Wait; the error is that of ctx if it ended first.
func (d *Decision) AwaitStart(ctx context.Context) error {
	if d == nil || d.Wait <= 0 {
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

// Peek returns the decision that Acquire would get; it charges nothing.
func (c *Client) Peek(ctx context.Context, domain string, a Attributes, options ...CallOption) *Decision {
	return c.decide(ctx, opPeek, domain, a, options)
}

// Renew restarts the lease's time; false if the lease has expired or the daemon does not answer.
func (d *Decision) Renew() bool {
	if d == nil || d.client == nil || d.Lease == 0 || d.ended.Load() {
		return false
	}
	ok, _ := d.client.call(opRenew, isDone, 1, aUint.append(nil, int64(d.Lease)))
	return ok
}

// Charge charges Cost or Costs to all matching rates after the fact, into debt. A negative cost refunds the grant or
// charge of Of, at most its amount and once. Idem makes a retry free; other options are ignored. It returns false if no
// rule matched, the daemon did not answer, or it refused; a refusal is logged once.
func (c *Client) Charge(ctx context.Context, domain string, a Attributes, options ...CallOption) (charged bool) {
	q := newRequest(ctx, opCharge, isDone, domain, a)
	options = append(options[:len(options):len(options)], func(q *request) {
		q.priority = ""
		delete(q.options, "queued_us")
		delete(q.options, "max_wait_us")
	})
	bad := c.made().ask(q, options)
	return bad == nil && q.ok
}

// Signal reports a utilization of this process, from 0 to 1; the daemon drops it after 3 s.
func (c *Client) Signal(name string, value float64) {
	if c = c.made(); value >= 0 { // false for NaN
		body := appendText(appendText(nil, c.pool), name)
		c.call(opSignal, silent, 3, aUint.append(body, int64(math.Round(1000*math.Min(value, 1)))))
	}
}

// Check pings the daemon; false if it does not answer, the breaker is open or the client disabled.
func (c *Client) Check() bool {
	ok, _ := c.call(opPing, isDone, 0, nil)
	return ok
}

// Stats are counts since the start of the client.
type Stats struct {
	Missed      Units // decisions without the daemon, by reason
	Refused     Units // invalid requests, and requests refused to this client: invalid, quota, not_allowed, forbidden
	Connections int   // open now
	BreakerOpen bool
}

// Stats returns the counts since the start of the client.
func (c *Client) Stats() Stats {
	c = c.made()
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
	p := &c.made().connections
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

// CallbackFailed logs, once, and counts a callback that panicked; for middlewares. The next request reports the count. Of
// `outcome` and `instrument`, which change no decision, it only logs.
func (c *Client) CallbackFailed(name string, thrown any) {
	then := "such requests are checked without it"
	switch name {
	case "on_refused":
		then = "such refusals get the usual response"
	case "outcome", "instrument":
		then = "the decision is not affected"
	}
	c = c.made()
	c.log(fmt.Sprintf("%s panicked (%T): %s", name, thrown, then), true) // not the message, which may be personal data
	if name != "outcome" && name != "instrument" {
		c.report("callback", nil)
	}
}
