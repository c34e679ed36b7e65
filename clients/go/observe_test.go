package tidegate

import (
	"context"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tidegate/tidegate/clients/go/internal/logs"
	"github.com/tidegate/tidegate/clients/go/internal/peer"
)

type observed struct {
	sync.Mutex
	decisions []*Decision
	took      []time.Duration
}

func (o *observed) record(d *Decision, took time.Duration) {
	o.Lock()
	defer o.Unlock()
	o.decisions, o.took = append(o.decisions, d), append(o.took, took)
}

func TestReportsEachDecision(t *testing.T) {
	t.Parallel()
	p := played(t, reply(limit...))
	o := &observed{}
	c := client(t, p.Path, WithOnDecision(o.record))
	acquired := c.Acquire(ctx, "api", u1)
	hit := c.Hit(ctx, "api", u1)
	denied, is := c.Limit(ctx, "api", u1, nil).(*Denied)
	c.Peek(ctx, "api", u1)
	c.Check()
	if !is || len(o.decisions) != 3 || o.decisions[0] != acquired || o.decisions[1] != hit || o.decisions[2] != denied.Decision {
		t.Fatalf("%v %v", is, o.decisions)
	}
	for _, took := range o.took {
		if took <= 0 || took > patient {
			t.Errorf("took %v", took)
		}
	}
}

func TestReportsDecisionsWithoutTheDaemon(t *testing.T) {
	t.Parallel()
	o := &observed{}
	c := New(WithSocket("/nowhere/s"), WithLogger(&logs.Lines{}), WithOnDecision(o.record))
	c.Hit(ctx, "api", u1)
	c.Hit(ctx, "api", u1, RefuseOnFailure())
	c.Hit(ctx, "a:b", u1)
	over, cancel := context.WithCancel(ctx)
	cancel()
	c.Hit(over, "api", u1)
	equal(t, reasons(o.decisions...), "[unreachable breaker invalid cancelled]")
}

func TestAPanicOfOnDecisionIsLoggedOnce(t *testing.T) {
	t.Parallel()
	p := played(t, reply(limit...))
	logged := &logs.Lines{}
	c := client(t, p.Path, WithLogger(logged), WithOnDecision(func(*Decision, time.Duration) { panic("secret") }))
	for i := 0; i < 2; i++ {
		if d := c.Acquire(ctx, "api", u1); d.Verdict != VerdictLimit {
			t.Fatalf("%+v", d)
		}
	}
	lines := logged.All()
	if len(lines) != 1 || !strings.Contains(lines[0], "on_decision panicked (string)") || strings.Contains(lines[0], "secret") {
		t.Fatal(lines)
	}
}

func TestAGoroutineThatEndsInOnDecisionReleasesItsLease(t *testing.T) {
	t.Parallel()
	p := played(t, reply(0, "per-user", 40, 2_000_000, 39, 50_000, 0, 77))
	c := client(t, p.Path, WithOnDecision(func(*Decision, time.Duration) { runtime.Goexit() }))
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.Acquire(ctx, "api", u1)
		t.Error("Acquire returned")
	}()
	<-done
	equal(t, releases(t, p, 1), "[[<nil> 77 2]]")
}

func TestTheLastOnDecisionIsUsed(t *testing.T) {
	t.Parallel()
	o := &observed{}
	quiet := WithLogger(&logs.Lines{})
	New(WithSocket("/nowhere/s"), quiet, WithOnDecision(o.record), WithOnDecision(nil)).Hit(ctx, "api", u1)
	if len(o.decisions) != 0 {
		t.Fatal(o.decisions)
	}
}

func TestARefusalHasDomainRuleAndDigest(t *testing.T) {
	t.Parallel()
	const digest = "5f0c0f6ae0b54c1d9a2f6be0c1d4e7a3"
	p := played(t, reply(1, "per-user", 40, 2_000_000, 0, 50_000, 50_000, nil, nil, nil, peer.Map{{"rate", "20/s"}, {"digest", digest}}))
	d := client(t, p.Path).Hit(ctx, "shop", u1)
	equal(t, [3]string{d.Domain, d.Rule, d.Digest}, [3]string{"shop", "per-user", digest})
	if body := string(d.Problem()); !strings.Contains(body, `"window":2,"domain":"shop","digest":"`+digest+`",`) {
		t.Fatal(body)
	}
	if d := client(t, played(t, reply(0)).Path).Hit(ctx, "shop", u1); d.Domain != "" {
		t.Fatalf("%+v", d)
	}
}
