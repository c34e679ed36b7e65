// Package tidegate asks the tidegate daemon of this host whether a piece of work may start.
//
//	d := client.Acquire(ctx, "api", tidegate.Attributes{{"user", user}})
//	defer d.Release()
//	if err := d.Err(); err != nil { … }
//
// No call fails because of the daemon or outlasts its deadline (20 ms); without an answer the decision is *allow* and
// says so (Degraded, Reason). This file and wire.go are all of the client, to be copied; the others are for some.
package tidegate

import (
	"context"
	"fmt"
	"log"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// Version is this client's; what is spoken with the daemon is agreed on with each connection.
const Version = "0.1.0"

const ( // what this client decided for itself
	connectionsMax, abandonedMax, failuresMax, loggedMax = 64, 512, 3, 100
	pauseMin, pauseMax, moment                           = time.Second, 5 * time.Second, time.Millisecond
)

// An Outcome is how work ended.
type Outcome int32

const (
	OK      Outcome = iota // it ended well
	Failed                 // it ended badly
	Dropped                // it was given up, or took too long
)

// Never is how long to wait for what can never pass.
const Never time.Duration = -1

// A Decision is the answer to a request: whether the work may start, after Wait.
type Decision struct {
	Allowed, Degraded                    bool          // Degraded: decided without the daemon, for Reason
	Verdict, Reason                      string        // allow, limit, shed, wait or deny
	Status                               int           // 200, 429, 503 or 403
	Rule, Unit, Help                     string        // of the rule that decided
	HasLimit, Hidden                     bool          // whether it has what follows; whether to hide that
	Limit, Remaining                     uint64        // in units
	Window, ResetAfter, RetryAfter, Wait time.Duration // RetryAfter may be Never
	Lease                                uint64        // 0: none
	Notes                                [][2]string   // kind and rule
	client                               *Client
	asked                                [2]int64 // on which connection, as which request
	ended                                atomic.Bool
	outcome                              atomic.Int32 // one more than it; 0: not said
}

// Err is nil if the work may start, else *Denied.
func (d *Decision) Err() error {
	if d.Allowed {
		return nil
	}
	return &Denied{d}
}

// Denied is the error of a decision against.
type Denied struct{ Decision *Decision }

func (e *Denied) Error() string { return "tidegate: " + e.Decision.Message() }

// Message is for people: which limit, how much, and when to try again.
func (d *Decision) Message() string {
	what := "The service is at its capacity."
	switch limited := d.Verdict == "limit"; {
	case d.Allowed:
		return "Allowed."
	case d.Verdict == "deny":
		return "This request is not allowed."
	case d.Degraded:
		what = "The request could not be judged."
	case limited && !d.named():
		what = "Too many requests."
	case limited && d.Window == 0:
		what = fmt.Sprintf("Over the limit %s of %d at once.", d.Rule, d.Limit)
	case limited:
		what = fmt.Sprintf("Over the limit %s of %d %s in %s s.", d.Rule, d.Limit, d.Unit, number(d.Window))
	}
	if d.RetryAfter == Never {
		return what + " It asks for more than the limit holds: it can never pass."
	}
	return fmt.Sprintf("%s Try again in %d s.", what, d.retrySeconds())
}

func (d *Decision) named() bool { return d.Rule != "" && d.HasLimit && !d.Hidden }

// retrySeconds are whole, and at least 1.
func (d *Decision) retrySeconds() int64 {
	if d.RetryAfter <= time.Second {
		return 1
	}
	return up(d.RetryAfter, time.Second)
}

// number is seconds for people, up to the next millisecond.
func number(d time.Duration) string {
	return strconv.FormatFloat(float64(up(d, time.Millisecond))/1_000, 'f', -1, 64)
}

// SetOutcome says how the work ended, for Release, if it did not end well.
func (d *Decision) SetOutcome(outcome Outcome) {
	if d != nil {
		d.outcome.Store(int32(outcome) + 1)
	}
}

// Release ends the work, and does not wait. Without a lease, or the second time, nothing happens.
func (d *Decision) Release() { d.ReleaseAs(OK) }

// ReleaseAs is Release with another outcome, unless SetOutcome said one.
func (d *Decision) ReleaseAs(otherwise Outcome) {
	if d == nil || d.client == nil || d.Lease == 0 || d.ended.Swap(true) {
		return
	}
	d.outcome.CompareAndSwap(0, int32(otherwise)+1)
	if _, reason := d.client.tell(opRelease, silent, int64(d.Lease), int64(d.outcome.Load()-1)); reason != "" {
		d.client.report("", nil, []any{d.asked[0], d.asked[1]}) // it was not written; the daemon is told so later
	}
}

// Renew starts the lease's time again, for long work. False: it has ended, or the daemon does not answer.
func (d *Decision) Renew() bool {
	if d == nil || d.client == nil || d.Lease == 0 || d.ended.Load() {
		return false
	}
	ok, _ := d.client.tell(opRenew, isDone, int64(d.Lease))
	return ok
}

// A Client asks the daemon of this host. Any number of goroutines may use it; make one per program, and keep it.
type Client struct {
	path, pool  string
	timeout     time.Duration
	slots       int64
	disabled    bool
	logger      Logger
	epoch       time.Time
	idle, spare chan *connection // spare has a nil for each connection that there may be besides
	until       atomic.Int64     // the breaker is open until then, since epoch; 0: it is closed
	failures    atomic.Int32     // in a row

	mu             sync.Mutex // of what follows
	session        []byte
	opened         int64 // connections so far
	pause          time.Duration
	told           int8  // of trouble: 0 never, 1 there is some, 2 it is over
	missed, unsaid Units // decisions made without the daemon; those that it has not been told of
	abandoned      []any // requests given up, [connection, id]
	logged         map[string]bool
}

// Logger is told of a first failure, and of changes of state. *log.Logger is one.
type Logger interface{ Printf(format string, v ...any) }

// An Option of a client.
type Option func(*Client)

// WithSocket is where the daemon listens; else TIDEGATE_SOCKET, else tidegate's usual places.
func WithSocket(path string) Option { return func(c *Client) { c.path = path } }

// WithTimeout is the deadline of every call; else TIDEGATE_TIMEOUT_MS, else 20 ms.
func WithTimeout(d time.Duration) Option { return func(c *Client) { c.timeout = d } }

// WithPool names the application that this is, if not "default".
func WithPool(name string) Option { return func(c *Client) { c.pool = name } }

// WithSlots is how many requests this process works on at once.
func WithSlots(n int) Option { return func(c *Client) { c.slots = int64(n) } }

// WithEnabled(false) allows everything without any I/O, as TIDEGATE_DISABLE=1 does.
func WithEnabled(enabled bool) Option { return func(c *Client) { c.disabled = !enabled } }

// WithLogger is told instead of the standard logger.
func WithLogger(logger Logger) Option { return func(c *Client) { c.logger = logger } }

// New makes a client. Nothing is opened before the first question.
func New(options ...Option) *Client {
	c := &Client{path: os.Getenv("TIDEGATE_SOCKET"), pool: "default", logger: log.Default(), epoch: time.Now()}
	c.missed, c.unsaid, c.logged = Units{}, Units{}, map[string]bool{}
	c.idle, c.spare = make(chan *connection, connectionsMax), make(chan *connection, connectionsMax)
	for i := 0; i < connectionsMax; i++ {
		c.spare <- nil
	}
	for _, option := range options {
		option(c)
	}
	if ms, err := strconv.ParseFloat(os.Getenv("TIDEGATE_TIMEOUT_MS"), 64); err == nil && c.timeout <= 0 {
		c.timeout = time.Duration(ms * float64(time.Millisecond))
	}
	if c.timeout <= 0 {
		c.timeout = 20 * time.Millisecond
	}
	if off := os.Getenv("TIDEGATE_DISABLE"); off != "" && off != "0" {
		c.disabled = true
	}
	return c
}

// Acquire asks whether work may start that ends with Release. The deadline of ctx counts where it is the sooner one.
func (c *Client) Acquire(ctx context.Context, domain string, a Attributes, options ...CallOption) *Decision {
	return c.judge(ctx, opAcquire, domain, a, options)
}

// Hit is Acquire for what has no end: a message, a login attempt.
func (c *Client) Hit(ctx context.Context, domain string, a Attributes, options ...CallOption) *Decision {
	return c.judge(ctx, opHit, domain, a, options)
}

// Peek is what Acquire would say; nothing is charged.
func (c *Client) Peek(ctx context.Context, domain string, a Attributes, options ...CallOption) *Decision {
	return c.judge(ctx, opPeek, domain, a, options)
}

// Check says whether the daemon answers; false, without asking, if the breaker is open or the client disabled.
func (c *Client) Check() bool {
	ok, _ := c.tell(opPing, isDone)
	return ok
}

// Stats count decisions without the daemon, by reason, and connections.
type Stats struct {
	Missed      Units
	Connections int
	BreakerOpen bool
}

// Stats so far.
func (c *Client) Stats() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	missed := Units{}
	for reason, n := range c.missed {
		missed[reason] = n
	}
	return Stats{missed, connectionsMax - len(c.spare), c.until.Load() != 0}
}

// Close closes what is idle. The client may be used again.
func (c *Client) Close() {
	for {
		select {
		case k := <-c.idle:
			c.drop(k)
		default:
			return
		}
	}
}

// CallbackFailed allows what an application's function left unjudged by a panic; for middlewares.
func (c *Client) CallbackFailed(what string, why any) *Decision {
	c.log(fmt.Sprintf("%s panicked (%T): such requests are not limited", what, why), true) // no user's data
	c.report("callback", nil)
	return degraded("callback", false)
}

func (c *Client) judge(ctx context.Context, op byte, domain string, a Attributes, more []CallOption) (d *Decision) {
	if c.disabled {
		return degraded("disabled", false)
	}
	q := newRequest(ctx, op, isDecision, a)
	q.decision = &Decision{client: c}
	reason, unsaid, abandoned := "protocol", Units(nil), []any(nil)
	defer func() {
		if broken := recover(); broken != nil {
			c.unwritten(broken)
		}
		if d = q.decision; reason != "" {
			c.report(reason, unsaid, abandoned...)
			d = degraded(reason, q.refuse)
		}
		requests.Put(q)
	}()
	for _, option := range more {
		option(q)
	}
	if until := c.until.Load(); until != 0 && int64(time.Since(c.epoch)) < until {
		reason = "breaker"
		return
	}
	if q.judge(domain); len(q.body) < frameMax/2 { // where a report cannot cost an attribute its text
		if unsaid, abandoned = c.reports(); len(unsaid)+len(abandoned) > 0 {
			q.say("missed", unsaid)
			q.say("abandoned", abandoned)
			q.judge(domain)
		}
	}
	_, reason = c.exchange(q)
	return q.decision
}

func (c *Client) tell(op byte, wanted int, elements ...any) (ok bool, reason string) {
	q := &request{ctx: context.Background(), op: op, wanted: wanted}
	q.write(elements...)
	return c.exchange(q)
}

// exchange asks. The reason says why there is no answer in time that can be trusted; else it is empty.
func (c *Client) exchange(q *request) (ok bool, reason string) {
	if c.disabled {
		return false, "disabled"
	} else if q.ctx.Err() != nil {
		return false, "timeout"
	}
	began, until := time.Now(), c.until.Load()
	q.deadline = began.Add(c.timeout)
	if q.wanted == silent { // it waits for nothing; this much is for writing
		q.deadline = began.Add(moment)
	}
	if at, has := q.ctx.Deadline(); has && at.Before(q.deadline) {
		q.deadline = at
	}
	now := int64(began.Sub(c.epoch))
	mark := now + int64(pauseMax)
	if until != 0 { // one probe at a time; should it die, another may follow
		if now < until || q.wanted == silent || !c.until.CompareAndSwap(until, mark) {
			return false, "breaker"
		}
	}
	ok, bad := c.converse(q)
	if (bad == nil || bad.kept) && q.wanted != silent && (c.failures.Load() > 0 || until != 0) {
		c.settle(nil, false)
	}
	switch {
	case bad == nil:
		return ok, ""
	case bad.kept:
		c.log(bad.text+"; such requests are not limited", true)
	case bad.reason == "timeout" && time.Since(began) < c.timeout/2: // its context ended early: nobody has failed
		c.until.CompareAndSwap(mark, until) // if it was the probe, another may be, unless somebody has closed it
	default:
		c.settle(bad, until != 0)
	}
	return false, bad.reason
}

// converse takes a connection, and another one where the daemon has had nothing of the request.
func (c *Client) converse(q *request) (bool, *fault) {
	for {
		k, bad := c.take(q)
		if bad != nil {
			return false, bad
		}
		ok, bad := k.ask(q)
		if q.decision != nil {
			q.decision.asked = [2]int64{k.number, k.asked}
		}
		if bad == nil || bad.kept {
			if k.leaving || k.in.Buffered() > 0 {
				c.drop(k)
			} else {
				c.idle <- k
			}
			return ok, bad
		}
		c.drop(k)
		if q.op == opAcquire {
			c.report("", nil, []any{k.number, k.asked})
		}
		if !bad.again {
			return false, bad
		}
	}
}

// take is an idle connection or a new one; where there are too many, the first that becomes idle.
func (c *Client) take(q *request) (*connection, *fault) {
	select {
	case k := <-c.idle:
		return k, nil
	default:
	}
	timer := time.NewTimer(time.Until(q.deadline))
	defer timer.Stop()
	select {
	case k := <-c.idle:
		return k, nil
	case <-q.ctx.Done():
		return nil, errLate
	case <-timer.C:
		return nil, errLate
	case <-c.spare:
	}
	k, err := c.connect(q.deadline)
	if err != nil {
		c.spare <- nil
		if isLate(err) {
			return nil, errLate
		}
		return nil, &fault{text: err.Error(), reason: "unreachable"}
	}
	return k, nil
}

func (c *Client) drop(k *connection) {
	_ = k.Close()
	c.spare <- nil
}

// degraded is a decision without the daemon.
func degraded(reason string, refuse bool) *Decision {
	d := &Decision{Allowed: true, Verdict: "allow", Status: 200}
	if refuse && reason != "disabled" {
		d = &Decision{Verdict: "shed", Status: 503, RetryAfter: time.Second}
	}
	d.Degraded, d.Reason, d.Unit = true, reason, "requests"
	return d
}

// report keeps what the daemon is to be told: a decision that missed it; what was to be told before; requests given up.
func (c *Client) report(reason string, unsaid Units, abandoned ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if reason != "" && reason != "disabled" {
		c.missed[reason]++
		c.unsaid[reason]++
	}
	for reason, n := range unsaid {
		c.unsaid[reason] += n
	}
	if c.abandoned = append(c.abandoned, abandoned...); len(c.abandoned) > abandonedMax {
		c.abandoned = c.abandoned[:abandonedMax]
	}
}

// reports takes all of that.
func (c *Client) reports() (unsaid Units, abandoned []any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.unsaid)+len(c.abandoned) > 0 {
		unsaid, abandoned = c.unsaid, c.abandoned
		c.unsaid, c.abandoned = Units{}, nil
	}
	return unsaid, abandoned
}

// settle keeps the breaker, and tells of the first failure at once, of others when it opens.
func (c *Client) settle(bad *fault, probe bool) {
	c.mu.Lock()
	failures := c.failures.Add(1)
	if bad == nil {
		failures, c.pause = 0, 0
		c.failures.Store(0)
		c.until.Store(0)
	} else if probe || failures == failuresMax {
		if c.pause *= 2; c.pause < pauseMin {
			c.pause = pauseMin
		} else if c.pause > pauseMax {
			c.pause = pauseMax
		}
		c.until.Store(int64(time.Since(c.epoch)) + int64(float64(c.pause)*(0.8+0.4*random())))
	}
	text := ""
	if bad != nil && (c.told == 0 || c.told == 2 && failures >= failuresMax) {
		c.told, text = 1, bad.text+"; requests are not limited"
	} else if bad == nil && c.told == 1 {
		missed := int64(0)
		for _, n := range c.missed {
			missed += n
		}
		c.told, text = 2, fmt.Sprintf("the daemon answers again; %d requests so far were not limited", missed)
	}
	c.mu.Unlock()
	if text != "" {
		c.log(text, false)
	}
}

// unwritten is what does not fit, or a mistake of ours.
func (c *Client) unwritten(broken any) {
	why := fmt.Sprintf("%T", broken)
	if known, is := broken.(*fault); is {
		why = known.text
	}
	c.log("a request cannot be written, so the daemon is not asked: "+why, true)
}

func (c *Client) log(text string, once bool) {
	c.mu.Lock()
	told := once && (c.logged[text] || len(c.logged) >= loggedMax)
	if once && !told {
		c.logged[text] = true
	}
	c.mu.Unlock()
	defer func() { _ = recover() }() // whatever the logger does
	if !told {
		c.logger.Printf("tidegate: %s", text)
	}
}
