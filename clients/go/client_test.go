package tidegate

// The promises of a client, against a scripted daemon.

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tidegate/tidegate/clients/go/internal/logs"
	"github.com/tidegate/tidegate/clients/go/internal/peer"
)

// slack is the delay beyond a deadline that a busy machine may cause.
const slack = 2 * time.Second

func TestHelloGoesOutWithTheFirstRequest(t *testing.T) {
	t.Parallel()
	p := played(t, reply(allow...))
	c := client(t, p.Path, WithPool("web"), WithSlots(8))
	if d := c.Acquire(ctx, "api", u1); d.Rule != "per-user" || d.Remaining != 39 || d.Window != 2*time.Second {
		t.Fatalf("%+v", d)
	}
	c.Hit(ctx, "api", u1, Cost(3), Priority("post"))
	c.Peek(ctx, "api", u1, Idem("x"), Queued(500*time.Millisecond), MaxWait(0), Costs(Units{"tokens": 5}))
	c.Hit(ctx, "api", u1, Descriptors(Attributes{{"plan", "free"}}))
	seen := p.Seen()
	info := seen[0][3].(map[string]any)
	if len(info["session"].(peer.Bin)) != 16 {
		t.Fatal("no session")
	}
	delete(info, "session")
	equal(t, seen, []any{
		[]any{0, 0, 1, map[string]any{"client": "go/" + Version, "pid": os.Getpid(), "pool": "web", "slots": 8, "connection": 1}},
		[]any{1, 1, "api", []any{[]any{"user", "u1"}}, 1},
		[]any{3, 2, "api", []any{[]any{"user", "u1"}}, 3, "post"},
		[]any{4, 3, "api", []any{[]any{"user", "u1"}}, map[string]any{"tokens": 5}, nil,
			map[string]any{"idem": peer.Bin("x"), "queued_us": 500_000, "max_wait_us": 0}},
		[]any{3, 4, "api", []any{[]any{"user", "u1"}, []any{"plan", "free"}}, 1},
	})
}

func TestConnectsWithTheFirstRequest(t *testing.T) {
	t.Parallel()
	p := played(t, grant)
	c := client(t, p.Path)
	time.Sleep(10 * time.Millisecond)
	if len(p.Seen()) != 0 || c.Stats().Connections != 0 {
		t.Fatal("something was")
	}
}

func TestConnectionsAreUsedAgainAndClosed(t *testing.T) {
	t.Parallel()
	p := played(t, reply(allow...))
	c := client(t, p.Path)
	hits(c, 50)
	if n := c.Stats().Connections; n != 1 {
		t.Fatalf("%d connections", n)
	}
	c.Close()
	c.Close()
	if n := c.Stats().Connections; n != 0 {
		t.Fatalf("%d connections", n)
	}
	equal(t, reasons(hits(c, 1)...), []string{""}) // it may be used again
}

func TestConnectionsAreBounded(t *testing.T) {
	t.Parallel()
	p := played(t, func(_ net.Conn, message []any) []any {
		time.Sleep(time.Millisecond)
		return append([]any{1, message[1]}, allow...)
	})
	c := client(t, p.Path)
	var all sync.WaitGroup
	for i := 0; i < 8*connectionsMax; i++ {
		all.Add(1)
		go func() {
			defer all.Done()
			if d := c.Hit(ctx, "api", u1); d.Degraded {
				t.Errorf("degraded: %s", d.Reason)
			}
		}()
	}
	all.Wait()
	if n := c.Stats().Connections; n > connectionsMax {
		t.Fatalf("%d connections", n)
	}
}

func TestACallWithoutAFreeConnectionWaitsUntilItsDeadline(t *testing.T) {
	t.Parallel()
	const timeout = 50 * time.Millisecond
	p := played(t, reply(allow...))
	c := client(t, p.Path)
	hits(c, 1)
	k := c.lone(t)
	c.connections.open = connectionsMax // as if all were in use
	c.timeout = timeout
	began := time.Now()
	equal(t, reasons(hits(c, 1)...), []string{"timeout"})
	if took := time.Since(began); took < timeout || took > timeout+slack {
		t.Fatalf("it took %v", took)
	}
	if c.failures.Load() != 0 {
		t.Fatal("the daemon has not failed")
	}
	c.timeout = patient
	time.AfterFunc(10*time.Millisecond, func() { c.checkIn(k) })
	equal(t, reasons(hits(c, 1)...), []string{""})
	c.connections.open = 1
}

func wrong(elements ...any) peer.Script {
	return func(_ net.Conn, message []any) []any { return elements }
}

func raw(data ...byte) peer.Script {
	return func(c net.Conn, _ []any) []any {
		_, _ = c.Write(data)
		return nil
	}
}

func TestRepliesInPiecesLargeAndWithMore(t *testing.T) {
	t.Parallel()
	p := played(t, func(c net.Conn, message []any) []any {
		elements := append(append([]any{1, message[1]}, limit...), nil, nil, nil, peer.Map{{"new", 1}}, "later", peer.Map{{"k", []any{1}}})
		for _, b := range peer.Frame(peer.Encode(elements)) {
			_, _ = c.Write([]byte{b})
		}
		return nil
	})
	c := client(t, p.Path)
	if d := hits(c, 1)[0]; d.Allowed || d.RetryAfter != 50*time.Millisecond || d.Degraded {
		t.Fatalf("%+v", d)
	}
	var entries []any
	for i := 0; i < 150; i++ {
		entries = append(entries, []any{strings.Repeat("rule", 20), 1, 2, 3, 4})
	}
	p.Play(reply(append(append([]any{}, allow...), nil, nil, entries)...))
	equal(t, reasons(hits(c, 2)...), []string{"", ""})
	if c.Stats().Connections != 1 {
		t.Fatal("another connection")
	}
}

// greeted returns a daemon that starts every connection with these bytes.
func greeted(t *testing.T, frames ...[]any) string {
	t.Helper()
	folder, err := os.MkdirTemp("", "tg-")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(folder, "s")
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close(); os.RemoveAll(folder) })
	go func() {
		var kept []net.Conn // keeps it alive, so that it is not closed
		defer func() { runtime.KeepAlive(kept) }()
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			kept = append(kept, connection)
			_, _ = connection.Read(make([]byte, 4096)) // the request is there
			for _, frame := range frames {
				_, _ = connection.Write(peer.Frame(peer.Encode(frame)))
			}
		}
	}()
	return path
}

// A request that could not be written by the deadline is not written later.
func TestWritesNothingAfterTheDeadline(t *testing.T) {
	t.Parallel()
	p := played(t, reply(allow...))
	c := client(t, p.Path)
	hits(c, 1)
	k := c.lone(t)
	defer k.Close()
	full := &unwritable{Conn: k.Conn}
	k.Conn = full
	q := newRequest(ctx, opHit, isDecision, "api", u1)
	q.decision, q.sent = &Decision{}, time.Now()
	q.deadline = q.sent.Add(300 * time.Millisecond)
	q.write(c)
	k.add(q)
	if bad := k.exchange(c, q); bad != errLate || full.last.After(q.deadline) {
		t.Fatalf("%+v, the last write %v behind it", bad, full.last.Sub(q.deadline))
	}
}

// A release does not wait, even if the daemon's buffers are full.
func TestAReleaseDoesNotWait(t *testing.T) {
	t.Parallel()
	p := played(t, grant)
	c := client(t, p.Path)
	d := c.Acquire(ctx, "api", u1)
	k := c.lone(t)
	k.Conn = &unwritable{Conn: k.Conn}
	c.checkIn(k)
	began := time.Now()
	d.Release()
	if took := time.Since(began); took > patient/2 {
		t.Fatalf("it took %v", took)
	}
	c.Acquire(ctx, "api", u1)
	seen := p.Seen()
	equal(t, seen[len(seen)-1][6], map[string]any{"missed": map[string]any{}, "abandoned": []any{[]any{1, 1}}})
}

// unwritable returns a connection with full buffers.
type unwritable struct {
	net.Conn
	until, last time.Time
}

func (u *unwritable) SetDeadline(at time.Time) error { u.until = at; return nil }

func (u *unwritable) Write([]byte) (int, error) {
	u.last = time.Now()
	time.Sleep(time.Until(u.until))
	return 0, os.ErrDeadlineExceeded
}

func TestADaemonThatDoesNotAccept(t *testing.T) {
	t.Parallel()
	folder, err := os.MkdirTemp("", "tg-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(folder)
	path := filepath.Join(folder, "s")
	full := backlogOfNone(t, path)
	defer full.Close()
	missed := Units{}
	for i := 0; i < 6; i++ { // the first ones wait in the backlog, for the others it is full
		c := client(t, path, WithTimeout(100*time.Millisecond))
		began := time.Now()
		missed[hits(c, 1)[0].Reason]++
		if took := time.Since(began); took > 100*time.Millisecond+slack {
			t.Fatalf("it took %v", took)
		}
	}
	if missed["timeout"] == 0 || missed["unreachable"] == 0 || len(missed) != 2 {
		t.Fatalf("%v", missed)
	}
}

func TestAReplyThatIsThereWhenTheDeadlineHasPassedCounts(t *testing.T) {
	t.Parallel()
	p := played(t, reply(limit...))
	c := client(t, p.Path)
	hits(c, 1)
	k := c.lone(t)
	defer k.Close()
	// The process sleeps after the write: the reply arrives, and the deadline passes.
	q := newRequest(ctx, opHit, isDecision, "api", u1)
	q.decision, q.sent, q.deadline = &Decision{}, time.Now(), time.Now().Add(patient)
	q.write(c)
	k.add(q)
	sleeper := &asleep{Conn: k.Conn}
	k.Conn = sleeper
	sleeper.wake = func() { q.deadline = time.Now().Add(-time.Second) }
	if bad := k.exchange(c, q); bad != nil || q.decision.Verdict != "limit" {
		t.Fatalf("%+v %+v", bad, q.decision)
	}
}

// asleep wakes after the arrival of the reply, when the deadline of its first read has passed.
type asleep struct {
	net.Conn
	wake  func()
	slept bool
}

func (a *asleep) Read(b []byte) (int, error) {
	if !a.slept {
		a.slept = true
		time.Sleep(100 * time.Millisecond)
		a.wake()
		return 0, os.ErrDeadlineExceeded
	}
	return a.Conn.Read(b)
}

// ERRORs about the client or its request refuse, regardless of RefuseOnFailure.
func TestAnErrorOfTheClientIsARefusal(t *testing.T) {
	t.Parallel()
	for code, reason := range map[int]string{6: "invalid", 7: "quota", 9: "forbidden", 11: "not_allowed"} {
		p := played(t, func(_ net.Conn, message []any) []any { return []any{3, message[1], code, "the cause"} })
		logged := &logs.Lines{}
		c := client(t, p.Path, WithLogger(logged), WithFallback("1000/s"))
		for i := 0; i < 5; i++ {
			d := c.Acquire(ctx, "api", u1)
			if d.Allowed || d.Degraded || d.Verdict != "shed" || d.Status != 503 || d.Reason != reason || d.Err() == nil {
				t.Fatalf("%d: %+v", code, d)
			}
			if errors.Is(d.Err(), ErrInvalid) != (code == 6) || !strings.Contains(d.Err().Error(), "the cause") {
				t.Fatalf("%d: %v", code, d.Err())
			}
		}
		stats := c.Stats()
		if connections := when(code == 9, 0, 1); stats.Connections != connections || stats.BreakerOpen || len(stats.Missed) != 0 ||
			stats.Refused[reason] != 5 {
			t.Fatalf("%d: %+v", code, stats)
		}
		if lines := logged.All(); len(lines) != 1 || !strings.Contains(lines[0], "the cause") {
			t.Fatalf("%v", lines)
		}
	}
}

func TestAnyValueIsSent(t *testing.T) {
	t.Parallel()
	p := played(t, reply(allow...))
	c := client(t, p.Path)
	var nilLines *logs.Lines
	text, pointer := "Zoë", new(int)
	for value, want := range map[any]string{
		nil: "", "": "", "\xff": "�", "a\x00b": "a\x00b", 1.5: "1.5", true: "true", -7: "-7", nilLines: "", &text: "Zoë",
		pointer: "0", struct{ X any }{nil}: "{<nil>}", error(os.ErrClosed): os.ErrClosed.Error(), time.Second: "1s",
		strings.Repeat("🌊", 240): strings.Repeat("🌊", 240),
	} {
		if d := c.Hit(ctx, "api", Attributes{{"v", value}}); d.Degraded {
			t.Fatalf("%v: %+v", value, d)
		}
		seen := p.Seen()
		pairs := seen[len(seen)-1][3].([]any)[0].([]any)
		if want == "" && len(pairs) == 0 {
			continue
		}
		equal(t, pairs, []any{"v", want})
	}
	for _, value := range []any{[]byte("\xff\xfe"), strings.Repeat("x", 1<<20), strings.Repeat("🌊", 1<<18)} {
		if d := c.Hit(ctx, "api", Attributes{{"v", value}}); d.Degraded {
			t.Fatalf("%T: %+v", value, d)
		}
	}
	if missed := c.Stats().Missed; len(missed) != 0 {
		t.Fatalf("%v", missed)
	}
}

type panics struct{}

func (panics) String() string { panic("odd") }

func TestLongValuesStayDistinctAndFramesFit(t *testing.T) {
	t.Parallel()
	p := played(t, reply(allow...))
	c := client(t, p.Path)
	long := strings.Repeat("é", 5_000)
	sent := map[string]bool{}
	for _, end := range []string{"a", "b"} {
		c.Hit(ctx, "api", Attributes{{"v", long + end}})
		seen := p.Seen()
		value := seen[len(seen)-1][3].([]any)[0].([]any)[1].(string)
		if len(value) > valueMax || !strings.HasPrefix(value, "éé") || len(value) != valueKept+digested {
			t.Fatalf("%d bytes", len(value))
		}
		sent[value] = true
	}
	if len(sent) != 2 {
		t.Fatal("two are one")
	}
	var many []Attributes
	for i := 0; i < 8; i++ {
		var a Attributes
		for j := 0; j < 16; j++ {
			a = append(a, [2]any{fmt.Sprintf("k%d", j), fmt.Sprint(i, j) + strings.Repeat("v", 2_000)})
		}
		many = append(many, a)
	}
	if d := c.Hit(ctx, "api", many[0], Descriptors(many[1:]...)); d.Degraded {
		t.Fatalf("%+v", d)
	}
}

// A report never turns a value into its digest: it waits for a shorter request.
func TestAReportWaitsForRoom(t *testing.T) {
	t.Parallel()
	p := played(t, raw(0, 0, 0, 1, 0xC1))
	c := client(t, p.Path)
	for i := int64(0); i < abandonedMax+10; i++ {
		c.report("", nil, [2]int64{1 << 40, 1<<40 + i})
	}
	hits(c, 1)
	p.Play(reply(allow...))
	full := Attributes{}
	for i := 0; i < 14; i++ {
		full = append(full, [2]any{fmt.Sprint("k", i), strings.Repeat("v", 1_000)})
	}
	last := func() []any { seen := p.Seen(); return seen[len(seen)-1] }
	if c.Hit(ctx, "api", full); len(last()) != 5 || strings.Contains(fmt.Sprint(last()), "~") {
		t.Fatalf("%.500v", last())
	}
	if c.Hit(ctx, "api", u1); len(last()) != 7 || len(last()[6].(map[string]any)["abandoned"].([]any)) != abandonedMax {
		t.Fatalf("%.500v", last())
	}
}

// Invalid input is never allowed: the client refuses it before any I/O, counts it, and logs it once.
func TestInvalidRequestsAreRefused(t *testing.T) {
	t.Parallel()
	p := played(t, grant)
	many := make([]Attributes, descriptorsMax)
	wide := Attributes{}
	for i := 0; i < 17; i++ {
		wide = append(wide, [2]any{fmt.Sprint("secret", i), "v"})
	}
	units := Units{}
	for i := 0; i < 10_000; i++ {
		units[fmt.Sprint("unit", i)] = 1
	}
	for name, row := range map[string]struct {
		domain     string
		attributes Attributes
		option     CallOption
	}{
		"huge domain": {strings.Repeat("x", 1<<20), u1, nil}, "no domain": {"", u1, nil}, "odd domain": {"secret/b", u1, nil},
		"cut domain": {"\xff", u1, nil}, "odd name": {"api", Attributes{{"secret:b", 1}}, nil},
		"no name": {"api", Attributes{{nil, 1}}, nil}, "long name": {"api", Attributes{{strings.Repeat("x", 65), 1}}, nil},
		"control": {"api", Attributes{{"a\u0085", 1}}, nil}, "negative": {"api", u1, Cost(-1)},
		"smallest": {"api", u1, Cost(math.MinInt64)}, "a negative unit": {"api", u1, Costs(Units{"requests": 1, "tokens": -1})},
		"an odd unit": {"api", u1, Costs(Units{"secret/b": 1})}, "too many units": {"api", u1, Costs(units)},
		"17 attributes": {"api", wide, nil}, "9 descriptors": {"api", u1, Descriptors(many...)},
	} {
		logged := &logs.Lines{}
		c := client(t, p.Path, WithLogger(logged), WithFallback("1000/s"))
		before := len(p.Seen())
		for i := 0; i < 3; i++ {
			d := c.Acquire(ctx, row.domain, row.attributes, row.option)
			if d.Allowed || d.Degraded || d.Reason != "invalid" || d.Verdict != "shed" || d.Status != 503 || !errors.Is(d.Err(), ErrInvalid) {
				t.Errorf("%s: %+v", name, d)
			}
		}
		stats, lines := c.Stats(), logged.All()
		if len(p.Seen()) != before || len(lines) != 1 || stats.BreakerOpen || stats.Refused["invalid"] != 3 || len(stats.Missed) != 0 {
			t.Errorf("%s: %v %+v", name, lines, stats)
		}
		if strings.Contains(strings.Join(lines, ""), "secret") || !strings.Contains(lines[0], "help: ") {
			t.Errorf("%s: %v", name, lines)
		}
	}
	c := client(t, p.Path)
	if c.Charge(ctx, "a/b", u1, Cost(1)) || c.Stats().Refused["invalid"] != 1 {
		t.Fatalf("%+v", c.Stats())
	}
	if d := c.Hit(nil, "api", u1); d.Allowed || d.Reason != "invalid" { //lint:ignore SA1012 that is the test
		t.Fatalf("%+v", d)
	}
}

// Long and unusual values are sent in another form.
func TestLongAndUnusualInputIsSent(t *testing.T) {
	t.Parallel()
	p := played(t, reply(allow...))
	c := client(t, p.Path)
	last := func() []any { seen := p.Seen(); return seen[len(seen)-1] }
	long := strings.Repeat("é", 40) // 80 bytes, of which 30 end within a letter
	odd := strings.Repeat("\xff", 80)
	for key, want := range map[string]string{
		"k": "k", strings.Repeat("k", 64): strings.Repeat("k", 64),
		strings.Repeat("k", 65): strings.Repeat("k", 30) + "~" + sha(strings.Repeat("k", 65)),
		long:                    strings.Repeat("é", 15) + "~" + sha(long), "a" + long: "a" + strings.Repeat("é", 14) + "~" + sha("a"+long),
		odd: odd[:30] + "~" + sha(odd),
	} {
		if d := c.Hit(ctx, "api", u1, Idem(key)); d.Reason != "" || string(last()[6].(map[string]any)["idem"].(peer.Bin)) != want {
			t.Errorf("%q: %v %s", key, last(), d.Reason)
		}
	}
	for _, name := range []string{"a/b", "a:b", "\n", "\xff", strings.Repeat("x", 65), ""} {
		if d := c.Hit(ctx, "api", u1, Priority(name)); d.Reason != "" || len(last()) != 5 {
			t.Errorf("%q: %v", name, last())
		}
	}
	for value, want := range map[string]string{
		strings.Repeat("v", 1024):    strings.Repeat("v", 1024),
		strings.Repeat("v", 1025):    strings.Repeat("v", 960) + "~" + sha(strings.Repeat("v", 1025)),
		strings.Repeat("a\xff", 512): strings.Repeat("a\uFFFD", 240) + "~" + sha(strings.Repeat("a\uFFFD", 512)),
	} {
		c.Hit(ctx, "api", Attributes{{"v", value}})
		equal(t, last()[3], []any{[]any{"v", want}})
	}
	if c.Hit(ctx, "api", u1, Cost(math.MaxInt64), nil); last()[4] != uint64(math.MaxInt64) {
		t.Errorf("%v", last())
	}
}

func sha(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:16])
}

// -- contexts ----------------------------------------------------------------------------------------------------------

func TestACancelledContextEndsTheCall(t *testing.T) {
	t.Parallel()
	arrived := make(chan struct{}, 1)
	p := played(t, func(net.Conn, []any) []any {
		arrived <- struct{}{}
		return nil
	})
	c := client(t, p.Path)
	working, cancel := context.WithCancel(ctx)
	go func() {
		<-arrived
		cancel()
	}()
	began := time.Now()
	d := c.Acquire(working, "api", u1)
	if took := time.Since(began); took > slack {
		t.Fatalf("it took %v", took)
	}
	if d.Allowed || d.Degraded || d.Status != 503 || d.Err() != context.Canceled {
		t.Fatalf("%+v", d)
	}
	if c.failures.Load() != 0 || len(c.Stats().Missed)+len(c.Stats().Refused) != 0 {
		t.Fatalf("nothing has failed: %+v", c.Stats())
	}
	p.Play(reply(allow...))
	hits(c, 1)
	seen := p.Seen()
	equal(t, seen[len(seen)-1][6], map[string]any{"missed": map[string]any{}, "abandoned": []any{[]any{1, 1}}})
	before := len(p.Seen())
	if d := c.Acquire(working, "api", u1, RefuseOnFailure()); d.Allowed || d.Err() != context.Canceled || len(p.Seen()) != before {
		t.Fatalf("%+v", d)
	}
	if err := c.Limit(working, "api", u1, nil); err != context.Canceled {
		t.Fatal(err)
	}
}

func TestTheEarlierDeadlineApplies(t *testing.T) {
	t.Parallel()
	p := played(t, func(net.Conn, []any) []any { return nil })
	c := client(t, p.Path)
	soon, cancel := context.WithTimeout(ctx, 30*time.Millisecond)
	defer cancel()
	began := time.Now()
	if d := c.Acquire(soon, "api", u1); d.Allowed || d.Err() != context.DeadlineExceeded {
		t.Fatalf("%+v", d)
	}
	if took := time.Since(began); took < 25*time.Millisecond || took > 30*time.Millisecond+slack {
		t.Fatalf("it took %v", took)
	}
}

// An earlier call's deadline on the connection ends no later call, neither too early nor too late.
func TestEveryCallHasItsOwnDeadline(t *testing.T) {
	t.Parallel()
	const timeout = slack
	silent := func(net.Conn, []any) []any { return nil }
	for _, row := range []struct {
		name              string
		before, own, late time.Duration // its context's; how long after the first
		cancelled         bool
		least             time.Duration
	}{
		{"not sooner", 0, 0, timeout / 2, false, timeout},
		{"not sooner, behind a short one", timeout / 4, 0, 0, false, timeout},
		{"after the one before has passed", 0, 0, timeout + timeout/4, false, timeout},
		{"not later", 0, timeout / 4, 0, false, timeout / 4},
		{"cancelled", 0, 0, 0, true, timeout / 4},
	} {
		row := row
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			p := played(t, reply(allow...))
			c := client(t, p.Path, WithTimeout(timeout))
			first, done := ctx, func() {}
			if row.before > 0 {
				first, done = contextFor(row.before)
			}
			if d := c.Hit(first, "api", u1); d.Degraded {
				t.Fatalf("%+v", d)
			}
			done()
			time.Sleep(row.late)
			p.Play(silent)
			second, cancel := context.WithCancel(ctx)
			if !row.cancelled && row.own == 0 {
				cancel()
				second = ctx
			} else if row.own > 0 {
				cancel()
				second, cancel = contextFor(row.own)
			} else {
				time.AfterFunc(timeout/4, cancel)
			}
			began := time.Now()
			d := c.Hit(second, "api", u1)
			took := time.Since(began)
			cancel()
			if most := row.least + timeout/2; (d.Reason != "timeout" && d.Reason != "cancelled") || took < row.least || took > most {
				t.Errorf("it took %v, not %v: %+v", took, row.least, d)
			}
		})
	}
}

// An earlier call's expired deadline hides no reply and leaves no request unwritten.
func TestACallBehindAnOldDeadline(t *testing.T) {
	t.Parallel()
	p := played(t, reply(limit...))
	c := client(t, p.Path)
	for _, armed := range []time.Duration{-time.Hour, 0, 10 * time.Microsecond, 50 * time.Microsecond, time.Millisecond} {
		if d := hits(c, 1)[0]; d.Verdict != "limit" {
			t.Fatalf("%+v", d)
		}
		k := c.lone(t)
		k.arm(time.Now().Add(armed))
		k.armed = time.Now().Add(patient / 2) // as if it passed as soon as it had been looked at
		c.checkIn(k)
		if d := hits(c, 1)[0]; d.Verdict != "limit" {
			t.Fatalf("%v: %+v", armed, d)
		}
	}
	if n := c.Stats().Connections; n != 1 {
		t.Fatalf("%d connections", n)
	}
}

func TestReleaseSurvivesCancellation(t *testing.T) {
	t.Parallel()
	p := played(t, grant)
	c := client(t, p.Path)
	working, cancel := context.WithCancel(ctx)
	d := c.Acquire(working, "api", u1)
	cancel()
	d.Release()
	d.Release()
	equal(t, releases(t, p, 1), []any{[]any{nil, 77, 0}})
	if !c.Check() || len(releases(t, p, 1)) != 1 {
		t.Fatal("released twice")
	}
}

// -- leases ------------------------------------------------------------------------------------------------------------

func TestLimitReleasesAsTheWorkEnds(t *testing.T) {
	t.Parallel()
	p := played(t, grant)
	c := client(t, p.Path)
	failed := errors.New("failed")
	if err := c.Limit(ctx, "api", u1, func(context.Context) error { return nil }); err != nil {
		t.Fatal(err)
	}
	if err := c.Limit(ctx, "api", u1, func(context.Context) error { return failed }); err != failed {
		t.Fatal(err)
	}
	func() {
		defer func() { _ = recover() }()
		_ = c.Limit(ctx, "api", u1, func(context.Context) error { panic("work") })
	}()
	d := c.Acquire(ctx, "api", u1)
	d.SetOutcome(Dropped)
	d.Release()
	equal(t, releases(t, p, 4), []any{[]any{nil, 77, 0}, []any{nil, 79, 1}, []any{nil, 81, 2}, []any{nil, 83, 2}})
	p.Play(reply(limit...))
	var denied *Denied
	if err := c.Limit(ctx, "api", u1, nil); !errors.As(err, &denied) || denied.Decision.Rule != "per-user" {
		t.Fatal(err)
	}
	var none *Decision
	none.Release()
}

func TestOnlyLimitSleepsOnWait(t *testing.T) {
	t.Parallel()
	p := played(t, reply(3, "hooks", 21, 1, 20, 1, 50_000, 77))
	c := client(t, p.Path)
	began := time.Now()
	d := c.Acquire(ctx, "api", u1)
	if !d.Allowed || d.Wait != 50*time.Millisecond || d.Verdict != "wait" {
		t.Fatalf("%+v", d)
	}
	d.Release()
	if err := c.Limit(ctx, "api", u1, func(context.Context) error { return nil }); err != nil || time.Since(began) < 50*time.Millisecond {
		t.Fatal(err)
	}
	p.Play(reply(3, "hooks", 21, 1, 20, 1, 60_000_000, 78))
	// Ends while it sleeps, not before it is answered.
	ended, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if err := c.Limit(ended, "api", u1, nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	equal(t, releases(t, p, 3)[2], []any{nil, 78, 2})
}

func TestAnUnwrittenReleaseIsReported(t *testing.T) {
	t.Parallel()
	p := played(t, grant)
	c := client(t, p.Path)
	first, second := c.Acquire(ctx, "api", u1), c.Acquire(ctx, "api", u1)
	p.Play(raw(0, 0, 0, 1, 0xC1))
	hits(c, 3) // the breaker opens
	first.Release()
	second.Release()
	p.Play(grant)
	c.over()
	c.Acquire(ctx, "api", u1)
	seen := p.Seen()
	equal(t, seen[len(seen)-1][6], map[string]any{"missed": map[string]any{"protocol": 3}, "abandoned": []any{[]any{1, 1}, []any{1, 2}}})
}

func TestAReleaseOnAConnectionThatWasClosedTakesAnother(t *testing.T) {
	t.Parallel()
	p := played(t, grant)
	c := client(t, p.Path)
	d := c.Acquire(ctx, "api", u1)
	p.HangUp()
	d.Release()
	equal(t, releases(t, p, 1), []any{[]any{nil, 77, 0}})
	var sessions []string
	for _, message := range p.Seen() {
		if message[0] == uint64(0) {
			info := message[3].(map[string]any)
			sessions = append(sessions, fmt.Sprintf("%x %v", info["session"], info["connection"]))
		}
	}
	if len(sessions) != 2 || !bytes.Equal([]byte(sessions[0][:32]), []byte(sessions[1][:32])) || sessions[1][33:] != "2" {
		t.Fatalf("%v", sessions)
	}
}

func TestRenewChargeSignal(t *testing.T) {
	t.Parallel()
	p := played(t, grant)
	c := client(t, p.Path, WithPool("web"))
	d := c.Acquire(ctx, "api", u1)
	if !d.Renew() || !c.Charge(ctx, "api", u1, Costs(Units{"tokens": -812})) || !c.Charge(ctx, "api", u1, Cost(3)) {
		t.Fatal("not done")
	}
	c.Signal("loop_lag", 0.4)
	c.Signal("loop_lag", 7)
	c.Check()
	seen := p.Seen()
	equal(t, seen[2:7], []any{[]any{6, 2, 77}, []any{5, 3, "api", []any{[]any{"user", "u1"}}, map[string]any{"tokens": -812}},
		[]any{5, 4, "api", []any{[]any{"user", "u1"}}, 3}, []any{7, nil, "web", "loop_lag", 400}, []any{7, nil, "web", "loop_lag", 1000}})
	p.Play(func(_ net.Conn, message []any) []any { return []any{2, message[1], false} })
	if d.Renew() || c.Charge(ctx, "api", u1) {
		t.Fatal("done")
	}
	d.Release()
	p.Play(grant)
	if before := len(releases(t, p, 1)); d.Renew() || before != 1 {
		t.Fatal("it has ended")
	}
	// Options of other requests are not sent with a charge, in which the daemon would misread them.
	c.Charge(ctx, "api", u1, Cost(2), Priority("high"), Idem("x"), Queued(time.Second), MaxWait(0))
	seen = p.Seen()
	equal(t, seen[len(seen)-1][2:], []any{"api", []any{[]any{"user", "u1"}}, 2, map[string]any{"idem": peer.Bin("x")}})
}

// -- an orderly restart ------------------------------------------------------------------------------------------------

func TestDoesNotRetryAfterAReset(t *testing.T) {
	t.Parallel()
	p := played(t, reply(allow...))
	c := client(t, p.Path)
	hits(c, 1)
	p.Play(func(connection net.Conn, _ []any) []any { _ = connection.Close(); return nil })
	equal(t, reasons(hits(c, 1)...), []string{"unreachable"})
	if seen := p.Seen(); len(seen) != 3 {
		t.Fatalf("%v", seen)
	}
}

// The text of a function, or of a pointer in a struct, is an address: each object would be another caller.
func TestAnAttributeWithoutATextIsRefused(t *testing.T) {
	type user struct{ ID int }
	type session struct{ User *user }
	type tree []tree
	p, logged := played(t, reply(allow...)), &logs.Lines{}
	c := client(t, p.Path, WithLogger(logged))
	now, list := time.Now(), []any{nil} // whose text has no end
	list[0] = list
	for _, value := range []any{func() string { return "" }, make(chan int), session{&user{1}}, &session{}, []*user{{1}},
		map[string]func(){"a": nil}, []any{&user{1}}, map[string]any{"a": &user{1}}, struct{ any }{&user{1}},
		struct{ at time.Time }{now}, list} {
		if d := c.Hit(ctx, "api", Attributes{{"user", value}}); d.Allowed || d.Reason != "invalid" {
			t.Errorf("%T: %+v", value, d)
		}
	}
	const said = "tidegate: the attribute user has no text; help: send its id; such requests are refused (invalid)"
	if lines := logged.All(); len(lines) != 1 || lines[0] != said {
		t.Fatal(lines)
	}
	for _, value := range []any{&user{1}, user{1}, &now, now, errors.New("no"), []string{"a"}, tree{{}}, (*user)(nil), nil,
		[]any{"a", 1, now, nil}, map[any]any{"a": []any{1}}} {
		if d := c.Hit(ctx, "api", Attributes{{"user", value}}); d.Reason == "invalid" {
			t.Errorf("%T is refused", value)
		}
	}
}

// fmt prints the panic of a String method: all such values would be one caller, and the daemon would get the message.
func TestAValueWhoseTextPanicsIsRefused(t *testing.T) {
	t.Parallel()
	p := played(t, reply(allow...))
	c := client(t, p.Path)
	for _, a := range []Attributes{{{"user", panics{}}}, {{panics{}, "u1"}}} {
		if d := c.Hit(ctx, "api", a); d.Allowed || d.Reason != "invalid" {
			t.Errorf("%+v", d)
		}
	}
	equal(t, len(p.Seen()), 0)
}
