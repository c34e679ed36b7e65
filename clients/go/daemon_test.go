package tidegate

// Against the real daemon: what it says is understood, late replies reach nobody, and every lease ends.

import (
	"context"
	"errors"
	"fmt"
	"math/rand"
	"sync"
	"syscall"
	"testing"
	"time"
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

func TestTheDaemonsWord(t *testing.T) {
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
	// Out of bounds is the daemon's to say: it keeps the connection, and the breaker stays closed.
	for _, odd := range []*Decision{c.Hit(ctx, "a/b", nil), c.Hit(ctx, "api", Attributes{{"a:b", 1}}), c.Hit(ctx, "", nil),
		c.Hit(ctx, "api", nil, Cost(-1)), c.Hit(ctx, "api", nil, Cost(1<<40)), c.Hit(ctx, "api", nil, Priority("a/b")),
		c.Hit(ctx, "api", Attributes{{nil, 1}}), c.Hit(ctx, "\xff", nil), c.Hit(ctx, "api", nil, Idem(fmt.Sprint(make([]int, 99))))} {
		if !odd.Allowed || (odd.Degraded && odd.Reason != "protocol") {
			t.Fatalf("%+v", odd)
		}
	}
	if stats := c.Stats(); stats.Connections != 1 || stats.BreakerOpen {
		t.Fatalf("%+v", stats)
	}
}

func TestLongValuesOfTheDaemonsStayApart(t *testing.T) {
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

// However work ends, its place is free again.
func TestLeasesEnd(t *testing.T) {
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

// Acquires given up, because contexts end at any moment, hold no place once the daemon has heard of them.
func TestAbandonedAcquiresHoldNothing(t *testing.T) {
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

// Stopped and continued again and again while requests are under way: no verdict reaches another request, because each
// user's is known: even ones are let through, odd ones are over their limit.
func TestLateRepliesReachNobody(t *testing.T) {
	d := realDaemon(t, rules)
	c := client(t, d.path, WithTimeout(3*time.Millisecond))
	flips := 1_000
	if testing.Short() {
		flips = 100
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

// A restart with a socket that stays is for `again`; here the daemon is killed: work passes, and is limited soon after.
func TestARestartedDaemonIsFoundAgain(t *testing.T) {
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
