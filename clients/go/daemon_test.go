package tidegate

// Against the real daemon: it is understood, late replies are dropped, and every lease ends.

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/tidegate/tidegate/clients/go/internal/logs"
)

const rules = `
domain: api
concurrency:
  - {name: at-once, match: {job: export}, key: [], max: 40, expires: 1h}
limits:
  - {name: per-user, match: {job: message}, key: [user], rate: 1/h, burst: 2}
  - {name: odd, match: {job: odd}, key: [user], rate: 1/h, burst: 1}
  - {name: tokens, match: {job: model}, key: [], unit: tokens, rate: 1000/h, max_debt: 1000}
`

var export = Attributes{{"job", "export"}}

func contextFor(d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, d)
}

func TestErrorsOfTheDaemon(t *testing.T) {
	t.Parallel()
	d := realDaemon(t, rules)
	c := client(t, d.path)
	message := Attributes{{"job", "message"}, {"user", 7}}
	for i := 0; i < 2; i++ {
		if d := c.Hit(ctx, "api", message); !d.Allowed || d.Degraded || d.Rule != "per-user" || d.Limit != 2 {
			t.Fatalf("%+v", d)
		}
	}
	refused := c.Hit(ctx, "api", message)
	if refused.Status != 429 || refused.RetryAfter <= 0 || refused.RetryAfter > time.Hour {
		t.Fatalf("%+v", refused)
	}
	if never := c.Hit(ctx, "api", message, Cost(3)); never.RetryAfter != Never {
		t.Fatalf("%+v", never)
	}
	if !c.Charge(ctx, "api", Attributes{{"job", "model"}}, Costs(Units{"tokens": 812})) {
		t.Fatal("no rate matched")
	}
	if left := c.Peek(ctx, "api", Attributes{{"job", "model"}}, Costs(Units{"tokens": 1})); left.Remaining != 188 || left.Unit != "tokens" {
		t.Fatalf("%+v", left)
	}
	first := c.Acquire(ctx, "api", message, Idem("order-17"))
	again := c.Acquire(ctx, "api", message, Idem("order-17"))
	equal(t, reasons(first, again), []string{"", ""})
	// Invalid input is never allowed: the caller is over its limit, and remains so.
	for name, odd := range map[string]*Decision{
		"long idem": c.Hit(ctx, "api", message, Idem(strings.Repeat("x", 200))), "odd priority": c.Hit(ctx, "api", message, Priority("a/b")),
		"huge": c.Hit(ctx, "api", message, Cost(1<<40)), "largest": c.Hit(ctx, "api", message, Cost(math.MaxInt64)),
		"negative": c.Hit(ctx, "api", message, Cost(-1)), "odd name": c.Hit(ctx, "api", append(Attributes{{"a:b", 1}}, message...)),
		"odd domain": c.Hit(ctx, "a/b", message), "waited": c.Hit(ctx, "api", message, Queued(-1), MaxWait(math.MaxInt64)),
	} {
		if odd.Allowed || odd.Degraded {
			t.Errorf("%s: %+v", name, odd)
		}
	}
	if stats := c.Stats(); stats.Connections != 1 || stats.BreakerOpen {
		t.Fatalf("%+v", stats)
	}
}

// A negative charge refunds the grant or charge of Of, at most its amount, and once.
func TestARefundNamesItsGrant(t *testing.T) {
	t.Parallel()
	d := realDaemon(t, rules)
	logged := &logs.Lines{}
	c := client(t, d.path, WithLogger(logged))
	message := Attributes{{"job", "message"}, {"user", 8}}
	long := strings.Repeat("k", 100)
	first, second := c.Hit(ctx, "api", message, Idem("order-17")), c.Hit(ctx, "api", message, Idem(long))
	if first.Remaining != 1 || second.Remaining != 0 {
		t.Fatalf("%+v %+v", first, second)
	}
	for i := 0; i < 2; i++ {
		if c.Charge(ctx, "api", message, Cost(-1)) {
			t.Fatal("a bare refund is not allowed")
		}
	}
	if lines := logged.All(); len(lines) != 1 || c.Stats().Refused["not_allowed"] != 2 {
		t.Fatalf("%v %+v", lines, c.Stats())
	}
	for i, step := range []struct {
		of   CallOption
		done bool
	}{{Of("another"), false}, {Of(first), true}, {Of(first), false}, {Of(long), true}, {Of(second), false}} {
		if done := c.Charge(ctx, "api", message, Cost(-1), step.of); done != step.done {
			t.Errorf("%d: %v", i, done)
		}
	}
	if left := c.Peek(ctx, "api", message).Remaining; left != 2 {
		t.Fatalf("%d are left", left)
	}
}

func TestLongValuesOfTheDaemonStayDistinct(t *testing.T) {
	t.Parallel()
	d := realDaemon(t, rules)
	c := client(t, d.path)
	for i, long := 0, string(make([]byte, 1<<20)); i < 2; i++ {
		if d := c.Hit(ctx, "api", Attributes{{"job", "odd"}, {"user", long + fmt.Sprint(i)}}); !d.Allowed || d.Degraded {
			t.Fatalf("%d: %+v", i, d)
		}
		if d := c.Hit(ctx, "api", Attributes{{"job", "odd"}, {"user", long + fmt.Sprint(i)}}); d.Allowed {
			t.Fatalf("%d: %+v", i, d)
		}
	}
}

// Every end of work frees its permit.
func TestLeasesEnd(t *testing.T) {
	t.Parallel()
	d := realDaemon(t, rules)
	c := client(t, d.path)
	var all sync.WaitGroup
	for i := 0; i < 200; i++ {
		all.Add(1)
		go func(i int) {
			defer all.Done()
			defer func() { _ = recover() }()
			working, cancel := context.WithCancel(ctx)
			defer cancel()
			_ = c.Limit(working, "api", export, func(context.Context) error {
				switch i % 4 {
				case 0:
					panic("work")
				case 1:
					cancel()
				case 2:
					return errors.New("failed")
				}
				return nil
			})
		}(i)
	}
	all.Wait()
	eventually(t, "the places", func() bool { return free(t, c, export) == 40 })
}

// Acquires abandoned at random times hold no permit once the daemon has the report.
func TestAbandonedAcquiresHoldNothing(t *testing.T) {
	t.Parallel()
	d := realDaemon(t, rules)
	c := client(t, d.path)
	abandoned := 0
	for i := 0; i < 300; i++ {
		working, cancel := contextFor(time.Duration(rand.Intn(200)) * time.Microsecond)
		taken := c.Acquire(working, "api", export)
		cancel()
		if taken.Degraded {
			abandoned++
		}
		taken.Release()
	}
	eventually(t, "the places", func() bool { return free(t, c, export) == 40 })
	t.Logf("%d of 300 were given up", abandoned)
}

// The daemon is stopped and continued repeatedly under requests: no verdict reaches another request, since each
// user's is known: even users are allowed, odd ones over their limit.
func TestDropsLateReplies(t *testing.T) {
	t.Parallel()
	d := realDaemon(t, rules)
	c := client(t, d.path, WithTimeout(3*time.Millisecond))
	flips := 200
	if n, err := strconv.Atoi(os.Getenv("FLIPS")); err == nil {
		flips = n
	}
	sure := client(t, d.path)
	odd := Attributes{{"job", "odd"}, {"user", "odd"}}
	if !sure.Hit(ctx, "api", odd).Allowed {
		t.Fatal("the first is free")
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for i := 0; i < flips; i++ {
			d.signal(syscall.SIGSTOP)
			time.Sleep(time.Duration(rand.Intn(5_000)) * time.Microsecond)
			d.signal(syscall.SIGCONT)
			time.Sleep(time.Duration(rand.Intn(1_000)) * time.Microsecond)
		}
	}()
	var mu sync.Mutex
	judged, missed, n := 0, 0, 0
	var all sync.WaitGroup
	for worker := 0; worker < 4; worker++ {
		all.Add(1)
		go func() {
			defer all.Done()
			for {
				select {
				case <-ended:
					return
				default:
				}
				mu.Lock()
				n++
				mine := n
				mu.Unlock()
				if c.Stats().BreakerOpen {
					c.over()
				}
				asked := odd
				if mine%2 == 0 {
					asked = Attributes{{"job", "odd"}, {"user", mine}}
				}
				got := c.Hit(ctx, "api", asked)
				mu.Lock()
				if got.Degraded {
					missed++
				} else if judged++; got.Allowed != (mine%2 == 0) {
					t.Errorf("request %d: %+v", mine, got)
				}
				mu.Unlock()
			}
		}()
	}
	all.Wait()
	if judged == 0 || missed == 0 {
		t.Fatalf("%d judged, %d missed: nothing was tried", judged, missed)
	}
	t.Logf("%d judged, %d missed", judged, missed)
}

// A daemon that pauses for 1.5 deadlines fails each caller once or twice, and none afterwards.
func TestAPauseOfTheDaemonCostsFewDecisions(t *testing.T) {
	t.Parallel()
	const callers, timeout, most = 8, 400 * time.Millisecond, 80
	d := realDaemon(t, rules)
	c := client(t, d.path, WithTimeout(timeout))
	stop, calls, unjudged := make(chan struct{}), atomic.Int32{}, atomic.Int32{}
	var all sync.WaitGroup
	for i := 0; i < callers; i++ {
		all.Add(1)
		go func(i int) {
			defer all.Done()
			for {
				select {
				case <-stop:
					return
				default:
				}
				calls.Add(1)
				if c.Hit(ctx, "api", Attributes{{"job", "message"}, {"user", i}}).Degraded {
					unjudged.Add(1)
				}
				time.Sleep(time.Millisecond)
			}
		}(i)
	}
	eventually(t, "some calls", func() bool { return calls.Load() > 10*callers })
	d.signal(syscall.SIGSTOP)
	time.Sleep(timeout + timeout/2)
	d.signal(syscall.SIGCONT)
	behind := calls.Load()
	eventually(t, "more calls", func() bool { return calls.Load() > behind+10*most })
	close(stop)
	all.Wait()
	t.Logf("%d of %d were not judged: %v", unjudged.Load(), calls.Load(), c.Stats().Missed)
	if n := unjudged.Load(); n == 0 || n > most {
		t.Fatal("too many, or nothing was tried")
	}
}

// client_test.go covers orderly restarts. Here the daemon is killed: requests pass, and are limited soon after.
func TestARestartedDaemonIsFoundAgain(t *testing.T) {
	t.Parallel()
	d := realDaemon(t, rules)
	c := client(t, d.path)
	held := c.Acquire(ctx, "api", export)
	d.kill()
	for _, each := range hits(c, 5) {
		if !each.Allowed || !each.Degraded {
			t.Fatalf("%+v", each)
		}
	}
	held.Release()
	d.start()
	c.over()
	equal(t, reasons(hits(c, 3)...), []string{"", "", ""})
	eventually(t, "the places", func() bool { return free(t, c, export) == 40 })
}
