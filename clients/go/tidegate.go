// Package tidegate is a client of tidegate, the rate limiting daemon of this host.
//
//	d := client.Acquire(ctx, "api", tidegate.Attributes{{"user", user}})
//	defer d.Release()
//	if err := d.Err(); err != nil { … }
//
// No call fails because of the daemon or outlasts its deadline (20 ms, from its turn if many callers wait for one) by
// more than a quarter. Without a reply the decision is *allow*, with Degraded and Reason set. The client is this file,
// connection.go and wire.go, which can be copied; the other files add to it.
package tidegate

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	Version = "0.1.0" // of this client; the protocol's version is negotiated on each connection

	OK      Outcome = iota - 1 // the work succeeded
	Failed                     // the work failed
	Dropped                    // the work was abandoned or timed out

	VerdictAllow Verdict = "allow" // the work may start
	VerdictWait  Verdict = "wait"  // it may start after Wait
	VerdictLimit Verdict = "limit" // over a limit: status 429
	VerdictShed  Verdict = "shed"  // the host is at its capacity: status 503
	VerdictDeny  Verdict = "deny"  // on a deny list: status 403

	Never time.Duration = -1 // the RetryAfter of a request that can never pass

	abandonedMax, failuresMax, loggedMax = 512, 3, 100
	timeoutMaxMs                         = 10_000 // of the environment
	pauseMin, pauseMax                   = 100 * time.Millisecond, 2 * time.Second
)

// silentTimeout limits a write that no caller waits for. Tests extend it.
var silentTimeout = time.Millisecond

// ErrInvalid is in the chain of Err if the request itself is invalid: a negative cost, an invalid name, too many
// attributes. Such a request is refused.
var ErrInvalid = errors.New("invalid request")

// An Outcome is the result of work under a lease.
type Outcome int32

// A Verdict is the kind of a decision.
type Verdict string

// A Decision is the answer to a request: if Allowed, the work may start after Wait.
type Decision struct {
	Allowed, Degraded                    bool          // Degraded: decided without the daemon, for Reason
	Verdict                              Verdict       // VerdictAllow and so on
	Reason                               string        // of decisions without the daemon and own refusals
	Status                               int           // 200, 429, 503 or 403
	Rule, Unit, Help                     string        // of the binding rule
	Rate                                 string        // of a rule that refuses, as it is written: 5/min
	HasLimit, Hidden                     bool          // HasLimit: the next two lines apply; Hidden: not for callers
	Blocked                              bool          // an operator or the rule itself blocks this caller
	Domain, Digest                       string        // of a refusal, for `tidegate why`; no Digest if Hidden
	Limit, Remaining                     uint64        // in units
	Window, ResetAfter, RetryAfter, Wait time.Duration // RetryAfter may be Never
	Lease                                uint64        // 0: none
	Notes                                [][2]string   // kind and rule
	client                               *Client
	err                                  error    // the cause of a refusal by the client itself
	idem                                 string   // as sent
	asked                                [2]int64 // connection and id of the request
	ended                                atomic.Bool
	outcome                              atomic.Int32 // Outcome + 1; 0: not set
}

// Err returns nil if the work may start, the error of a context that ended first, else *Denied.
func (d *Decision) Err() error {
	switch {
	case d == nil || d.Allowed: // nil: without a check, as of an exempt request
		return nil
	case d.Reason == errCancelled.reason && d.err != nil:
		return d.err
	}
	return &Denied{d}
}

// Denied is the error of a refusal.
type Denied struct{ Decision *Decision }

func (e *Denied) Error() string {
	if e.Decision.err != nil {
		return "tidegate: " + e.Decision.err.Error()
	} else if longer, is := any(e.Decision).(interface{ Message() string }); is { // answer.go may be left out
		return "tidegate: " + longer.Message()
	}
	return fmt.Sprintf("tidegate: %s by %s", e.Decision.Verdict, e.Decision.Rule)
}

// Unwrap returns the cause of a refusal by the client itself, such as ErrInvalid.
func (e *Denied) Unwrap() error { return e.Decision.err }

// SetOutcome sets the outcome that Release reports.
func (d *Decision) SetOutcome(outcome Outcome) {
	if d != nil {
		d.outcome.Store(int32(outcome) + 1)
	}
}

// Release ends the lease without waiting for the daemon; a panic that it is deferred through counts as Failed and
// continues. It does nothing without a lease or the second time.
func (d *Decision) Release() {
	if d == nil || d.Lease == 0 || d.ended.Load() {
		return
	}
	if thrown := recover(); thrown != nil {
		d.ReleaseAs(Failed)
		panic(thrown)
	}
	d.ReleaseAs(OK)
}

// ReleaseAs is Release with another outcome, unless SetOutcome has set one.
func (d *Decision) ReleaseAs(otherwise Outcome) {
	if d == nil || d.client == nil || d.Lease == 0 || d.ended.Swap(true) {
		return
	}
	d.outcome.CompareAndSwap(0, int32(otherwise)+1)
	body := aUint.append(aUint.append(nil, int64(d.Lease)), int64(d.outcome.Load()-1))
	q := &request{ctx: context.Background(), op: opRelease, wanted: silent, count: 2, body: body, lease: d.asked}
	if d.client.ask(q, nil) != nil {
		d.client.report("", nil, d.asked) // not written: sent with a later request
	}
}

// A Client sends requests to the daemon. It is safe for concurrent use; make one per program, and keep it.
type Client struct {
	path, pool string
	timeout    time.Duration
	slots      int64
	disabled   bool
	off        string // why it is disabled, to be logged
	logger     interface{ Printf(string, ...any) }
	fallback   interface { // fallback.go; nil: none
		remember(q *request, rule string)
		decide(q *request) *Decision // nil: no entry applies
	}
	observe     func(op byte, d *Decision, began time.Time) // options.go; nil: none
	epoch       time.Time
	connections connections
	until       atomic.Int64 // the breaker is open until then, since epoch; 0: closed
	failures    atomic.Int32 // since the last reply; overlapping ones count once
	news        atomic.Bool  // unreported or abandoned has entries
	refuses     atomic.Bool  // a request had RefuseOnFailure

	mu                 sync.Mutex // of the following
	failed             int64      // end of the last counted failure, since epoch
	pause              time.Duration
	logState           int8       // logged state: 0 none, 1 failing, 2 recovered
	missed, unreported Units      // decisions without the daemon; those not reported to it yet
	refused            Units      // requests refused by the client itself or as invalid, by reason
	abandoned          [][2]int64 // requests: connection and id
	logged             map[string]bool
	problem            error // of an option; New panics with it
}

// Attributes are names and values, in this order. Nil and empty values are not sent, others become text.
type Attributes [][2]any

// A CallOption adds to one request.
type CallOption func(*request)

// Units are amounts in several units, such as {"requests": 1, "tokens": 800}.
type Units map[string]int64

// Cost sets the cost of the request, by default 1. A negative one is refused with ErrInvalid, except by Charge.
func Cost(n int64) CallOption { return func(q *request) { q.amount, q.units = n, nil } }

// RefuseOnFailure refuses the request, with status 503, when the daemon does not answer.
func RefuseOnFailure() CallOption { return func(q *request) { q.refuse = true } }

// An Option of a client.
type Option func(*Client)

// WithSocket sets the path of the daemon's socket; else TIDEGATE_SOCKET, else the default paths.
func WithSocket(path string) Option { return func(c *Client) { c.path = path } }

// WithTimeout sets the deadline of every call; else TIDEGATE_TIMEOUT_MS, else 20 ms.
func WithTimeout(d time.Duration) Option { return func(c *Client) { c.timeout = d } }

// New makes a client; the first request connects. It panics if an option is invalid: the name of a pool, the number of
// slots, the rate of a fallback. A nil *Client allows everything.
func New(options ...Option) *Client {
	c := &Client{path: os.Getenv("TIDEGATE_SOCKET"), pool: "default", logger: log.Default(), epoch: time.Now()}
	c.missed, c.unreported, c.refused, c.logged = Units{}, Units{}, Units{}, map[string]bool{}
	for _, option := range options {
		if option != nil {
			option(c)
		}
	}
	if c.problem != nil {
		panic(c.problem)
	} else if !IsName(c.pool) {
		panic(fmt.Sprintf("tidegate: WithPool(%.99q) is not a name; help: %s", c.pool, nameHelp))
	} else if c.slots < 0 || c.slots >= 1<<32 {
		panic(fmt.Sprintf("tidegate: WithSlots(%d) is no number of slots; help: they are 0 to 4294967295", c.slots))
	}
	if c.timeout <= 0 {
		c.timeout = c.timeoutOf(os.Getenv("TIDEGATE_TIMEOUT_MS"))
	}
	if off := os.Getenv("TIDEGATE_DISABLE"); off != "" && off != "0" {
		c.disabled, c.off = true, fmt.Sprintf("TIDEGATE_DISABLE is %.40q", off)
	}
	return c
}

// unmade replaces nil and zero clients, which allow everything and log that once.
var unmade = &Client{disabled: true, off: "a *Client is not made by tidegate.New", logger: log.Default(),
	missed: Units{}, unreported: Units{}, refused: Units{}, logged: map[string]bool{}}

func (c *Client) made() *Client { return when(c == nil || c.logged == nil, unmade, c) }

// timeoutOf returns the timeout in milliseconds; the default, with a line of the log, if it is none.
func (c *Client) timeoutOf(text string) time.Duration {
	ms, err := strconv.ParseFloat(text, 64)
	if err == nil && strings.Trim(text, "0123456789.") == "" && ms > 0 && ms <= timeoutMaxMs {
		return time.Duration(ms * float64(time.Millisecond))
	} else if text != "" {
		const unfit = "TIDEGATE_TIMEOUT_MS is %.40q, not above 0 and up to %d: the timeout is 20 ms"
		c.log(fmt.Sprintf(unfit, text, timeoutMaxMs), false)
	}
	return 20 * time.Millisecond
}

// Acquire asks whether work may start that ends with Release. The earlier of the client's and ctx's deadline applies.
func (c *Client) Acquire(ctx context.Context, domain string, a Attributes, options ...CallOption) *Decision {
	return c.decide(ctx, opAcquire, domain, a, options)
}

// Hit is Acquire for an event without an end: a message, a login attempt.
func (c *Client) Hit(ctx context.Context, domain string, a Attributes, options ...CallOption) *Decision {
	return c.decide(ctx, opHit, domain, a, options)
}

func (c *Client) decide(ctx context.Context, op byte, domain string, a Attributes, more []CallOption) (d *Decision) {
	var began time.Time
	if c = c.made(); c.observe != nil {
		began = time.Now()
	}
	q := newRequest(ctx, op, isDecision, domain, a)
	q.decision = &Decision{client: c}
	bad := c.ask(q, more)
	d = q.decision
	switch {
	case bad == nil:
		for _, note := range d.Notes {
			if note[0] == "unmatched" {
				c.logUnmatched(q, note[1])
			}
		}
		if !d.Allowed {
			d.Domain = domain
		}
		if d.asked, d.idem = q.asked, q.idem; c.fallback != nil {
			c.fallback.remember(q, d.Rule)
		}
	case bad.refused:
		c.report("", q.unreported, q.abandoned...)
		d = degraded(bad.reason, true)
		d.Degraded, d.err = false, bad.err()
	default:
		c.report(bad.reason, q.unreported, q.abandoned...)
		if d = degraded(bad.reason, q.refuse); c.fallback != nil && bad != errDisabled {
			if decided := c.fallback.decide(q); decided != nil {
				d = decided
			}
		}
	}
	if !q.expired { // else another goroutine may still use it
		requests.Put(q)
	}
	if c.observe != nil {
		c.observe(op, d, began)
	}
	return d
}

// call sends an operation without a decision; ok is the daemon's reply.
func (c *Client) call(op byte, wanted, count int, body []byte) (ok bool, bad *fault) {
	q := &request{ctx: context.Background(), op: op, wanted: wanted, count: count, body: body}
	bad = c.made().ask(q, nil)
	return bad == nil && q.ok, bad
}

// ask sends the request and waits for its reply. It returns a fault without a reply or if the request is refused.
func (c *Client) ask(q *request, more []CallOption) (bad *fault) {
	if c.off != "" {
		c.log(c.off+": nothing is limited", true)
	}
	if c.disabled {
		return errDisabled
	}
	if bad = c.prepare(q, more); bad == nil {
		bad = c.attempt(q)
	}
	if bad != nil && bad.refused && bad.ended == nil {
		c.log(bad.text+"; such requests are refused ("+bad.reason+")", true)
		c.mu.Lock()
		c.refused[bad.reason]++
		c.mu.Unlock()
	}
	return bad
}

// prepare applies the options and checks the request. A panic in a method of a value makes it invalid.
func (c *Client) prepare(q *request, more []CallOption) (bad *fault) {
	defer func() {
		if thrown := recover(); thrown != nil {
			bad = invalid(fmt.Sprintf("the request cannot be read (%T)", thrown))
		}
	}()
	q.began = time.Now()
	q.sent = q.began
	for _, option := range more {
		if option != nil {
			option(q)
		}
	}
	if q.refuse {
		c.refuses.Store(true)
	}
	if err := ended(q.ctx, q.began); err != nil {
		return &fault{text: err.Error(), reason: errCancelled.reason, refused: true, ended: err}
	} else if q.descriptors != nil {
		return q.check()
	}
	return nil
}

// attempt sends the request unless the breaker is open. After the breaker's pause, one call at a time sends a PING
// first.
func (c *Client) attempt(q *request) (bad *fault) {
	until := c.until.Load()
	if now := int64(q.began.Sub(c.epoch)); until != 0 {
		mark := now + int64(pauseMax+2*c.timeout) // if the probe never ends, another one follows
		if now < until || q.wanted == silent || !c.until.CompareAndSwap(until, mark) {
			return errOpen
		}
		ping := &request{ctx: q.ctx, op: opPing, wanted: isDone, began: q.began, sent: q.began}
		if bad = c.send(ping, true); bad != nil && !bad.kept {
			c.until.CompareAndSwap(mark, until) // without a result: the next call probes
			return bad
		}
		q.sent = time.Now()
	}
	if q.descriptors != nil {
		if bad = q.write(c); bad != nil {
			return bad
		}
	}
	return c.send(q, false)
}

// send exchanges the request and updates the breaker.
func (c *Client) send(q *request, probe bool) *fault {
	q.setDeadline(c.timeout)
	bad := c.converse(q)
	if q.wanted == silent || bad == nil && c.failures.Load() == 0 && !probe && c.until.Load() == 0 {
		return bad
	}
	now := time.Now()
	over := ended(q.ctx, now)
	waited, late := now.Sub(q.sent), now.Sub(q.deadline)
	switch {
	case bad == nil || bad.kept:
		c.settle(nil, q.sent, now, probe)
	case bad.refused || bad.goodbye: // neither a success nor a failure of the daemon
	case bad.late && (waited < c.timeout/2 || late > c.timeout/2 || errors.Is(over, context.Canceled)):
		// Not the daemon's failure: this process was delayed, or the context was cancelled.
	default:
		c.settle(bad, q.sent, now, probe)
	}
	if bad != nil && over != nil && !bad.refused {
		return &fault{text: over.Error(), reason: errCancelled.reason, refused: true, ended: over}
	} else if bad != nil && bad.kept && !bad.refused {
		c.log(bad.text+"; such requests "+c.consequence(), true)
	}
	return bad
}

// pause waits before a call connects again; false if no time is left.
func (q *request) pause(timeout time.Duration) (may bool) {
	if may = q.wanted != silent && time.Since(q.began)+retryConnect < timeout && q.ctx.Err() == nil; may {
		time.Sleep(retryConnect)
	}
	return may
}

// degraded returns a decision without the daemon.
func degraded(reason string, refuse bool) *Decision {
	d := &Decision{Allowed: true, Verdict: VerdictAllow, Status: 200}
	if refuse {
		d = &Decision{Verdict: VerdictShed, Status: 503, RetryAfter: time.Second}
	}
	d.Degraded, d.Reason, d.Unit = true, reason, "requests"
	return d
}

// report stores for the next request: a decision without the daemon, unsent reports, and abandoned requests.
func (c *Client) report(reason string, unreported Units, abandoned ...[2]int64) {
	if reason == "" && len(unreported)+len(abandoned) == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if reason != "" && reason != errDisabled.reason {
		c.missed[reason]++
		c.unreported[reason]++
	}
	for reason, n := range unreported {
		c.unreported[reason] += n
	}
	if c.abandoned = append(c.abandoned, abandoned...); len(c.abandoned) > abandonedMax {
		c.abandoned = c.abandoned[:abandonedMax]
	}
	c.news.Store(len(c.unreported)+len(c.abandoned) > 0)
}

// settle counts a reply or a failure. Overlapping failures count once; after three, or immediately if no process
// listens, the breaker opens. It logs a failure before any reply, then only changes of state.
func (c *Client) settle(bad *fault, sent, now time.Time, probe bool) {
	c.mu.Lock()
	text, failures := "", c.failures.Load()
	switch {
	case bad == nil:
		c.pause = 0
		c.failures.Store(0)
		c.until.Store(0)
	case !probe && (c.until.Load() != 0 || int64(sent.Sub(c.epoch)) < c.failed): // counted already
	default:
		c.failed = int64(now.Sub(c.epoch))
		failures = c.failures.Add(1)
		if probe || bad.absent || failures >= failuresMax {
			c.pause = when(2*c.pause < pauseMin, pauseMin, when(2*c.pause > pauseMax, pauseMax, 2*c.pause))
			c.until.Store(c.failed + int64(float64(c.pause)*(1-random()/2)))
		}
	}
	if bad != nil && (c.logState == 0 || c.logState == 2 && c.until.Load() != 0) {
		c.logState, text = 1, bad.text+"; requests "+c.consequence()
	} else if bad == nil && c.logState == 1 {
		missed := -c.missed["callback"] // the daemon decided these
		for _, n := range c.missed {
			missed += n
		}
		nouns := when(missed == 1, "request", "requests")
		c.logState, text = 2, fmt.Sprintf("the daemon answers again; %d %s so far decided without it", missed, nouns)
	}
	c.mu.Unlock()
	if text != "" {
		c.log(text, false)
	}
}

// consequence returns what happens to requests while the daemon does not answer.
func (c *Client) consequence() string {
	some := when(c.refuses.Load(), "with RefuseOnFailure get status 503, others ", "")
	return when(c.fallback != nil, "are limited by the fallback", some+"are not limited")
}

// logUnmatched logs, once for each domain, that it does not exist, or that none of its rules matched.
func (c *Client) logUnmatched(q *request, reason string) {
	if reason == "domain" {
		c.log(fmt.Sprintf("the rules have no domain %q; its requests are not limited", q.domain), true)
	} else if reason == "rule" {
		const why = "no rule of the domain %q matches a request %s: it is not limited; `tidegate why %s …` says why"
		c.logAs("no rule of "+q.domain, fmt.Sprintf(why, q.domain, q.about(), q.domain))
	}
}

func (c *Client) log(text string, once bool) { c.logAs(when(once, text, ""), text) }

// logAs logs one text for each key, or every text without a key.
func (c *Client) logAs(key, text string) {
	c.mu.Lock()
	skip := key != "" && (c.logged[key] || len(c.logged) >= loggedMax)
	if key != "" && !skip {
		c.logged[key] = true
	}
	c.mu.Unlock()
	defer func() { _ = recover() }() // a logger that panics
	if !skip {
		c.logger.Printf("tidegate: %s", text)
	}
}

// A fault is the reason for a request without a reply. Decoding panics with it; connection.exchange recovers it.
type fault struct {
	text, reason string
	kept         bool  // it concerns this request alone; the connection stays open
	refused      bool  // the request is refused; otherwise there was no reply
	late         bool  // the deadline passed
	absent       bool  // no process listens
	again        bool  // the daemon has not processed the request; retry on another connection
	goodbye      bool  // the daemon announced the end of the connection
	busy         bool  // the daemon accepts no more connections
	ended        error // the error of the context
}

var (
	errMalformed = &fault{text: "malformed frame", reason: "protocol"}
	errAdmin     = &fault{reason: "protocol",
		text: "the daemon answered in HTTP: that is the admin socket; set TIDEGATE_SOCKET to the one beside it"}
	errLate      = &fault{text: "the daemon did not answer in time", reason: "timeout", late: true}
	errOpen      = &fault{reason: "breaker"}
	errDisabled  = &fault{reason: "disabled"}
	errCancelled = &fault{reason: "cancelled"}
	errUnsent    = &fault{text: "the daemon hung up", reason: "unreachable", again: true}
)

func invalid(text string) *fault {
	return &fault{text: text, reason: "invalid", refused: true, kept: true}
}
