package tidegate

// The pool of connections: many callers, callers that give up, idle connections, releases without a connection.

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/tidegate/tidegate/clients/go/internal/peer"
)

// batches returns a daemon that processes all frames of one read together. The
// limit in each reply is the number of the user. It accepts at most some connections, and is busy for others.
func batches(t *testing.T, takes time.Duration, most int) (path string, largest *atomic.Int32) {
	t.Helper()
	folder, err := os.MkdirTemp("", "tg-")
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("unix", filepath.Join(folder, "s"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close(); os.RemoveAll(folder) })
	largest = &atomic.Int32{}
	serve := func(connection net.Conn) {
		defer connection.Close()
		read := make([]byte, 0, 1<<20)
		for {
			n, err := connection.Read(read[len(read):cap(read)])
			if err != nil {
				return
			}
			read = read[:len(read)+n]
			time.Sleep(takes)
			answers, count := []byte(nil), int32(0)
			for len(read) >= 4 && len(read) >= 4+int(binary.BigEndian.Uint32(read)) {
				size := 4 + int(binary.BigEndian.Uint32(read))
				message, err := peer.Decode(read[4:size])
				if read = read[size:]; err != nil {
					return
				}
				switch answer := []any(nil); message[0] {
				case uint64(0):
					answer = []any{0, message[1], 1, peer.Map{}}
					answers = append(answers, peer.Frame(peer.Encode(answer))...)
				case uint64(1), uint64(3):
					count++
					user, _ := strconv.Atoi(message[3].([]any)[0].([]any)[1].(string))
					answer = []any{1, message[1], 0, "own", user + 1, 1_000_000, 0, 0, 0}
					answers = append(answers, peer.Frame(peer.Encode(answer))...)
				}
			}
			read = append(make([]byte, 0, 1<<20), read...)
			if _, err := connection.Write(answers); err != nil {
				return
			}
			for most := largest.Load(); count > most && !largest.CompareAndSwap(most, count); most = largest.Load() {
			}
		}
	}
	go func() {
		for count := 0; ; count++ {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			if count < most {
				go serve(connection)
				continue
			}
			_, _ = connection.Write(peer.Frame(peer.Encode([]any{3, nil, 8, "busy"})))
			_ = connection.Close()
		}
	}()
	return filepath.Join(folder, "s"), largest
}

// 2 000 callers share 64 connections. With one request at a time on each, a round would take 31 batches of the daemon,
// twice the deadline.
func TestTwoThousandCallersGetDecisions(t *testing.T) {
	const callers, each, takes = 2_000, 3, 400 * time.Millisecond
	path, largest := batches(t, takes, connectionsMax)
	c := client(t, path, WithTimeout(callers/connectionsMax*takes/2))
	unjudged := atomic.Int32{}
	working, cancel := context.WithCancel(ctx)
	defer cancel()
	var all sync.WaitGroup
	for i := 0; i < callers; i++ {
		all.Add(1)
		go func(i int) {
			defer all.Done()
			asked := when(i%2 == 0, ctx, working)
			for j := 0; j < each; j++ {
				d := c.Hit(asked, "api", Attributes{{"user", i}})
				if d.Degraded {
					unjudged.Add(1)
				} else if d.Limit != uint64(i+1) {
					t.Errorf("the reply to %d went to %d", d.Limit-1, i)
				}
			}
		}(i)
	}
	all.Wait()
	stats := c.Stats()
	t.Logf("%d of %d were not judged, %+v; up to %d together", unjudged.Load(), callers*each, stats, largest.Load())
	if unjudged.Load() > callers*each/60 || stats.BreakerOpen || stats.Missed["breaker"] != 0 || stats.Connections > connectionsMax {
		t.Fatal("too many")
	}
	if most := largest.Load(); most < 2 || most > batchMax {
		t.Fatalf("%d requests together", most)
	}
}

// While the daemon serves the callers before them, queued ones wait for their turn, longer than the timeout.
func TestCallersWaitForTheirTurn(t *testing.T) {
	const callers, timeout = 20 * batchMax, 400 * time.Millisecond
	path, _ := batches(t, timeout/10, 1)
	c := client(t, path, WithTimeout(timeout))
	c.Hit(ctx, "api", u1)
	var all sync.WaitGroup
	for i := 0; i < callers; i++ {
		all.Add(1)
		go func() {
			defer all.Done()
			c.Hit(ctx, "api", u1)
		}()
	}
	all.Wait()
	if missed := c.Stats().Missed; len(missed) != 0 {
		t.Fatalf("%v were not judged", missed)
	}
}

func TestWithoutFreeDescriptorOpenConnectionsServeAllCallers(t *testing.T) {
	path, _ := batches(t, 5*time.Millisecond, connectionsMax)
	c := client(t, path)
	if d := c.Hit(ctx, "api", Attributes{{"user", 1}}); d.Degraded {
		t.Fatalf("%+v", d)
	}
	free, err := syscall.Dup(0)
	usual := syscall.Rlimit{}
	if err != nil || syscall.Close(free) != nil || syscall.Getrlimit(syscall.RLIMIT_NOFILE, &usual) != nil {
		t.Fatal(err)
	}
	_ = syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: uint64(free), Max: usual.Max})
	defer func() { _ = syscall.Setrlimit(syscall.RLIMIT_NOFILE, &usual) }()
	var all sync.WaitGroup
	for i := 0; i < 20; i++ {
		all.Add(1)
		go func() {
			defer all.Done()
			if d := c.Hit(ctx, "api", Attributes{{"user", 1}}); d.Degraded {
				t.Errorf("%+v", d)
			}
		}()
	}
	all.Wait()
}

// If the daemon accepts no more connections, open ones serve all callers.
func TestADaemonThatIsBusyForMoreConnections(t *testing.T) {
	t.Parallel()
	const callers, most = 300, 2
	path, _ := batches(t, 5*time.Millisecond, most)
	c := client(t, path)
	var all sync.WaitGroup
	for i := 0; i < callers; i++ {
		all.Add(1)
		go func(i int) {
			defer all.Done()
			for j := 0; j < 3; j++ {
				if d := c.Acquire(ctx, "api", Attributes{{"user", i}}); d.Degraded || d.Limit != uint64(i+1) {
					t.Errorf("%d: %+v", i, d)
				}
			}
		}(i)
	}
	all.Wait()
	if stats := c.Stats(); stats.Connections > most || len(stats.Missed) != 0 || stats.BreakerOpen {
		t.Fatalf("%+v", stats)
	}
}

// A connection opened for callers that others have served meanwhile is closed: the daemon may have refused it.
func TestAnUnusedConnectionIsClosed(t *testing.T) {
	t.Parallel()
	path, _ := batches(t, 0, connectionsMax)
	c := client(t, path)
	stream, other := net.Pipe()
	defer other.Close()
	_ = stream.SetDeadline(time.Now())
	c.connections.open = 1
	c.checkIn(&connection{Conn: stream})
	_, err := stream.Write([]byte{0})
	if !errors.Is(err, io.ErrClosedPipe) || c.connections.open != 0 || len(c.connections.idle) != 0 {
		t.Fatalf("%v, %d open", err, c.connections.open)
	}
	if d := c.Acquire(ctx, "api", u1); d.Degraded || len(c.connections.idle) != 1 {
		t.Fatalf("%+v", d)
	}
}

// crowded returns a client whose only connection is in use, and callers in the queue.
func crowded(t *testing.T, c *Client, callers int, ask func(i int) *Decision) (k *connection, answers chan *Decision) {
	t.Helper()
	c.Acquire(ctx, "api", u1)
	k = c.lone(t)
	c.connections.Lock()
	c.connections.open = connectionsMax
	c.connections.Unlock()
	answers = make(chan *Decision, callers)
	for i := 0; i < callers; i++ {
		go func(i int) { answers <- ask(i) }(i)
		waiting(t, c, i+1)
	}
	return k, answers
}

func waiting(t *testing.T, c *Client, count int) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d callers", count), func() bool {
		c.connections.Lock()
		defer c.connections.Unlock()
		return len(c.connections.queue) == count
	})
}

func TestCallersWithoutAConnectionAreServedTogether(t *testing.T) {
	t.Parallel()
	p := played(t, grant)
	c := client(t, p.Path)
	k, answers := crowded(t, c, 10, func(int) *Decision { return c.Acquire(ctx, "api", u1) })
	c.checkIn(k)
	leases := map[uint64]bool{}
	for i := 0; i < 10; i++ {
		d := <-answers
		leases[d.Lease] = true
		d.Release()
	}
	if len(leases) != 10 {
		t.Fatalf("%v", leases)
	}
	releases(t, p, 10)
	hellos := 0
	for _, message := range p.Seen() {
		if message[0] == uint64(0) {
			hellos++
		}
	}
	if hellos != 1 {
		t.Fatalf("%d connections", hellos)
	}
}

// A fault of an exchange ends all its requests, and counts once; possible grants are reported.
func TestCallersServedTogetherFailTogether(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		script peer.Script
		reason string
	}{
		"doubt":   {raw(0, 0, 0, 1, 0xC1), "protocol"},
		"the end": {func(connection net.Conn, _ []any) []any { _ = connection.Close(); return nil }, "unreachable"},
		"silence": {func(net.Conn, []any) []any { return nil }, "timeout"},
		"refusal": {func(_ net.Conn, m []any) []any { return []any{3, m[1], 7, "quota"} }, "quota"},
	} {
		p := played(t, reply(allow...))
		c := client(t, p.Path)
		k, answers := crowded(t, c, 5, func(int) *Decision { return c.Acquire(ctx, "api", u1) })
		p.Play(row.script)
		if row.reason == "timeout" {
			c.timeout = time.Second
		}
		c.checkIn(k)
		for i := 0; i < 5; i++ {
			if d := <-answers; d.Reason != row.reason {
				t.Errorf("%s: %+v", name, d)
			}
		}
		if n := c.failures.Load(); n > 1 {
			t.Errorf("%s: %d failures", name, n)
		}
		if n := len(c.abandoned); n != when(row.reason == "quota", 0, 5) {
			t.Errorf("%s: %d were abandoned", name, n)
		}
	}
}

// A caller that gives up in the queue is no failure; a request in flight is reported.
func TestCancelledCallers(t *testing.T) {
	t.Parallel()
	held := make(chan struct{})
	p := played(t, reply(allow...))
	c := client(t, p.Path)
	working, cancel := context.WithCancel(ctx)
	k, answers := crowded(t, c, 4, func(i int) *Decision { return c.Acquire(when(i < 3, working, ctx), "api", u1) })
	cancel()
	for i := 0; i < 3; i++ {
		if d := <-answers; d.Err() != context.Canceled {
			t.Fatalf("%+v", d)
		}
	}
	c.checkIn(k)
	if d := <-answers; d.Degraded || !d.Allowed || len(c.abandoned) != 0 {
		t.Fatalf("%+v %v", d, c.abandoned)
	}
	c.connections.open = 1
	working, cancel = context.WithCancel(ctx)
	k, answers = crowded(t, c, 3, func(i int) *Decision { return c.Acquire(when(i == 0, working, ctx), "api", u1) })
	p.Play(func(_ net.Conn, message []any) []any {
		<-held
		return append([]any{1, message[1]}, allow...)
	})
	c.checkIn(k)
	eventually(t, "the exchange", func() bool { return len(p.Seen()) > 3 })
	cancel()
	d := <-answers
	close(held)
	for i := 0; i < 2; i++ {
		if other := <-answers; other.Degraded || d.Err() != context.Canceled {
			t.Fatalf("%+v %+v", d, other)
		}
	}
	if len(c.abandoned) != 1 {
		t.Fatalf("%v", c.abandoned)
	}
}

func TestAReleaseWithoutAConnectionIsWrittenByTheNextExchange(t *testing.T) {
	t.Parallel()
	p := played(t, grant)
	c := client(t, p.Path)
	held := []*Decision{c.Acquire(ctx, "api", u1), c.Acquire(ctx, "api", u1), c.Acquire(ctx, "api", u1)}
	k, answers := crowded(t, c, 1, func(int) *Decision { return c.Acquire(ctx, "api", u1) })
	held[0].Release()
	held[1].Release()
	c.checkIn(k)
	if d := <-answers; d.Degraded {
		t.Fatalf("%+v", d)
	}
	releases(t, p, 2)
	// Alone they are written by the caller that returns the connection.
	k = c.lone(t)
	held[2].Release()
	c.checkIn(k)
	releases(t, p, 3)
	if len(c.abandoned) != 0 {
		t.Fatalf("%v", c.abandoned)
	}
	// On a closed connection they are reported with the next request.
	last := c.Acquire(ctx, "api", u1)
	k = c.lone(t)
	last.Release()
	k.Conn = &unwritable{Conn: k.Conn}
	c.checkIn(k)
	if len(c.abandoned) != 1 {
		t.Fatalf("%v", c.abandoned)
	}
}

func TestIdleConnectionsAreClosedDownToAFew(t *testing.T) {
	t.Parallel()
	p := played(t, reply(allow...))
	c := client(t, p.Path)
	for i := 0; i < 10; i++ {
		q := newRequest(ctx, opHit, isDecision, "api", u1)
		q.deadline, q.fresh = time.Now().Add(patient), true
		c.connections.Lock()
		c.connections.open++
		c.connections.Unlock()
		k := c.connect(q)
		k.flight, k.left, k.used = nil, 0, true
		c.checkIn(k)
	}
	if c.connections.reaper == nil {
		t.Fatal("no time is set")
	}
	for i, k := range c.connections.idle[:7] {
		k.idleSince = time.Now().Add(-idleTime - time.Duration(7-i)*time.Second)
	}
	c.reap()
	if n := c.Stats().Connections; n != 3 || c.connections.reaper == nil {
		t.Fatalf("%d connections", n)
	}
	c.connections.idle[0].idleSince = time.Now().Add(-idleTime)
	if c.reap(); c.Stats().Connections != idleKept || c.connections.reaper != nil {
		t.Fatalf("%d connections", c.Stats().Connections)
	}
}

// After a GOODBYE without a reply the request was not processed: retry once on another connection, also a new one.
func TestAGoodbyeInsteadOfTheReply(t *testing.T) {
	t.Parallel()
	goodbye := peer.Frame(peer.Encode([]any{4, nil, "draining"}))
	for _, op := range []func(*Client) *Decision{
		func(c *Client) *Decision { return c.Acquire(ctx, "api", u1) }, func(c *Client) *Decision { return c.Hit(ctx, "api", u1) },
		func(c *Client) *Decision { return c.Peek(ctx, "api", u1) },
	} {
		for _, times := range []int32{1, 2} {
			left := atomic.Int32{}
			left.Store(times)
			p := played(t, func(connection net.Conn, message []any) []any {
				if left.Add(-1) < 0 {
					return append([]any{1, message[1]}, limit...)
				}
				_, _ = connection.Write(goodbye)
				_ = connection.Close()
				return nil
			})
			c := client(t, p.Path)
			if d := op(c); d.Degraded != (times > 1) || c.failures.Load() != 0 {
				t.Fatalf("%d times: %+v, %d failures", times, d, c.failures.Load())
			}
		}
	}
}

// openIdle opens idle connections.
func openIdle(c *Client, count int) {
	for ; count > 0; count-- {
		taken := c.connections.idle
		c.connections.idle = nil
		hits(c, 1)
		c.connections.idle = append(c.connections.idle, taken...)
	}
}

// After a restart of the daemon every idle connection is closed. A request opens a new one instead of trying the next.
func TestRetriesAfterManyClosedIdleConnections(t *testing.T) {
	t.Parallel()
	p := played(t, reply(allow...))
	c := client(t, p.Path)
	openIdle(c, 10)
	p.HangUp()
	equal(t, reasons(hits(c, 3)...), []string{"", "", ""})
}

// Nor does it take another connection that is about to close after one ended with a GOODBYE.
func TestRetriesAfterManyGoodbyes(t *testing.T) {
	t.Parallel()
	goodbye := peer.Frame(peer.Encode([]any{4, nil, "idle"}))
	p := played(t, reply(allow...))
	c := client(t, p.Path)
	openIdle(c, 10)
	p.Play(func(connection net.Conn, message []any) []any {
		if message[1] != uint64(1) { // the first on a new connection
			_, _ = connection.Write(goodbye)
			_ = connection.Close()
			return nil
		}
		return append([]any{1, message[1]}, limit...)
	})
	for _, d := range hits(c, 1) {
		if d.Verdict != "limit" {
			t.Fatalf("%+v", d)
		}
	}
}

// A daemon that refuses a connection before it reads sends the cause.
func TestARefusalBeforeTheRequestWasReadCounts(t *testing.T) {
	t.Parallel()
	folder, err := os.MkdirTemp("", "tg-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(folder)
	listener, err := net.Listen("unix", filepath.Join(folder, "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	c := client(t, listener.Addr().String())
	q := newRequest(ctx, opHit, isDecision, "api", u1)
	q.decision, q.sent, q.deadline = &Decision{}, time.Now(), time.Now().Add(patient)
	q.write(c)
	c.connections.open = 1
	k := c.connect(q)
	connection, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	_, _ = connection.Write(peer.Frame(peer.Encode([]any{3, nil, 9, "no"})))
	_ = connection.Close()
	if c.lead(k, q); q.bad == nil || q.bad.reason != "forbidden" || !q.bad.refused {
		t.Fatalf("%+v", q.bad)
	}
}

// A full backlog for a short time is no failure.
func TestWaitsForAFullBacklog(t *testing.T) {
	t.Parallel()
	folder, err := os.MkdirTemp("", "tg-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(folder)
	path := filepath.Join(folder, "s")
	listener := backlogOfNone(t, path)
	defer listener.Close()
	for { // until it is full
		stream, err := net.DialTimeout("unix", path, time.Second)
		if err != nil {
			break
		}
		defer stream.Close()
	}
	time.AfterFunc(50*time.Millisecond, func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				var size [4]byte
				for {
					if _, err := io.ReadFull(connection, size[:]); err != nil {
						return
					}
					payload := make([]byte, binary.BigEndian.Uint32(size[:]))
					_, _ = io.ReadFull(connection, payload)
					message, _ := peer.Decode(payload)
					answer := []any{0, 0, 1, peer.Map{}}
					if message[0] != uint64(0) {
						answer = append([]any{1, message[1]}, limit...)
					}
					_, _ = connection.Write(peer.Frame(peer.Encode(answer)))
				}
			}()
		}
	})
	c := client(t, path)
	if d := hits(c, 1)[0]; d.Verdict != "limit" {
		t.Fatalf("%+v", d)
	}
}

// -- leases and panics -------------------------------------------------------------------------------------------------

// A panic passes `defer d.Release()` unchanged, with the outcome Failed.
func TestADeferredReleaseReportsAPanic(t *testing.T) {
	t.Parallel()
	p := played(t, grant)
	c := client(t, p.Path)
	for i, thrown := range []any{"boom", fmt.Errorf("an error"), context.Canceled} {
		func() {
			defer func() {
				if got := recover(); got != thrown {
					t.Errorf("%v became %v", thrown, got)
				}
			}()
			d := c.Acquire(ctx, "api", u1)
			defer d.Release()
			panic(thrown)
		}()
		if last := releases(t, p, i+1)[i]; last[2] != uint64(Failed) {
			t.Errorf("%v: the outcome %v", thrown, last)
		}
	}
	func() {
		defer func() {
			if got := recover(); got != "boom" {
				t.Errorf("%v", got)
			}
		}()
		var none *Decision
		defer none.Release()
		defer (&Decision{}).Release()
		d := c.Acquire(ctx, "api", u1)
		d.SetOutcome(Dropped)
		defer d.Release()
		defer d.Release()
		panic("boom")
	}()
	if last := releases(t, p, 4); len(last) != 4 || last[3][2] != uint64(Dropped) {
		t.Errorf("%v", last)
	}
}

func TestOfSetsTheRefundedGrant(t *testing.T) {
	t.Parallel()
	p := played(t, grant)
	c := client(t, p.Path)
	granted := c.Acquire(ctx, "api", u1, Idem("order-17"))
	last := func() any { seen := p.Seen(); return seen[len(seen)-1][5] }
	long := strings.Repeat("k", 30) + "~" + sha(strings.Repeat("k", 100))
	for _, row := range []struct {
		of   CallOption
		want any
	}{
		{Of(granted), granted.Lease}, {Of(uint64(78)), 78}, {Of("order-17"), peer.Bin("order-17")},
		{Of(strings.Repeat("k", 100)), peer.Bin(long)}, {Of(&Decision{idem: "x"}), peer.Bin("x")},
	} {
		if !c.Charge(ctx, "api", u1, Cost(-5), row.of) {
			t.Fatal("not done")
		}
		equal(t, last(), map[string]any{"of": row.want})
	}
	c.Charge(ctx, "api", u1, Costs(Units{"tokens": -5}), Of("x"), Idem("y"))
	equal(t, last(), map[string]any{"of": peer.Bin("x"), "idem": peer.Bin("y")})
	before := len(p.Seen())
	for _, none := range []CallOption{Of(""), Of(uint64(0)), Of(uint64(1 << 63)), Of((*Decision)(nil)), Of(&Decision{})} {
		if c.Charge(ctx, "api", u1, Cost(-5), none) || len(p.Seen()) != before {
			t.Fatal("it names nothing")
		}
	}
	if c.Stats().Refused["invalid"] != 5 {
		t.Fatalf("%+v", c.Stats())
	}
}
