// What can be said beside the client's socket and deadline, and of a request beside its cost.

package tidegate

import "time"

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

// Costs is Cost in several units; a rule is judged in its own, and not at all when that is not among them.
func Costs(units Units) CallOption {
	return func(q *request) {
		all := fields{}
		for unit, n := range units {
			all[unit] = appendInt(nil, n)
		}
		q.cost = all.append(nil)
	}
}

// Priority names how important this is; never take it from an end user's header.
func Priority(name string) CallOption { return func(q *request) { q.priority = name } }

// Idem makes a repeat within 60 s free; never take it from an end user's header: who repeats it is charged once.
func Idem(key string) CallOption {
	return func(q *request) {
		if key != "" {
			q.say("idem", append(aBin.append(nil, int64(len(key))), key...))
		}
	}
}

// Queued is how long the request has waited for the application already.
func Queued(d time.Duration) CallOption {
	return func(q *request) { q.say("queued_us", aUint.append(nil, up(d, time.Microsecond))) }
}

// MaxWait is how long a WAIT may be; 0: be refused instead.
func MaxWait(d time.Duration) CallOption {
	return func(q *request) { q.say("max_wait_us", aUint.append(nil, up(d, time.Microsecond))) }
}

// Descriptors are judged besides the first.
func Descriptors(more ...Attributes) CallOption {
	return func(q *request) { q.descriptors = append(q.descriptors, more...) }
}
