package tidegate

// The breaker, what is logged, and what the daemon is told of it.

import (
	"net"
	"os"
	"os/user"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tidegate/tidegate/clients/go/internal/told"
)

// over is as if the breaker's time were.
func (c *Client) over() { c.until.Store(1) }

func TestTheBreaker(t *testing.T) {
	p := played(t, reply(allow...))
	p.Hide()
	c := client(t, p.Path)
	equal(t, reasons(hits(c, 5)...), []string{"unreachable", "unreachable", "unreachable", "breaker", "breaker"})
	for _, pause := range []time.Duration{1, 2, 4, 5, 5} {
		left := time.Duration(c.until.Load()) - time.Since(c.epoch)
		if least, most := pause*800*time.Millisecond, pause*1200*time.Millisecond; left < least-slack || left > most {
			t.Fatalf("it opens for %v, not %d s", left, pause)
		}
		c.over()
		equal(t, reasons(hits(c, 2)...), []string{"unreachable", "breaker"})
	}
	c.over()
	if err := p.Listen(); err != nil {
		t.Fatal(err)
	}
	equal(t, reasons(hits(c, 2)...), []string{"", ""})
	equal(t, p.Seen()[1][6].(map[string]any)["missed"], map[string]any{"breaker": 7, "unreachable": 8})
	p.Hide()
	equal(t, reasons(hits(c, 4)...), []string{"unreachable", "unreachable", "unreachable", "breaker"}) // from the beginning
	if left := time.Duration(c.until.Load()) - time.Since(c.epoch); left > 1200*time.Millisecond {
		t.Fatalf("it opens for %v again, not for 1 s", left)
	}
}

func TestASuccessBetweenFailuresClosesTheCount(t *testing.T) {
	p := played(t, nil)
	c := client(t, p.Path)
	for i := 0; i < 5; i++ {
		p.Play(raw(0, 0, 0, 1, 0xC1))
		equal(t, reasons(hits(c, 2)...), []string{"protocol", "protocol"})
		p.Play(reply(allow...))
		equal(t, reasons(hits(c, 1)...), []string{""})
	}
}

// What says nothing of the daemon neither closes the count nor opens the breaker, and is no probe.
func TestAReleaseSaysNothingOfTheDaemon(t *testing.T) {
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
	p := played(t, nil)
	c := client(t, p.Path)
	for i := 0; i < 3; i++ {
		p.Play(raw(0, 0, 0, 1, 0xC1))
		hits(c, 2)
		p.Play(func(_ net.Conn, message []any) []any { return []any{3, message[1], 6, "the cause"} })
		equal(t, reasons(hits(c, 1)...), []string{"protocol"})
	}
	if c.Stats().BreakerOpen {
		t.Fatal("the daemon has answered")
	}
}

// A probe that its own caller cut short has found nothing out: the next call is one.
func TestAProbeCutShort(t *testing.T) {
	p := played(t, raw(0, 0, 0, 1, 0xC1))
	c := client(t, p.Path)
	hits(c, 3)
	p.Play(func(net.Conn, []any) []any { return nil })
	c.over()
	soon, cancel := contextFor(2 * time.Millisecond)
	defer cancel()
	equal(t, reasons(c.Hit(soon, "api", u1)), []string{"timeout"})
	p.Play(reply(allow...))
	equal(t, reasons(hits(c, 1)...), []string{""})
}

func TestConnectionsThatFailedLeaveRoom(t *testing.T) {
	p := played(t, reply(allow...))
	p.Hide()
	c := client(t, p.Path, WithTimeout(time.Second))
	for i := 0; i < 2*connectionsMax; i++ {
		c.settle(nil, false)
		equal(t, reasons(hits(c, 1)...), []string{"unreachable"})
	}
	if n := c.Stats().Connections; n != 0 {
		t.Fatalf("%d connections", n)
	}
}

func TestOneProbeAtATime(t *testing.T) {
	p := played(t, raw(0, 0, 0, 1, 0xC1))
	c := client(t, p.Path)
	hits(c, 3)
	var asked atomic.Int32
	p.Play(func(_ net.Conn, message []any) []any {
		asked.Add(1)
		time.Sleep(50 * time.Millisecond)
		return append([]any{1, message[1]}, allow...)
	})
	c.over()
	var all sync.WaitGroup
	for i := 0; i < 50; i++ {
		all.Add(1)
		go func() { defer all.Done(); hits(c, 1) }()
	}
	all.Wait()
	if asked.Load() != 1 || c.Stats().Missed["breaker"] != 49 {
		t.Fatalf("%d probes, %v", asked.Load(), c.Stats().Missed)
	}
}

// The bound is 20 µs a call; that of a test is wider, and for the fastest of many rounds, because machines are busy.
func TestAnOpenBreakerCostsNextToNothing(t *testing.T) {
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
	if opened := c.opened; best > 20*time.Microsecond || opened != 0 {
		t.Fatalf("%v a call, %d connections", best, opened)
	}
	// Nothing is written that nobody would read: what is to be told waits untouched.
	if allocations := testing.AllocsPerRun(100, func() { hits(c, 1) }); allocations > 12 {
		t.Fatalf("%v allocations a call", allocations)
	}
	t.Logf("%v a call", best)
}

func TestAContextCutShortIsNoFailureOfTheDaemon(t *testing.T) {
	p := played(t, func(net.Conn, []any) []any { return nil })
	c := client(t, p.Path, WithTimeout(time.Second))
	for i := 0; i < 5; i++ {
		soon, cancel := contextFor(2 * time.Millisecond)
		c.Hit(soon, "api", u1)
		cancel()
	}
	if stats := c.Stats(); stats.BreakerOpen || stats.Missed["timeout"] != 5 {
		t.Fatalf("%+v", stats)
	}
}

func TestAFirstFailureIsLoggedThenChangesOfState(t *testing.T) {
	p := played(t, reply(allow...))
	p.Hide()
	heard := &told.Lines{}
	c := client(t, p.Path, WithLogger(heard))
	c.Hit(ctx, "api", Attributes{{"user", "secret-user"}})
	if lines := heard.All(); len(lines) != 1 || !strings.Contains(lines[0], "no daemon at "+p.Path) ||
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
	lines := heard.All()
	if len(lines) != 2 || !strings.Contains(lines[1], "answers again; 14 requests") {
		t.Fatalf("%v", lines)
	}
	p.Hide()
	hits(c, 1) // one is no state yet
	if err := p.Listen(); err != nil {
		t.Fatal(err)
	}
	hits(c, 2)
	if lines := heard.All(); len(lines) != 2 || strings.Contains(strings.Join(lines, ""), "secret-user") {
		t.Fatalf("%v", lines)
	}
}

func TestALoggerThatPanicsHurtsNobody(t *testing.T) {
	c := client(t, "/nowhere/s", WithLogger(nil))
	equal(t, reasons(hits(c, 1)...), []string{"unreachable"})
}

func TestPermissionDeniedSaysWhoAndWhichGroup(t *testing.T) {
	p := played(t, nil)
	err := unreachable(p.Path, &net.OpError{Op: "dial", Err: &os.PathError{Err: os.ErrPermission}})
	me, _ := user.Current()
	group, _ := user.LookupGroupId(me.Gid)
	if want := "permission denied on " + p.Path + ": user " + me.Username + " is not in group " + group.Name; err.Error() != want {
		t.Fatalf("%q, not %q", err, want)
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
	for _, c := range []*Client{New(), New(WithEnabled(true)), New(WithEnabled(false))} {
		d := c.Acquire(ctx, "api", u1, RefuseOnFailure(), nil) // what cannot be asked is not looked at, either
		d.Release()
		if !d.Allowed || d.Reason != "disabled" || c.Check() || len(c.Stats().Missed) != 0 {
			t.Fatalf("%+v", d)
		}
	}
	if len(p.Seen()) != before {
		t.Fatal("disabled, but it asked")
	}
}
