package tidegate

// The buckets in this process, used without the daemon.

import (
	"context"
	"fmt"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func TestRatesOfFallbacks(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]quota{
		"20/s": {20, 20}, "20/s burst 40": {20, 40}, "60/min": {1, 60}, "3600/h": {1, 3600}, "86400/day": {1, 86400},
		"10/20s": {0.5, 10}, " 1/ms ": {1000, 1}, "4294967295/s": {math.MaxUint32, math.MaxUint32}, "7/week burst 1": {7.0 / 604800, 1},
	} {
		if got, err := parseRate(text); err != nil || math.Abs(got.perSecond-want.perSecond) > 1e-9*want.perSecond || got.burst != want.burst {
			t.Errorf("%q: %+v %v", text, got, err)
		}
	}
	for _, text := range []string{"", "20", "20/", "/s", "0/s", "-1/s", "1.5/s", "20/sec", "20/m", "20/0s", "20/s burst", "20/s burst 0",
		"20/s burst -1", "4294967296/s", "20/s burst 99999999999999999999", "1/99999day", "20 / s", "20/s burst 40 x", "२०/s"} {
		if _, err := parseRate(text); err == nil || !strings.Contains(err.Error(), "help: ") {
			t.Errorf("%q: %v", text, err)
		}
		for _, option := range []Option{WithFallback(text), WithFallbacks(map[string]string{"*": "1/s", "per-user": text})} {
			func() {
				defer func() {
					if recover() == nil {
						t.Errorf("New takes %q", text)
					}
				}()
				New(option)
			}()
		}
	}
}

func TestABucketOfTheFallback(t *testing.T) {
	t.Parallel()
	const second = time.Second
	start := time.Now()
	for name, steps := range map[string][]struct {
		at        time.Duration
		cost      int64
		peek      bool
		verdict   Verdict
		remaining uint64
		retry     time.Duration
		reset     time.Duration
	}{
		"it refills": {
			{0, 2, false, "allow", 0, 0, second / 2}, {0, 1, false, "limit", 0, second / 2, second / 2},
			{second/2 - time.Microsecond, 1, false, "limit", 0, time.Microsecond, time.Microsecond},
			{second / 2, 1, false, "allow", 0, 0, second / 2}, {time.Hour, 2, false, "allow", 0, 0, second / 2},
		},
		"a cost above the burst never passes": {{0, 3, false, "limit", 2, Never, 0}, {time.Hour, 3, false, "limit", 2, Never, 0}},
		"a peek takes nothing":                {{0, 1, true, "allow", 2, 0, 0}, {0, 2, true, "allow", 2, 0, 0}, {0, 3, true, "limit", 2, Never, 0}},
		"cost 0 passes":                       {{0, 2, false, "allow", 0, 0, second / 2}, {0, 0, false, "allow", 0, 0, second / 2}},
		"time never runs back":                {{second, 2, false, "allow", 0, 0, second / 2}, {0, 1, false, "limit", 0, second / 2, second / 2}},
		"the largest cost":                    {{0, math.MaxInt64, false, "limit", 2, Never, 0}},
	} {
		b := &bucket{2, start}
		for i, step := range steps {
			d := b.charge(&quota{2, 2}, float64(step.cost), start.Add(step.at), step.peek)
			if d.Verdict != step.verdict || d.Remaining != step.remaining || d.RetryAfter != step.retry || d.ResetAfter != step.reset ||
				d.Status != when(d.Allowed, 200, 429) || d.Limit != 2 || d.Window != second || !d.Degraded || d.Reason != "fallback" ||
				d.Rule != "" || d.Allowed != (step.verdict == "allow") {
				t.Errorf("%s, step %d: %+v", name, i, d)
			}
		}
	}
	if d := (&bucket{0, start}).charge(&quota{1.0 / (366 * 86400), math.MaxUint32}, 1e9, start, false); d.RetryAfter <= 0 || d.Window <= 0 {
		t.Errorf("%+v", d)
	}
}

// Without the daemon the bucket decides, regardless of RefuseOnFailure, for each domain and set of attributes.
func TestTheFallbackLimits(t *testing.T) {
	t.Parallel()
	p := played(t, reply(limit...))
	c := client(t, p.Path, WithFallback("3/h"))
	if d := hits(c, 1)[0]; d.Degraded || d.Rule != "per-user" {
		t.Fatalf("%+v", d)
	}
	p.Hide()
	c.Close()
	ab, ba := Attributes{{"a", 1}, {"b", 2}}, Attributes{{"b", "2"}, {"a", "1"}}
	for i := 0; i < 5; i++ {
		for name, d := range map[string]*Decision{
			"u1": c.Hit(ctx, "api", u1, RefuseOnFailure()), "u2": c.Acquire(ctx, "api", Attributes{{"user", "u2"}}),
			"web": c.Hit(ctx, "web", u1), "order": c.Hit(ctx, "api", when(i%2 == 0, ab, ba)),
		} {
			if d.Allowed != (i < 3) || !d.Degraded || d.Reason != "fallback" {
				t.Errorf("%s, %d: %+v", name, i, d)
			}
		}
	}
	d := c.Hit(ctx, "api", u1)
	if d.RetryAfter <= 19*time.Minute || d.RetryAfter > 20*time.Minute || !strings.HasPrefix(d.Message(), "Too many requests. Try again in 1") {
		t.Fatalf("%+v %s", d, d.Message())
	}
	if fields := fmt.Sprint(d.Headers()); !strings.Contains(fields, "Retry-After") || strings.Contains(fields, "Ratelimit:") {
		t.Fatal(fields)
	}
	if missed := c.Stats().Missed; missed["fallback"] != 0 || missed["breaker"]+missed["unreachable"] != 21 {
		t.Fatalf("%v", missed)
	}
	units := Attributes{{"user", "units"}}
	for i, cost := range []CallOption{Costs(Units{"tokens": 800}), Costs(Units{"requests": 2, "tokens": 800}), Cost(1)} {
		if d := c.Hit(ctx, "api", units, cost); d.Allowed != (i < 2) {
			t.Errorf("%d: %+v", i, d)
		}
	}
	if d := c.Hit(ctx, "api", u1, Cost(4)); d.RetryAfter != Never {
		t.Errorf("%+v", d)
	}
	if d := c.Hit(ctx, "api", u1, Cost(-1)); d.Degraded || d.Reason != "invalid" {
		t.Errorf("%+v", d)
	}
	over, cancel := context.WithCancel(ctx)
	cancel()
	if d := c.Hit(over, "api", units); d.Err() != context.Canceled {
		t.Errorf("%+v", d)
	}
}

// By rule: the last binding one for domain and attribute names; then "*"; then as without a fallback.
func TestFallbacksByRule(t *testing.T) {
	t.Parallel()
	p := played(t, reply(allow...))
	c := client(t, p.Path, WithFallbacks(map[string]string{"per-user": "2/h", "web/per-user": "3/h", "global": "1/h"}))
	paths := Attributes{{"path", "/"}}
	c.Hit(ctx, "api", u1)
	c.Hit(ctx, "web", u1)
	p.Play(reply(0, "global", 1, 1, 1, 1, 0))
	c.Hit(ctx, "api", paths)
	p.Play(reply(0, "unknown", 1, 1, 1, 1, 0))
	c.Hit(ctx, "api", Attributes{{"ip", "::1"}})
	p.Hide()
	c.Close()
	for i := 0; i < 5; i++ {
		for name, row := range map[string]struct {
			d      *Decision
			passes int
		}{
			"per-user": {c.Hit(ctx, "api", Attributes{{"user", "another"}}), 2}, "web/per-user": {c.Hit(ctx, "web", u1), 3},
			"global": {c.Hit(ctx, "api", paths), 1},
		} {
			if row.d.Allowed != (i < row.passes) || row.d.Reason != "fallback" {
				t.Errorf("%s, %d: %+v", name, i, row.d)
			}
		}
		for _, attributes := range []Attributes{{{"ip", "::1"}}, {{"never", "seen"}}} {
			d, refused := c.Hit(ctx, "api", attributes), c.Hit(ctx, "api", attributes, RefuseOnFailure())
			if !d.Allowed || d.Reason == "fallback" || refused.Allowed || refused.Status != 503 {
				t.Errorf("%+v %+v", d, refused)
			}
		}
	}
}

func TestFallbacksAreBounded(t *testing.T) {
	t.Parallel()
	r := newRecent(3)
	key := func(i int) (k [32]byte) { k[0] = byte(i); return k }
	for i := 0; i < 3; i++ {
		r.put(key(i), i)
	}
	r.get(key(0))
	r.put(key(1), 10)
	r.put(key(3), 3)
	if r.get(key(2)) != nil || r.get(key(0)) != 0 || r.get(key(1)) != 10 || r.get(key(3)) != 3 || len(r.byKey) != 3 || r.order.Len() != 3 {
		t.Fatalf("%v", r.byKey)
	}
	c := client(t, "/nowhere/s", WithFallback("1/h"))
	hits(c, 1)
	for i := 0; i < fallbackBucketsMax; i++ {
		c.Hit(ctx, "api", Attributes{{"user", i}})
	}
	if f := c.fallback.(*fallback); f.buckets.order.Len() != fallbackBucketsMax || len(f.buckets.byKey) != fallbackBucketsMax {
		t.Fatalf("%d buckets", f.buckets.order.Len())
	}
	if d := hits(c, 1)[0]; !d.Allowed { // it was the oldest
		t.Fatalf("%+v", d)
	}
}

func TestAFallbackIsSafeForManyCallers(t *testing.T) {
	t.Parallel()
	c := client(t, "/nowhere/s", WithFallback("100/h"))
	passed := atomic.Int32{}
	var all sync.WaitGroup
	for i := 0; i < 8; i++ {
		all.Add(1)
		go func() {
			defer all.Done()
			for j := 0; j < 100; j++ {
				if hits(c, 1)[0].Allowed {
					passed.Add(1)
				}
			}
		}()
	}
	all.Wait()
	if passed.Load() != 100 {
		t.Fatalf("%d passed", passed.Load())
	}
}
