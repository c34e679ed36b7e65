// Package tidegate asks the tidegate daemon of this host whether a piece of work may start.
//
//	d := client.Acquire(ctx, "api", tidegate.Attributes{{"user", user}})
//	defer d.Release()
//	if err := d.Err(); err != nil { … }
//
// No call fails because of the daemon or outlasts its deadline (20 ms); without an answer the decision is *allow* and
// says so (Degraded, Reason). This file and wire.go are all of the client, to be copied; the others add to it.
package tidegate

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"reflect"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	Version = "0.1.0" // of this client; what is spoken with the daemon is agreed on with each connection

	OK      Outcome = iota - 1 // the work ended well
	Failed                     // it ended badly
	Dropped                    // it was given up, or took too long

	Never time.Duration = -1 // how long to wait for what can never pass

	connectionsMax, abandonedMax, failuresMax, loggedMax = 64, 512, 3, 100
	pauseMin, pauseMax, moment                           = time.Second, 5 * time.Second, time.Millisecond
)

// An Outcome is how work ended.
type Outcome int32

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

func (e *Denied) Error() string {
	if longer, is := any(e.Decision).(interface{ Message() string }); is { // a sentence, from the file beside
		return "tidegate: " + longer.Message()
	}
	return fmt.Sprintf("tidegate: %s by %s", e.Decision.Verdict, e.Decision.Rule)
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
	body := aUint.append(aUint.append(nil, int64(d.Lease)), int64(d.outcome.Load()-1))
	if _, bad := d.client.tell(opRelease, silent, 2, body); bad != nil {
		d.client.report("", nil, d.asked) // it was not written; the daemon is told so later
	}
}

// A Client asks the daemon of this host. Any number of goroutines may use it; make one per program, and keep it.
type Client struct {
	path, pool  string
	timeout     time.Duration
	slots       int64
	disabled    bool
	logger      interface{ Printf(string, ...any) }
	epoch       time.Time
	idle, spare chan *connection // spare has a nil for each connection that there may be besides
	until       atomic.Int64     // the breaker is open until then, since epoch; 0: it is closed
	failures    atomic.Int32     // in a row
	news        atomic.Bool      // there is something in unsaid or abandoned

	mu             sync.Mutex // of what follows
	session        []byte
	opened         int64 // connections so far
	pause          time.Duration
	told           int8       // of trouble: 0 never, 1 there is some, 2 it is over
	missed, unsaid Units      // decisions made without the daemon; those that it has not been told of
	abandoned      [][2]int64 // requests given up, connection and id
	logged         map[string]bool
}

// Attributes are names and values, in this order. A value that is nil or empty is not sent, others become text.
type Attributes [][2]any

// A CallOption says more about one request.
type CallOption func(*request)

// Units are amounts in several units at once, such as {"requests": 1, "tokens": 800}.
type Units map[string]int64

// Cost is how much is asked for, if not 1.
func Cost(n int64) CallOption {
	return func(q *request) { q.cost = appendInt(nil, n) }
}

// RefuseOnFailure refuses, with status 503, what could not be judged.
func RefuseOnFailure() CallOption { return func(q *request) { q.refuse = true } }

// An Option of a client.
type Option func(*Client)

// WithSocket is where the daemon listens; else TIDEGATE_SOCKET, else tidegate's usual places.
func WithSocket(path string) Option { return func(c *Client) { c.path = path } }

// WithTimeout is the deadline of every call; else TIDEGATE_TIMEOUT_MS, else 20 ms.
func WithTimeout(d time.Duration) Option { return func(c *Client) { c.timeout = d } }

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
	off := os.Getenv("TIDEGATE_DISABLE")
	c.disabled = c.disabled || off != "" && off != "0"
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

func (c *Client) judge(ctx context.Context, op byte, domain string, a Attributes, more []CallOption) (d *Decision) {
	q := newRequest(ctx, op, isDecision, domain, a)
	q.decision = &Decision{client: c}
	bad := c.ask(q, more)
	if d = q.decision; bad != nil {
		c.report(bad.reason, q.unsaid, q.abandoned...)
		d = degraded(bad.reason, q.refuse)
	}
	requests.Put(q)
	return d
}

// tell asks what is no judgement; ok is the daemon's answer.
func (c *Client) tell(op byte, wanted, count int, body []byte) (ok bool, bad *fault) {
	q := &request{ctx: context.Background(), op: op, wanted: wanted, count: count, body: body}
	bad = c.ask(q, nil)
	return q.ok, bad
}

// ask asks. A fault says why there is no answer in time that can be trusted.
func (c *Client) ask(q *request, more []CallOption) (bad *fault) {
	defer func() {
		if broken := recover(); broken != nil { // before anything was written
			bad = when(broken == errLarge, errLarge, &fault{text: fmt.Sprintf("%T", broken), reason: "protocol"})
			c.log("a request cannot be written, so the daemon is not asked: "+bad.text, true)
		}
	}()
	if c.disabled {
		return errDisabled
	}
	for _, option := range more {
		option(q)
	}
	q.began = time.Now()
	now, until := int64(q.began.Sub(c.epoch)), c.until.Load()
	switch {
	case q.ctx.Err() != nil:
		return errLate
	case until != 0 && now < until:
		return errOpen
	case q.descriptors != nil:
		q.write(c)
	}
	mark := now + int64(pauseMax) // one probe at a time; should it die, another may follow
	if until != 0 && (q.wanted == silent || !c.until.CompareAndSwap(until, mark)) {
		return errOpen
	}
	q.deadline = q.began.Add(when(q.wanted == silent, moment, c.timeout)) // who waits for nothing has time to write
	if at, has := q.ctx.Deadline(); has && at.Before(q.deadline) {
		q.deadline = at
	}
	bad = c.converse(q)
	if (bad == nil || bad.kept) && q.wanted != silent && (c.failures.Load() > 0 || until != 0) {
		c.settle(nil, false)
	}
	switch {
	case bad == nil:
	case bad.kept:
		c.log(bad.text+"; such requests are not limited", true)
	case bad == errLate && time.Since(q.began) < c.timeout/2: // its context ended early: nobody has failed
		c.until.CompareAndSwap(mark, until) // if it was the probe, another may be, unless somebody has closed it
	default:
		c.settle(bad, until != 0)
	}
	return bad
}

// converse takes a connection, and another one where the daemon has had nothing of the request.
func (c *Client) converse(q *request) *fault {
	for {
		k, bad := c.take(q)
		if bad != nil {
			return bad
		}
		bad = k.ask(q)
		if q.decision != nil {
			q.decision.asked = [2]int64{k.number, k.asked}
		}
		if broken := bad != nil && !bad.kept; !broken && !k.leaving && k.from == k.filled {
			c.idle <- k
			return bad
		} else if c.drop(k); !broken {
			return bad
		}
		if q.op == opAcquire {
			c.report("", nil, [2]int64{k.number, k.asked})
		}
		if !bad.again {
			return bad
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
	if err == nil {
		return k, nil
	}
	c.spare <- nil
	var timed net.Error // a full backlog calls itself a timeout, too
	if errors.As(err, &timed) && timed.Timeout() && !errors.Is(err, syscall.EAGAIN) {
		return nil, errLate
	}
	return nil, &fault{text: err.Error(), reason: "unreachable"}
}

func (c *Client) connect(deadline time.Time) (*connection, error) {
	path := c.path
	if path == "" {
		path = filepath.Join(os.Getenv("XDG_RUNTIME_DIR"), "tidegate/tidegate.sock")
		if _, err := os.Stat(path); err != nil || !filepath.IsAbs(path) {
			path = "/run/tidegate/tidegate.sock"
		}
	}
	dialer := net.Dialer{Deadline: deadline}
	stream, err := dialer.Dial("unix", path)
	if err != nil {
		return nil, unreachable(path, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.session == nil {
		c.session = make([]byte, 16)
		_, _ = rand.Read(c.session)
	}
	c.opened++
	info := fields{"client": appendText(nil, "go/"+Version), "session": append(aBin.append(nil, 16), c.session...),
		"pid": appendInt(nil, int64(os.Getpid())), "pool": appendText(nil, c.pool), "slots": appendInt(nil, c.slots),
		"connection": appendInt(nil, c.opened)}
	hello := info.append([]byte("\x94\x00\x00\x01"))
	k := &connection{Conn: stream, number: c.opened, in: make([]byte, 4+frameMax)}
	k.greeting = append(binary.BigEndian.AppendUint32(nil, uint32(len(hello))), hello...)
	return k, nil
}

// unreachable says why, and the mend.
func unreachable(path string, err error) error {
	switch {
	case errors.Is(err, syscall.EAGAIN):
		return fmt.Errorf("the daemon at %s takes no connections: it is stopped or overloaded (%w)", path, err)
	case errors.Is(err, os.ErrPermission):
		who, group := strconv.Itoa(os.Geteuid()), "that of the socket"
		if found, err := user.Current(); err == nil {
			who = found.Username
		}
		if info, err := os.Stat(path); err == nil { // its Gid is there on every system that has one
			gid := fmt.Sprint(reflect.Indirect(reflect.ValueOf(info.Sys())).FieldByName("Gid"))
			if found, err := user.LookupGroupId(gid); err == nil {
				group = found.Name
			}
		}
		return fmt.Errorf("permission denied on %s: user %s is not in group %s", path, who, group)
	}
	return fmt.Errorf("no daemon at %s (%w): start it with `tidegate serve`, or set TIDEGATE_SOCKET", path, err)
}

func (c *Client) drop(k *connection) {
	_ = k.Close()
	c.spare <- nil
}

// degraded is a decision without the daemon.
func degraded(reason string, refuse bool) *Decision {
	d := &Decision{Allowed: true, Verdict: "allow", Status: 200}
	if refuse {
		d = &Decision{Verdict: "shed", Status: 503, RetryAfter: time.Second}
	}
	d.Degraded, d.Reason, d.Unit = true, reason, "requests"
	return d
}

// report keeps what the daemon is to be told: a decision that missed it; what was to be told before; requests given up.
func (c *Client) report(reason string, unsaid Units, abandoned ...[2]int64) {
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
	c.news.Store(len(c.unsaid)+len(c.abandoned) > 0)
}

// settle keeps the breaker, and tells of the first failure at once, of others when it opens.
func (c *Client) settle(bad *fault, probe bool) {
	c.mu.Lock()
	failures, text := c.failures.Add(1), ""
	if bad == nil {
		failures, c.pause = 0, 0
		c.failures.Store(0)
		c.until.Store(0)
	} else if probe || failures == failuresMax {
		c.pause = when(2*c.pause < pauseMin, pauseMin, when(2*c.pause > pauseMax, pauseMax, 2*c.pause))
		c.until.Store(int64(time.Since(c.epoch)) + int64(float64(c.pause)*(0.8+0.4*random())))
	}
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

// random is from 0 to 1, and another in every process also where math/rand is not.
func random() float64 {
	var b [8]byte
	_, _ = rand.Read(b[:])
	return float64(binary.BigEndian.Uint64(b[:])>>11) / (1 << 53)
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

// A fault is what cannot be written or trusted: a word to count it by; again: the daemon has had nothing of the
// request; kept: the connection is as good as before. Reading throws it, and connection.ask catches it.
type fault struct {
	text, reason string
	again, kept  bool
}

var (
	errDoubt    = &fault{text: "doubtful bytes", reason: "protocol"}
	errLarge    = &fault{text: "it does not fit into a frame", reason: "protocol"}
	errLate     = &fault{text: "the daemon did not answer in time", reason: "timeout"}
	errOpen     = &fault{reason: "breaker"}
	errDisabled = &fault{reason: "disabled"}
)
