// Connections to the daemon: the pool, and the exchange of frames. A connection serves one caller at a time; callers
// that wait for one are served together, by the first exchange that follows. After any doubt it is closed.

package tidegate

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

const (
	connectionsMax, idleKept = 64, 2            // open at once; idle ones that stay open
	idleTime                 = 15 * time.Second // the others are closed after this time or at most twice that
	batchMax, batchBytesMax  = 64, 64 << 10     // requests written together when no connection was free
	silentMax                = 4_096            // releases that wait for a connection
	glance, retryConnect     = 5 * time.Millisecond, time.Millisecond
	busyTime                 = 100 * time.Millisecond // no new connection after the daemon refused one
	queuedTimeouts           = 10                     // that a request waits for its turn
	lastLook, lastLooks      = 200 * time.Microsecond, 3
)

// connections are the pool. Its lock is never held during I/O.
type connections struct {
	sync.Mutex
	session []byte
	opened  int64         // in total
	open    int           // now, with those being opened
	idle    []*connection // the last one was used last
	queue   []*request    // requests that wait for a connection, in order
	silent  int           // requests in queue without a reply
	reaper  *time.Timer
	busy    time.Time // the daemon last refused a connection
	replied time.Time // the daemon last replied to an exchange
}

// mayOpen reports, under the lock, whether to open a connection for the request. After the daemon refused one, open
// connections serve all requests for busyTime, and the refused request for good.
func (p *connections) mayOpen(q *request) bool {
	return p.open < connectionsMax && (p.open == 0 || !q.busy && time.Since(p.busy) > busyTime)
}

// next removes the first request from the queue that may use the connection. A request whose connection was refused may
// only use one with a reply before.
func (p *connections) next(k *connection) (r *request) {
	at := 0
	for at < len(p.queue) && p.queue[at].busy && !k.used {
		at++
	}
	if at < len(p.queue) {
		r = p.queue[at]
		copy(p.queue[1:], p.queue[:at])
		p.queue[0], p.queue = nil, p.queue[1:]
	}
	return r
}

type connection struct {
	net.Conn
	number, asked                   int64  // number of the connection; last id
	greeting, out                   []byte // greeting is sent with the first request, which saves a round trip
	in                              []byte // from..filled is unread
	from, filled                    int
	reply                           value
	armed                           time.Time  // its deadline
	flight                          []*request // in flight, by id; nil once answered
	left                            int        // unanswered ones in flight
	idleSince                       time.Time
	used, welcome, leaving, goodbye bool // leaving: after GOODBYE, or an error after which the daemon closes
}

// converse exchanges the request; again if the daemon has not processed it: once, or while it is busy.
func (c *Client) converse(q *request) *fault {
	for goodbye := false; ; {
		k := c.checkOut(q)
		if k != nil {
			c.lead(k, q)
		}
		bad := q.bad
		if q.op == opAcquire && q.asked != [2]int64{} && bad != nil && bad != errUnsent && !bad.kept && !bad.refused {
			c.report("", nil, q.asked)
		}
		if bad == nil || !bad.again || goodbye && bad.goodbye || q.busy && bad.busy && !q.pause(c.timeout) {
			return bad
		}
		goodbye, q.busy = goodbye || bad.goodbye, q.busy || bad.busy
		q.bad, q.asked, q.fresh = nil, [2]int64{}, !bad.busy
	}
}

// checkOut returns an idle connection or a new one; at the limit of connections, the next free one. It returns nil if
// another caller has exchanged the request, or with q.bad set.
func (c *Client) checkOut(q *request) *connection {
	p := &c.connections
	p.Lock()
	n := len(p.idle)
	switch {
	case n > 0:
		k := p.idle[n-1]
		p.idle = p.idle[:n-1]
		if !q.fresh {
			p.Unlock()
			k.add(q)
			return k
		}
		p.Unlock()
		_ = k.Close() // the daemon may have closed it, too
	case p.mayOpen(q):
		p.open++
		p.Unlock()
	case q.wanted == silent:
		if p.silent == silentMax {
			q.bad = errLate
		} else {
			queued := *q // the caller does not wait, and reuses q
			p.silent++
			p.queue = append(p.queue, &queued)
		}
		p.Unlock()
		return nil
	default:
		c.queueUp(q, len(p.queue))
		p.Unlock()
		return c.await(q)
	}
	return c.connect(q)
}

// queueUp inserts the request into the queue, under the lock.
func (c *Client) queueUp(q *request, at int) {
	if q.turn == nil {
		q.turn = make(chan *connection, 1)
	}
	q.sent, q.leads = time.Time{}, false
	p := &c.connections
	p.queue = append(p.queue, q)
	copy(p.queue[at+1:], p.queue[at:])
	p.queue[at] = q
}

// await is checkOut for a request in the queue.
func (c *Client) await(q *request) *connection {
	k := c.wait(q)
	if !q.leads {
		return nil
	}
	if q.setDeadline(c.timeout); k != nil {
		return k
	}
	return c.connect(q)
}

// wait waits for a connection, or permission to open one (nil, with leads). Otherwise another caller has exchanged the
// request, or the deadline has passed, which begins anew with each reply to requests before it.
func (c *Client) wait(q *request) *connection {
	timer := time.NewTimer(time.Until(q.deadline))
	defer timer.Stop()
	for began := time.Now(); ; {
		select {
		case k := <-q.turn:
			return k
		case <-timer.C:
		case <-q.ctx.Done():
		}
		p, now := &c.connections, time.Now()
		p.Lock()
		waiting, over, late := q.sent.IsZero(), ended(q.ctx, now) != nil, now.Sub(began) >= queuedTimeouts*c.timeout
		if more := c.timeout - now.Sub(p.replied); waiting && !over && !late && more > 0 {
			q.began = p.replied // the daemon serves those before it
			q.setDeadline(c.timeout)
			timer.Reset(more)
		} else if !q.leads && (waiting || over) {
			select {
			case <-q.turn: // the reply has just arrived
			default:
				q.expired, q.bad = true, errLate
				q.sent = when(waiting, now, q.sent)
			}
			p.Unlock()
			return nil
		}
		p.Unlock()
	}
}

// add assigns a request to the connection.
func (k *connection) add(q *request) {
	k.asked++
	k.flight = append(k.flight, q)
	q.asked = [2]int64{k.number, k.asked}
	k.left += when(q.wanted == silent, 0, 1)
}

// lead exchanges the requests on the connection, and returns it to the pool unless it failed.
func (c *Client) lead(k *connection, q *request) {
	bad := k.exchange(c, q)
	for _, r := range k.flight {
		if r != nil {
			c.finish(r, q, bad)
		}
	}
	if k.flight, k.left = k.flight[:0], 0; bad != nil || k.leaving || k.from != k.filled {
		_ = k.Close()
		c.vacate(bad != nil && bad.busy)
		return
	}
	k.used = true
	c.checkIn(k)
}

// finish ends a request and wakes its caller.
func (c *Client) finish(r, lead *request, bad *fault) {
	switch {
	case r == lead:
		r.bad = bad
	case r.wanted != silent:
		c.connections.Lock()
		if !r.expired {
			r.bad = bad
			r.turn <- nil
		}
		c.connections.Unlock()
	case bad != nil && r.lease != [2]int64{}:
		c.report("", nil, r.lease) // sent with a later request
	}
}

// checkIn passes a connection to waiting callers, or keeps it idle.
func (c *Client) checkIn(k *connection) {
	p, now := &c.connections, time.Now()
	p.Lock()
	p.replied = when(k.used, now, p.replied)
	lead, bytes := (*request)(nil), 0
	for len(k.flight) < batchMax && bytes < batchBytesMax {
		r := p.next(k)
		if r == nil {
			break
		} else if r.expired {
			continue
		}
		r.began, r.sent, bytes = when(k.used, now, r.began), now, bytes+len(r.body)
		k.add(r)
		switch { // the request with the latest deadline leads
		case r.wanted == silent:
			p.silent--
		case lead == nil || r.deadline.After(lead.deadline):
			lead = r
		}
	}
	switch {
	case lead != nil:
		lead.leads = true
		p.Unlock()
		lead.turn <- k
	case len(k.flight) == 0 && !k.used: // no request left for it; the daemon may have refused it
		p.Unlock()
		_ = k.Close()
		c.vacate(false)
	case len(k.flight) == 0:
		k.idleSince, p.idle = now, append(p.idle, k)
		if len(p.idle) > idleKept && p.reaper == nil {
			p.reaper = time.AfterFunc(idleTime, c.reap)
		}
		p.Unlock()
	default: // only releases
		p.Unlock()
		first := k.flight[0]
		first.setDeadline(c.timeout)
		c.lead(k, first)
		if first.bad != nil && first.lease != [2]int64{} {
			c.report("", nil, first.lease)
		}
	}
}

// vacate lets another caller open a connection in place of a closed one.
func (c *Client) vacate(busy bool) {
	p := &c.connections
	p.Lock()
	defer p.Unlock()
	if p.open--; busy {
		p.busy = time.Now()
	}
	for i, r := range p.queue {
		if !r.expired && r.wanted != silent && p.mayOpen(r) {
			p.queue = append(p.queue[:i], p.queue[i+1:]...)
			p.open++
			r.sent, r.leads = time.Now(), true
			r.turn <- nil
			return
		}
	}
}

// reap closes connections idle for idleTime, except idleKept.
func (c *Client) reap() {
	p, old := &c.connections, []*connection(nil)
	p.Lock()
	for p.reaper = nil; len(p.idle) > idleKept && time.Since(p.idle[0].idleSince) >= idleTime; p.open-- {
		old, p.idle = append(old, p.idle[0]), p.idle[1:]
	}
	if len(p.idle) > idleKept {
		p.reaper = time.AfterFunc(idleTime, c.reap)
	}
	p.Unlock()
	for _, k := range old {
		_ = k.Close()
	}
}

// connect opens a connection for the request, which also sends HELLO.
func (c *Client) connect(q *request) *connection {
	p, path := &c.connections, c.path
	if path == "" {
		path = filepath.Join(os.Getenv("XDG_RUNTIME_DIR"), "tidegate/tidegate.sock")
		if _, err := os.Stat(path); err != nil || !filepath.IsAbs(path) {
			path = "/run/tidegate/tidegate.sock"
		}
	}
	stream, err := net.Dial("unix", path) // does not block; EAGAIN: the backlog is full
	for errors.Is(err, syscall.EAGAIN) && time.Until(q.deadline) > retryConnect && q.ctx.Err() == nil {
		time.Sleep(retryConnect)
		stream, err = net.Dial("unix", path)
	}
	if err != nil {
		q.bad = unreachable(path, err)
		p.Lock()
		// Without a free descriptor the open connections serve the request, as if the daemon had refused another.
		short := p.open > 1 && (errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE))
		p.Unlock()
		q.bad.busy, q.bad.again = short, short
		c.vacate(short)
		return nil
	}
	p.Lock()
	if p.session == nil {
		p.session = make([]byte, 16)
		_, _ = rand.Read(p.session)
	}
	p.opened++
	info := fields{"client": appendText(nil, "go/"+Version), "session": append(aBin.append(nil, 16), p.session...),
		"pid": appendInt(nil, int64(os.Getpid())), "pool": appendText(nil, c.pool), "slots": appendInt(nil, c.slots),
		"connection": appendInt(nil, p.opened)}
	hello := info.append([]byte("\x94\x00\x00\x01"))
	k := &connection{Conn: stream, number: p.opened, in: make([]byte, 4+frameMax)}
	k.greeting = append(binary.BigEndian.AppendUint32(nil, uint32(len(hello))), hello...)
	if len(p.queue) == 0 || q.wanted == silent || q.busy {
		p.Unlock()
		k.add(q)
		return k
	}
	c.queueUp(q, 0) // one exchange serves all waiting requests
	p.Unlock()
	c.checkIn(k)
	return c.await(q)
}

// unreachable returns a fault with the cause and a help.
func unreachable(path string, err error) *fault {
	const none = "no daemon at %s (%v): start it with `tidegate serve`, or set TIDEGATE_SOCKET"
	bad := &fault{reason: "unreachable", text: fmt.Sprintf(none, path, err)}
	bad.absent = errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED)
	if longer, is := any(bad).(interface{ explain(path string, err error) }); is { // explain.go may be left out
		longer.explain(path, err)
	}
	return bad
}

// random returns a number from 0 to 1 that differs between processes, unlike math/rand before Go 1.20.
func random() float64 {
	var b [8]byte
	_, _ = rand.Read(b[:])
	return float64(binary.BigEndian.Uint64(b[:])>>11) / (1 << 53)
}

// ended returns the error of a context that has ended, even if its timer is late.
func ended(ctx context.Context, now time.Time) error {
	if at, has := ctx.Deadline(); has && !now.Before(at) {
		return context.DeadlineExceeded
	}
	return ctx.Err()
}

// exchange writes the requests on the connection and reads their replies. A fault ends the connection.
func (k *connection) exchange(c *Client, lead *request) (broken *fault) {
	defer func() {
		if thrown := recover(); thrown != nil {
			known, is := thrown.(*fault)
			broken = when(is, known, errMalformed)
		}
	}()
	k.out, k.greeting = append(k.out[:0], k.greeting...), nil
	for _, r := range k.flight {
		k.out = r.appendFrame(k.out)
	}
	// An earlier deadline of a previous request is extended only after it: setting one costs more than a write.
	now, unsent, cut, looks := lead.sent, k.out, false, 0
	if limit := lead.nextCheck(now); !k.armed.After(now) || k.armed.After(limit) {
		k.arm(limit)
	}
	for err := error(nil); len(unsent) > 0 || k.left > 0; {
		if len(unsent) > 0 {
			n := 0
			n, err = k.Write(unsent)
			unsent = unsent[n:]
		} else {
			err = k.read(c, lead)
		}
		if err == nil {
			continue
		} else if !errors.Is(err, os.ErrDeadlineExceeded) {
			if k.used && len(unsent) == len(k.out) {
				return errUnsent
			} else if len(unsent) > 0 && k.left > 0 { // read the replies sent before the end
				unsent, cut = nil, true
				continue
			}
			return &fault{text: "the daemon hung up", reason: "unreachable", again: k.goodbye, goodbye: k.goodbye}
		}
		now = time.Now()
		switch alone := len(k.flight) == 1; { // other requests may have more time than lead's context
		case now.Before(lead.deadline) && (!alone || lead.ctx.Err() == nil):
			k.arm(lead.nextCheck(now))
		case looks == lastLooks || len(unsent) > 0:
			return errLate
		default: // a reply may have arrived
			looks++
			k.arm(now.Add(lastLook))
		}
	}
	return when(cut, errUnsent, nil)
}

func (k *connection) arm(at time.Time) {
	k.armed = at
	_ = k.SetDeadline(at) // if it fails, the write fails too
}

// nextCheck returns the deadline, or an earlier time to check the context. More checks would slow down every call.
func (q *request) nextCheck(now time.Time) time.Time {
	next := now.Add(glance)
	return when(q.ctx.Done() != nil && next.Before(q.deadline), next, q.deadline)
}

// read reads one frame, and finishes the request that it answers.
func (k *connection) read(c *Client, lead *request) error {
	k.from, k.filled = 0, copy(k.in, k.in[k.from:k.filled])
	size := 4
	for known := false; k.filled < size || !known; {
		if k.filled < size {
			n, err := k.Read(k.in[k.filled:])
			if k.filled += n; n == 0 {
				return err
			}
		} else if size, known = size+int(binary.BigEndian.Uint32(k.in)), true; size > len(k.in) {
			panic(when(string(k.in[:4]) == "HTTP", errAdmin, errMalformed))
		}
	}
	k.from = size
	if rest := k.reply.decode(k.in[4:size:size], levelsMax); len(rest) > 0 {
		panic(errMalformed)
	}
	e := k.reply.expect('a').list
	kind, r, at := int(e[0].expect('u').n), (*request)(nil), -1
	if first := uint64(k.asked) - uint64(len(k.flight)) + 1; e[1].kind == 'u' && e[1].n-first < uint64(len(k.flight)) {
		at = int(e[1].n - first)
		r = k.flight[at]
	}
	answers, hello := r != nil && r.wanted != silent, !k.welcome && e[1].kind == 'u' && e[1].n == 0
	bad := (*fault)(nil)
	switch {
	case kind == isWelcome && hello && len(e) > 2 && e[2].kind == 'u' && e[2].n == 1:
		k.welcome = true
		return nil
	case kind == isGoodbye:
		k.leaving, k.goodbye = true, true
		return nil
	case kind == isError:
		bad = errorOf(e)
		if all := e[1].kind == 'n' && (!bad.refused || bad.reason == "forbidden"); !answers && !hello && !all {
			panic(&fault{text: bad.text, reason: "protocol"}) // about no request: doubtful
		} else if !answers || !bad.kept {
			bad.kept = false
			panic(bad)
		}
		k.leaving = k.leaving || bad.reason == "protocol" && e[2].n == 10 // internal: the daemon closes
	case !answers || kind != r.wanted:
		panic(&fault{text: fmt.Sprintf("the daemon sent an unexpected frame of kind %d", kind), reason: "protocol"})
	case kind == isDecision:
		r.decision.read(e[2:])
	default:
		r.ok = e[2].expect('b').n == 1
	}
	k.flight[at] = nil
	k.left--
	c.finish(r, lead, bad)
	return nil
}

// errorOf returns the fault of an ERROR: a refusal, or a failure of the daemon.
func errorOf(elements []value) *fault {
	f := &fault{text: "the daemon failed", reason: "protocol"}
	code, message := uint64(0), ""
	if len(elements) > 2 && elements[2].kind == 'u' {
		code = elements[2].n
	}
	if len(elements) > 3 {
		message = string(elements[3].bytes)
	}
	switch code {
	case 6, 7, 11:
		f.reason, f.refused, f.kept = map[uint64]string{6: "invalid", 7: "quota", 11: "not_allowed"}[code], true, true
	case 8: // the daemon is full; it has processed no request
		f.busy, f.again = true, true
	case 9:
		f.reason, f.refused = "forbidden", true
	case 5, 10:
		f.kept = true
	}
	f.text = fmt.Sprintf("the daemon answered ERROR %d %s: %.200q", code, f.reason, message)
	return f
}
