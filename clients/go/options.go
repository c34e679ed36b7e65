// What can be said beside the client's socket and deadline, and of a request beside its cost.

package tidegate

import (
	"math"
	"time"
)

// Logger is told of a first failure, and of changes of state. *log.Logger is one.
type Logger interface{ Printf(format string, v ...any) }

// WithPool names the application that this is, if not "default".
func WithPool(name string) Option { return func(c *Client) { c.pool = name } }

// WithSlots is how many requests this process works on at once.
func WithSlots(n int) Option { return func(c *Client) { c.slots = int64(n) } }

// WithEnabled(false) allows everything without any I/O, as TIDEGATE_DISABLE=1 does.
func WithEnabled(enabled bool) Option { return func(c *Client) { c.disabled = !enabled } }

// WithLogger is told instead of the standard logger.
func WithLogger(logger Logger) Option { return func(c *Client) { c.logger = logger } }

// Costs is Cost in several units. A rule is checked in its own unit, and not at all when that is not among them.
func Costs(units Units) CallOption {
	return func(q *request) {
		if q.units = units; units == nil {
			q.units = Units{}
		}
	}
}

// Priority names how important the request is; never take it from an end user's header. A text that is no name counts
// as none.
func Priority(name string) CallOption { return func(q *request) { q.priority = name } }

// Idem is an idempotency key: a repeat within 60 s is free. Never take it from an end user's header: a caller that sends
// one key twice is charged once. One above 64 bytes is replaced by its beginning and its digest.
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

// Of names the grant or charge that a Charge below 0 refunds: a decision, the number of its lease, or its Idem.
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
			q.problem = "Of names neither a lease nor an Idem; help: give the request to be refunded an Idem"
		}
	}
}

// Queued is how long the request has waited for the application already.
func Queued(d time.Duration) CallOption {
	return func(q *request) { q.option("queued_us", aUint.append(nil, up(d, time.Microsecond))) }
}

// MaxWait is how long a WAIT may be; 0: be refused instead.
func MaxWait(d time.Duration) CallOption {
	return func(q *request) { q.option("max_wait_us", aUint.append(nil, up(d, time.Microsecond))) }
}

// Descriptors are judged besides the first.
func Descriptors(more ...Attributes) CallOption {
	return func(q *request) { q.descriptors = append(q.descriptors, more...) }
}
