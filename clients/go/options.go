// Further options of clients and requests.

package tidegate

import (
	"fmt"
	"math"
	"time"
)

// Logger receives a first failure, and changes of state. *log.Logger is one.
type Logger interface{ Printf(format string, v ...any) }

// WithPool sets the name of the application, by default "default".
func WithPool(name string) Option { return func(c *Client) { c.pool = name } }

// WithSlots sets the number of requests that this process works on concurrently.
func WithSlots(n int) Option { return func(c *Client) { c.slots = int64(n) } }

// WithEnabled(false) allows everything without any I/O, as TIDEGATE_DISABLE=1 does.
func WithEnabled(enabled bool) Option { return func(c *Client) { c.disabled = !enabled } }

// WithLogger replaces the standard logger.
func WithLogger(logger Logger) Option { return func(c *Client) { c.logger = logger } }

// WithOnDecision calls function with each decision of Acquire, Hit, Limit and the middlewares, and with its duration. A
// panic is logged once, and the decision stays. The function must be safe for concurrent use.
func WithOnDecision(function func(d *Decision, took time.Duration)) Option {
	return func(c *Client) {
		if c.observe = nil; function == nil {
			return
		}
		c.observe = func(op byte, d *Decision, began time.Time) {
			if op != opAcquire && op != opHit {
				return
			}
			finished := false
			defer func() {
				if thrown := recover(); thrown != nil {
					c.log(fmt.Sprintf("on_decision panicked (%T): the decision is not affected", thrown), true)
				} else if !finished { // runtime.Goexit: the caller does not get the lease
					d.ReleaseAs(Dropped)
				}
			}()
			function(d, time.Since(began))
			finished = true
		}
	}
}

// Costs is Cost in several units. A rule is checked in its own unit, and not at all if that is absent.
func Costs(units Units) CallOption {
	return func(q *request) {
		if q.units = units; units == nil {
			q.units = Units{}
		}
	}
}

// Priority sets the priority's name; never take it from a caller's header. An invalid name counts as none.
func Priority(name string) CallOption { return func(q *request) { q.priority = name } }

// Idem sets an idempotency key: a retry within 60 s is free. Never take it from a caller's header: a caller that sends
// one key twice is charged once. Above 64 bytes it is replaced by its beginning and its digest.
func Idem(key string) CallOption {
	return func(q *request) {
		if q.idem = idem(key); key != "" {
			q.option("idem", bytesOf(q.idem))
		}
	}
}

func idem(key string) string {
	if len(key) > idemMax {
		return digest(key, idemKept)
	}
	return key
}

func bytesOf(s string) []byte { return append(aBin.append(nil, int64(len(s))), s...) }

// Of sets the grant or charge that a negative Charge refunds: a decision, the number of its lease, or its Idem.
func Of[G *Decision | uint64 | string](grant G) CallOption {
	return func(q *request) {
		var lease uint64
		var key string
		switch of := any(grant).(type) {
		case uint64:
			lease = of
		case string:
			key = idem(of)
		case *Decision:
			if of != nil {
				lease, key = of.Lease, of.idem
			}
		}
		switch {
		case lease > 0 && lease <= math.MaxInt64:
			q.option("of", appendInt(nil, int64(lease)))
		case key != "":
			q.option("of", bytesOf(key))
		default:
			q.problem = "Of has neither a lease nor an Idem; help: give the request to be refunded an Idem"
		}
	}
}

// Queued sets the time that the request has waited for the application.
func Queued(d time.Duration) CallOption {
	return func(q *request) { q.option("queued_us", aUint.append(nil, ceil(d, time.Microsecond))) }
}

// MaxWait sets the longest acceptable WAIT; 0: refuse instead.
func MaxWait(d time.Duration) CallOption {
	return func(q *request) { q.option("max_wait_us", aUint.append(nil, ceil(d, time.Microsecond))) }
}

// Descriptors adds further descriptors.
func Descriptors(more ...Attributes) CallOption {
	return func(q *request) { q.descriptors = append(q.descriptors, more...) }
}
