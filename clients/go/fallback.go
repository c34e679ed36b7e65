// Limits in this process while the daemon is unreachable.

package tidegate

import (
	"container/list"
	"crypto/sha256"
	"fmt"
	"math"
	"regexp"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"
)

// WithFallback limits in this process while the daemon is unreachable: a token bucket for each domain and set of
// attributes, such as "20/s", "100/min burst 200" or "10/30s". Its decisions are Degraded with the Reason fallback. Off
// by default. New panics if the rate is invalid.
func WithFallback(rate string) Option { return WithFallbacks(map[string]string{"*": rate}) }

// WithFallbacks is WithFallback by the name of the rule that last bound for the domain and attribute names, such as
// "per-user" or "api/per-user"; "*" is for all others. Without an entry the request is allowed, or refused by
// RefuseOnFailure.
func WithFallbacks(rates map[string]string) Option {
	return func(c *Client) {
		f := &fallback{entries: map[string]*quota{}}
		f.rules, f.buckets = newRecent(fallbackRulesMax), newRecent(fallbackBucketsMax)
		for name, text := range rates {
			quota, err := parseRate(text)
			if err != nil {
				c.problem = err
				return
			}
			f.entries[name] = quota
		}
		c.fallback = f
	}
}

const fallbackRulesMax, fallbackBucketsMax = 256, 10_000

// A quota is a rate and the tokens of a full bucket.
type quota struct{ perSecond, burst float64 }

var (
	rateForm = regexp.MustCompile(`^(\d+)/(\d*)(ms|s|min|h|day|week)(?: burst (\d+))?$`)
	periods  = map[string]time.Duration{"ms": time.Millisecond, "s": time.Second, "min": time.Minute, "h": time.Hour,
		"day": 24 * time.Hour, "week": 7 * 24 * time.Hour}
)

func parseRate(text string) (*quota, error) {
	wrong := func(reason string) error {
		const help = `write it like "20/s", "100/min burst 200" or "10/30s"`
		return fmt.Errorf("tidegate: the fallback %.99q %s; help: %s", text, reason, help)
	}
	found := rateForm.FindStringSubmatch(strings.TrimSpace(text))
	if found == nil {
		return nil, wrong("is not a rate")
	}
	number := func(digits string) float64 {
		n, err := strconv.ParseUint(digits, 10, 32)
		return when(err == nil, float64(n), 0)
	}
	n := number(found[1])
	burst, count := n, 1.0
	if found[2] != "" {
		count = number(found[2])
	}
	if found[4] != "" {
		burst = number(found[4])
	}
	seconds := count * periods[found[3]].Seconds()
	if n == 0 || burst == 0 || seconds == 0 {
		return nil, wrong("has a number that is not from 1 to 4294967295")
	} else if seconds > 366*24*3600 {
		return nil, wrong("has a period longer than 366 days")
	}
	return &quota{n / seconds, burst}, nil
}

// A fallback decides for a client; it is safe for concurrent use.
type fallback struct {
	entries map[string]*quota // by rule

	mu      sync.Mutex
	rules   *recent // by domain and attribute names: the last binding rule
	buckets *recent // by rate, domain and attributes: *bucket
}

// A bucket is the state of one key.
type bucket struct {
	tokens float64
	at     time.Time
}

// remember stores the binding rule of requests with the same domain and attribute names.
func (f *fallback) remember(q *request, rule string) {
	if rule == "" || len(f.entries) == 1 && f.entries["*"] != nil {
		return
	}
	key := fallbackKey(q, "", true)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rules.put(key, rule)
}

func (f *fallback) decide(q *request) *Decision {
	now := time.Now()
	f.mu.Lock()
	defer f.mu.Unlock()
	name, quota := "*", f.entries["*"]
	if rule, is := f.rules.get(fallbackKey(q, "", true)).(string); is {
		for _, known := range []string{q.domain + "/" + rule, rule} {
			if f.entries[known] != nil {
				name, quota = known, f.entries[known]
				break
			}
		}
	}
	if quota == nil {
		return nil
	}
	cost := q.amount
	if q.units != nil {
		cost = 1
		if n, has := q.units["requests"]; has {
			cost = n
		}
	}
	key := fallbackKey(q, name, false)
	b, is := f.buckets.get(key).(*bucket)
	if !is {
		b = &bucket{quota.burst, now}
		f.buckets.put(key, b)
	}
	return b.charge(quota, float64(cost), now, q.op == opPeek)
}

// charge refills the bucket and charges the cost if the tokens suffice.
func (b *bucket) charge(quota *quota, cost float64, now time.Time, peek bool) *Decision {
	const rounding = 1e-9 // of floating point
	b.tokens = math.Min(quota.burst, b.tokens+math.Max(0, now.Sub(b.at).Seconds())*quota.perSecond)
	b.at = now
	until := func(tokens float64) time.Duration { return seconds((tokens - b.tokens) / quota.perSecond) }
	d := &Decision{Degraded: true, Reason: "fallback", Unit: "requests", HasLimit: true, Limit: uint64(quota.burst)}
	d.Window = seconds(quota.burst / quota.perSecond)
	switch {
	case cost <= b.tokens+rounding:
		d.Allowed, d.Verdict, d.Status = true, VerdictAllow, 200
		if !peek {
			b.tokens = math.Max(0, b.tokens-cost)
		}
	case cost > quota.burst:
		d.Verdict, d.Status, d.RetryAfter = VerdictLimit, 429, Never
	default:
		d.Verdict, d.Status, d.RetryAfter = VerdictLimit, 429, until(cost)
	}
	d.Remaining = uint64(b.tokens + rounding)
	if b.tokens < quota.burst {
		d.ResetAfter = until(float64(d.Remaining + 1))
	}
	return d
}

// seconds converts to a Duration, rounded up to microseconds, at most 285 years.
func seconds(s float64) time.Duration {
	return time.Duration(math.Min(math.Ceil(s*1e6), 9e15)) * time.Microsecond
}

// fallbackKey returns a digest of domain, entry and sorted attributes, so that every key has the same size.
func fallbackKey(q *request, entry string, names bool) (key [sha256.Size]byte) {
	parts := make([]string, 0, len(q.texts)/2+2)
	for i := 0; i+1 < len(q.texts); i += 2 {
		parts = append(parts, q.texts[i]+when(names, "", "\x00"+q.texts[i+1]))
	}
	sort.Strings(parts)
	digest := sha256.New()
	for _, part := range append(parts, q.domain, entry) {
		fmt.Fprintf(digest, "%d:%s", len(part), part)
	}
	digest.Sum(key[:0])
	return key
}

// recent is an LRU map.
type recent struct {
	most  int
	order *list.List // of kept, most recently used first
	byKey map[[sha256.Size]byte]*list.Element
}

type kept struct {
	key   [sha256.Size]byte
	value any
}

func newRecent(most int) *recent {
	return &recent{most, list.New(), map[[sha256.Size]byte]*list.Element{}}
}

func (r *recent) get(key [sha256.Size]byte) any {
	found := r.byKey[key]
	if found == nil {
		return nil
	}
	r.order.MoveToFront(found)
	return found.Value.(*kept).value
}

func (r *recent) put(key [sha256.Size]byte, value any) {
	if found := r.byKey[key]; found != nil {
		found.Value.(*kept).value = value
		r.order.MoveToFront(found)
		return
	}
	if r.order.Len() == r.most {
		oldest := r.order.Remove(r.order.Back()).(*kept)
		delete(r.byKey, oldest.key)
	}
	r.byKey[key] = r.order.PushFront(&kept{key, value})
}
