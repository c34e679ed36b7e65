package tidegate

// The breaker, its log, and reports to the daemon.

import (
	"context"
	"fmt"
	"math"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tidegate/tidegate/clients/go/internal/logs"
)

// over ends the breaker's pause.
func (c *Client) over() { c.until.Store(1) }

// opens returns the shortest and longest time that the breaker stays open after the last failure.
func opens(t *testing.T, c *Client, least, most time.Duration) {
	t.Helper()
	if pause := time.Duration(c.until.Swap(math.MaxInt64) - c.failed); pause < least || pause > most {
		t.Fatalf("it opens for %v, not %v to %v", pause, least, most)
	}
	equal(t, reasons(hits(c, 2)...), []string{"breaker", "breaker"})
}

func TestTheBreakerOpensImmediatelyWithoutAListener(t *testing.T) {
	t.Parallel()
	p := played(t, reply(allow...))
	p.Hide()
	c := client(t, p.Path)
	equal(t, reasons(hits(c, 1)...), []string{"unreachable"})
	opens(t, c, 50*time.Millisecond, 100*time.Millisecond)
	for _, pause := range []time.Duration{200, 400, 800, 1600, 2000, 2000} {
		c.over()
		equal(t, reasons(hits(c, 1)...), []string{"unreachable"})
		opens(t, c, pause*time.Millisecond/2, pause*time.Millisecond)
	}
	c.over()
	if err := p.Listen(); err != nil {
		t.Fatal(err)
	}
	equal(t, reasons(hits(c, 2)...), []string{"", ""})
	equal(t, p.Seen()[1], []any{8, 1}) // the probe
	equal(t, p.Seen()[2][6].(map[string]any)["missed"], map[string]any{"breaker": 14, "unreachable": 7})
	p.Hide()
	equal(t, reasons(hits(c, 1)...), []string{"unreachable"}) // from the beginning
	opens(t, c, 50*time.Millisecond, 100*time.Millisecond)
}

// If the daemon listens, three failures that do not overlap open the breaker.
func TestTheBreakerOpensAfterThreeFailures(t *testing.T) {
	t.Parallel()
	p := played(t, raw(0, 0, 0, 1, 0xC1))
	c := client(t, p.Path)
	equal(t, reasons(hits(c, 3)...), []string{"protocol", "protocol", "protocol"})
	opens(t, c, 50*time.Millisecond, 100*time.Millisecond)
}

// Failures of concurrent calls count once.
func TestFailuresThatOverlapAreOne(t *testing.T) {
	t.Parallel()
	// Long enough for all callers to begin within it on a busy machine.
	const timeout, callers = 500 * time.Millisecond, 30
	p := played(t, func(net.Conn, []any) []any { return nil })
	c := client(t, p.Path, WithTimeout(timeout))
	for round := int32(1); round < failuresMax; round++ {
		var all sync.WaitGroup
		for i := 0; i < callers; i++ {
			all.Add(1)
			go func() { defer all.Done(); hits(c, 1) }()
		}
		all.Wait()
		if n := c.failures.Load(); n > round || c.Stats().BreakerOpen {
			t.Fatalf("%d failures after %d windows", n, round)
		}
	}
	if missed := c.Stats().Missed["timeout"]; missed != callers*(failuresMax-1) {
		t.Fatalf("%d", missed)
	}
	p.Play(reply(allow...))
	c.timeout = patient
	equal(t, reasons(hits(c, 1)...), []string{""})
	if c.failures.Load() != 0 {
		t.Fatal("it has answered")
	}
	c.timeout = timeout
	p.Play(func(net.Conn, []any) []any { return nil })
	for i := 0; i < 20 && !c.Stats().BreakerOpen; i++ {
		hits(c, 1)
	}
	if !c.Stats().BreakerOpen {
		t.Fatal("it never opens")
	}
}

func TestASuccessBetweenFailuresClosesTheCount(t *testing.T) {
	t.Parallel()
	p := played(t, nil)
	c := client(t, p.Path)
	for i := 0; i < 5; i++ {
		p.Play(raw(0, 0, 0, 1, 0xC1))
		equal(t, reasons(hits(c, 2)...), []string{"protocol", "protocol"})
		p.Play(reply(allow...))
		equal(t, reasons(hits(c, 1)...), []string{""})
	}
}

// A release is no result: it neither resets the count nor opens the breaker, and is no probe.
func TestAReleaseDoesNotCountForTheBreaker(t *testing.T) {
	t.Parallel()
	p := played(t, grant)
	c := client(t, p.Path)
	first, second := c.Acquire(ctx, "api", u1), c.Acquire(ctx, "api", u1)
	bad := raw(0, 0, 0, 1, 0xC1)
	p.Play(bad)
	hits(c, 2)
	p.Play(grant)
	first.Release()
	equal(t, releases(t, p, 1), []any{[]any{nil, 77, 0}})
	p.Play(bad)
	c.longPause()
	equal(t, reasons(hits(c, 2)...), []string{"protocol", "breaker"})
	c.over()
	p.Play(reply(allow...))
	second.Release()
	if n := len(releases(t, p, 1)); n != 1 {
		t.Fatalf("%d releases", n)
	}
	equal(t, reasons(hits(c, 2)...), []string{"", ""})
}

func TestAnErrorThatKeepsTheConnectionClosesTheCount(t *testing.T) {
	t.Parallel()
	p := played(t, nil)
	c := client(t, p.Path)
	for i := 0; i < 3; i++ {
		for _, code := range []int{10, 6} {
			p.Play(raw(0, 0, 0, 1, 0xC1))
			hits(c, 2)
			p.Play(func(_ net.Conn, message []any) []any { return []any{3, message[1], code, "the cause"} })
			hits(c, 1)
		}
	}
	if c.Stats().BreakerOpen {
		t.Fatal("the daemon has answered")
	}
}

// A probe cancelled by its caller has no result: the next call probes.
func TestACancelledProbe(t *testing.T) {
	t.Parallel()
	folder, err := os.MkdirTemp("", "tg-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(folder)
	c := client(t, filepath.Join(folder, "s"))
	hits(c, 1)
	silent, err := net.Listen("unix", filepath.Join(folder, "s"))
	if err != nil {
		t.Fatal(err)
	}
	c.over()
	soon, cancel := contextFor(2 * time.Millisecond)
	defer cancel()
	if d := c.Hit(soon, "api", u1); d.Err() != context.DeadlineExceeded {
		t.Fatalf("%+v", d)
	}
	silent.Close()
	if c.until.Load() != 1 {
		t.Fatal("the next call is no probe")
	}
}

// A call that probes an unanswering daemon does not send its own request.
func TestAProbeIsAPing(t *testing.T) {
	t.Parallel()
	p := played(t, raw(0, 0, 0, 1, 0xC1))
	c := client(t, p.Path)
	hits(c, 3)
	before := len(p.Seen())
	p.Hide()
	c.over()
	equal(t, reasons(c.Acquire(ctx, "api", u1)), []string{"unreachable"})
	if err := p.Listen(); err != nil {
		t.Fatal(err)
	}
	p.Play(reply(allow...))
	c.over()
	equal(t, reasons(c.Acquire(ctx, "api", u1)), []string{""})
	seen := p.Seen()[before:]
	if seen[1][0] != uint64(8) || seen[2][0] != uint64(1) || len(seen) != 3 {
		t.Fatalf("%v", seen)
	}
}

func TestConnectionsThatFailedLeaveRoom(t *testing.T) {
	t.Parallel()
	p := played(t, reply(allow...))
	p.Hide()
	c := client(t, p.Path, WithTimeout(time.Second))
	for i := 0; i < 2*connectionsMax; i++ {
		c.calm()
		equal(t, reasons(hits(c, 1)...), []string{"unreachable"})
	}
	if n := c.Stats().Connections; n != 0 {
		t.Fatalf("%d connections", n)
	}
}

func TestOneProbeAtATime(t *testing.T) {
	t.Parallel()
	p := played(t, raw(0, 0, 0, 1, 0xC1))
	c := client(t, p.Path)
	hits(c, 3)
	var asked atomic.Int32
	var all sync.WaitGroup
	all.Add(50)
	p.Play(func(_ net.Conn, message []any) []any {
		if asked.Add(1) == 1 { // behind its PING; the others have none
			return append([]any{1, message[1]}, allow...)
		}
		return append([]any{1, message[1]}, limit...)
	})
	path := c.path
	c.path = greeted(t) // a silent daemon
	c.timeout = 200 * time.Millisecond
	c.longPause()
	c.over()
	for i := 0; i < 50; i++ {
		go func() { defer all.Done(); hits(c, 1) }()
	}
	all.Wait()
	if missed := c.Stats().Missed; missed["timeout"] != 1 || missed["breaker"] != 49 {
		t.Fatalf("%v", missed)
	}
	c.path, c.timeout = path, patient
	c.over()
	equal(t, reasons(hits(c, 1)...), []string{""})
}

// Requires at most 20 µs a call; the test allows more, and takes the fastest of many rounds, since machines are busy.
func TestAnOpenBreakerIsFast(t *testing.T) {
	p := played(t, nil)
	p.Hide()
	c := client(t, p.Path)
	for i := 0; i < 500; i++ { // many requests given up, which must not be written again and again
		c.report("", nil, [2]int64{1, int64(i)})
	}
	hits(c, 3)
	best := time.Hour
	for round := 0; round < 50; round++ {
		began := time.Now()
		hits(c, 100)
		if took := time.Since(began) / 100; took < best {
			best = took
		}
	}
	if opened := c.connections.opened; best > 20*time.Microsecond || opened != 0 {
		t.Fatalf("%v a call, %d connections", best, opened)
	}
	// It sends no request and no report.
	if allocations := testing.AllocsPerRun(100, func() { hits(c, 1) }); allocations > 12 {
		t.Fatalf("%v allocations a call", allocations)
	}
	t.Logf("%v a call", best)
}

// A cancelled call is no failure of the daemon; a context's timeout is, after half of the client's timeout.
func TestACancelledContextIsNoFailure(t *testing.T) {
	t.Parallel()
	p := played(t, func(net.Conn, []any) []any { return nil })
	c := client(t, p.Path, WithTimeout(time.Second))
	for i := 0; i < 5; i++ {
		soon, cancel := contextFor(2 * time.Millisecond)
		c.Hit(soon, "api", u1)
		cancel()
	}
	c.timeout = 400 * time.Millisecond
	for i := 0; i < failuresMax; i++ {
		working, cancel := context.WithCancel(ctx)
		time.AfterFunc(250*time.Millisecond, cancel)
		c.Hit(working, "api", u1)
	}
	if stats := c.Stats(); stats.BreakerOpen || stats.Missed["breaker"] != 0 {
		t.Fatalf("%+v", stats)
	}
	c.timeout = 200 * time.Millisecond
	for i := 0; i < 50 && !c.Stats().BreakerOpen; i++ {
		soon, cancel := contextFor(150 * time.Millisecond)
		c.Hit(soon, "api", u1)
		cancel()
	}
	if !c.Stats().BreakerOpen {
		t.Fatal("a daemon that does not answer is asked for ever")
	}
}

func TestLogsTheFirstFailureAndChanges(t *testing.T) {
	t.Parallel()
	p := played(t, reply(allow...))
	p.Hide()
	logged := &logs.Lines{}
	c := client(t, p.Path, WithLogger(logged))
	c.Hit(ctx, "api", Attributes{{"user", "secret-user"}})
	if lines := logged.All(); len(lines) != 1 || !strings.Contains(lines[0], "no daemon at "+p.Path) ||
		!strings.Contains(lines[0], "requests are not limited") {
		t.Fatalf("%v", lines)
	}
	hits(c, 10)
	c.over()
	hits(c, 3)
	if err := p.Listen(); err != nil {
		t.Fatal(err)
	}
	c.over()
	hits(c, 3)
	lines := logged.All()
	if len(lines) != 2 || !strings.Contains(lines[1], "answers again; 14 requests") {
		t.Fatalf("%v", lines)
	}
	p.Play(raw(0, 0, 0, 1, 0xC1))
	hits(c, 1) // one is no state yet
	p.Play(reply(allow...))
	hits(c, 2)
	if lines := logged.All(); len(lines) != 2 || strings.Contains(strings.Join(lines, ""), "secret-user") {
		t.Fatalf("%v", lines)
	}
}

func TestAPanicOfTheLoggerIsIgnored(t *testing.T) {
	t.Parallel()
	c := client(t, "/nowhere/s", WithLogger(nil))
	equal(t, reasons(hits(c, 1)...), []string{"unreachable"})
}

func TestPermissionDeniedNamesUserAndGroup(t *testing.T) {
	t.Parallel()
	p := played(t, nil)
	denied := &net.OpError{Op: "dial", Err: &os.PathError{Err: os.ErrPermission}}
	me, _ := user.Current()
	if err := os.Chmod(p.Path, 0o600); err != nil {
		t.Fatal(err)
	}
	help := "; see `tidegate doctor --as " + me.Username + "`"
	want := "permission denied on " + p.Path + ": " + p.Path + " has mode 0600, without access for its group" + help
	if err := unreachable(p.Path, denied); err.text != want {
		t.Fatalf("%q, not %q", err.text, want)
	}
	if err := os.Chmod(p.Path, 0o660); err != nil {
		t.Fatal(err)
	}
	group, _ := user.LookupGroupId(me.Gid)
	want = "permission denied on " + p.Path + ": user " + me.Username + " is not in group " + group.Name + help
	if err := unreachable(p.Path, denied); err.text != want {
		t.Fatalf("%q, not %q", err.text, want)
	}
}

func TestAPathThatIsNoSocketIsNamed(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	file := filepath.Join(folder, "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{folder, file} {
		logged := &logs.Lines{}
		hits(client(t, path, WithLogger(logged)), 1)
		want := "tidegate: " + path + " is no socket: set TIDEGATE_SOCKET to that of the daemon; requests are not limited"
		equal(t, logged.All(), []string{want})
	}
}

func TestTheAdminSocketIsRecognized(t *testing.T) {
	t.Parallel()
	p := played(t, raw([]byte("HTTP/1.1 400 Bad Request\r\n\r\n")...))
	logged := &logs.Lines{}
	hits(client(t, p.Path, WithLogger(logged)), 1)
	if lines := logged.All(); len(lines) != 1 || !strings.Contains(lines[0], "that is the admin socket") {
		t.Fatal(lines)
	}
}

func TestTheLogSaysWhatRefuseOnFailureDoesAndCountsOneRequest(t *testing.T) {
	t.Parallel()
	p := played(t, reply(allow...))
	p.Hide()
	logged := &logs.Lines{}
	c := client(t, p.Path, WithLogger(logged))
	equal(t, c.Hit(ctx, "api", nil, RefuseOnFailure()).Status, 503)
	if err := p.Listen(); err != nil {
		t.Fatal(err)
	}
	c.over()
	hits(c, 1)
	lines := logged.All()
	if len(lines) != 2 || !strings.HasSuffix(lines[0], "; requests with RefuseOnFailure get status 503, others are not limited") ||
		!strings.HasSuffix(lines[1], "; 1 request so far decided without it") {
		t.Fatal(lines)
	}
}

func TestTheEnvironment(t *testing.T) {
	p := played(t, reply(allow...))
	c := client(t, p.Path)
	c.Close()
	t.Setenv("TIDEGATE_SOCKET", p.Path)
	t.Setenv("TIDEGATE_TIMEOUT_MS", "250")
	if c := New(); !c.Check() || c.timeout != 250*time.Millisecond {
		t.Fatal(c.timeout)
	}
	if c := New(WithTimeout(-1)); c.timeout != 250*time.Millisecond {
		t.Fatal(c.timeout)
	}
	for _, wrong := range []string{"abc", "0", "-5", "1e3", "10001", "inf", "0x10", "NaN"} {
		t.Setenv("TIDEGATE_TIMEOUT_MS", wrong)
		logged := &logs.Lines{}
		c, lines := New(WithLogger(logged)), logged.All()
		if c.timeout != 20*time.Millisecond || len(lines) != 1 || lines[0] != fmt.Sprintf(
			"tidegate: TIDEGATE_TIMEOUT_MS is %q, not above 0 and up to 10000: the timeout is 20 ms", wrong) {
			t.Fatal(c.timeout, lines)
		}
	}
	t.Setenv("TIDEGATE_TIMEOUT_MS", "250")
	t.Setenv("TIDEGATE_SOCKET", "")
	t.Setenv("XDG_RUNTIME_DIR", filepath.Dir(p.Path))
	if err := os.Mkdir(filepath.Join(filepath.Dir(p.Path), "tidegate"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(p.Path, filepath.Join(filepath.Dir(p.Path), "tidegate", "tidegate.sock")); err != nil {
		t.Fatal(err)
	}
	if !New().Check() {
		t.Fatal("not found")
	}
	before := len(p.Seen())
	t.Setenv("TIDEGATE_DISABLE", "1")
	const off = `tidegate: TIDEGATE_DISABLE is "1": nothing is limited`
	for _, options := range [][]Option{nil, {WithEnabled(true)}, {WithEnabled(false)}} {
		logged := &logs.Lines{}
		c := New(append(options, WithLogger(logged))...)
		c.Hit(ctx, "api", u1)
		d := c.Acquire(ctx, "api", u1, RefuseOnFailure(), nil) // no request is sent, so attributes are not read
		d.Release()
		if !d.Allowed || d.Reason != "disabled" || c.Check() || strings.Join(logged.All(), "|") != off || len(c.Stats().Missed) != 0 {
			t.Fatalf("%+v", d)
		}
	}
	if len(p.Seen()) != before {
		t.Fatal("disabled, but it asked")
	}
}

// A process that slept past its deadline has not seen a failure of the daemon.
func TestAnOversleptDeadlineIsNoFailureOfTheDaemon(t *testing.T) {
	t.Parallel()
	const timeout = 50 * time.Millisecond
	p := played(t, reply(allow...))
	c := client(t, p.Path, WithTimeout(timeout))
	c.timeout = patient
	hits(c, 1)
	c.timeout = timeout
	p.Play(func(net.Conn, []any) []any { return nil })
	k := c.lone(t)
	k.Conn = &asleep{Conn: k.Conn, wake: func() {}}
	c.checkIn(k)
	equal(t, reasons(hits(c, 1)...), []string{"timeout"})
	if c.failures.Load() != 0 {
		t.Fatal("it was this process")
	}
}
