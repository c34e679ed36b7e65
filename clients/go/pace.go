// Paces calls to limited services: waits before a refusal, and limits retries.

package tidegate

import (
	"context"
	"io"
	"math"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Pacer is a http.RoundTripper that obeys the RateLimit or X-Ratelimit headers of a service: with no quota left it
// delays requests until the reset, spaced apart. It retries a 429 or 503 after Retry-After, or a doubling time, both
// with full jitter, within a budget of a tenth of all requests, so that retries do not amplify an overload. The zero
// value is ready to use.
//
//	client := &http.Client{Transport: &tidegate.Pacer{}}
type Pacer struct {
	Base    http.RoundTripper          // http.DefaultTransport if nil
	Retries int                        // of one request; 3 if 0, none if below
	MaxWait time.Duration              // longest wait; 30 s if 0. Longer waits are skipped
	Key     func(*http.Request) string // requests with one key share their limits; the host if nil
	sleep   func(context.Context, time.Duration) error

	mu     sync.Mutex
	budget float64 // spent retries; each request earns back a tenth
	paces  map[string]*pace
}

// A pace is the known state of one limit.
type pace struct {
	left     float64
	known    bool
	next     time.Time     // the next start of a delayed request
	interval time.Duration // between delayed requests
}

// RoundTrip implements http.RoundTripper.
func (p *Pacer) RoundTrip(r *http.Request) (*http.Response, error) {
	key := r.URL.Host
	if p.Key != nil {
		key = p.Key(r)
	}
	base := p.Base
	if base == nil {
		base = http.DefaultTransport
	}
	p.earn()
	for attempt := 0; ; attempt++ {
		if err := p.wait(r.Context(), p.turn(key)); err != nil {
			return nil, err
		}
		response, err := base.RoundTrip(r)
		if err != nil {
			return nil, err
		}
		p.learn(key, response.Header)
		again, after := p.again(r, response, attempt)
		if !again {
			return response, nil
		}
		next := r.Clone(r.Context())
		if r.GetBody != nil {
			if next.Body, err = r.GetBody(); err != nil {
				return response, nil
			}
		}
		_, _ = io.CopyN(io.Discard, response.Body, 64<<10) // so that the connection can be reused
		_ = response.Body.Close()
		if err := p.wait(r.Context(), after); err != nil {
			return nil, err
		}
		r = next
	}
}

// again reports whether to retry, and after which time.
func (p *Pacer) again(r *http.Request, response *http.Response, attempt int) (bool, time.Duration) {
	retries := p.Retries
	if retries == 0 {
		retries = 3
	}
	after, given := retryAfter(response.Header)
	replays := r.Body == nil || r.Body == http.NoBody || r.GetBody != nil
	switch response.StatusCode {
	case http.StatusTooManyRequests: // the request has had no effect
	case http.StatusServiceUnavailable: // the request may have started
		replays = replays && given && (r.Method == "GET" || r.Method == "HEAD" || r.Method == "OPTIONS" || r.Method == "PUT" ||
			r.Method == "DELETE" || r.Method == "")
	default:
		return false, 0
	}
	full := time.Duration(float64(backoffMin) * math.Pow(2, float64(attempt)))
	if full > backoffMax {
		full = backoffMax
	}
	after += time.Duration(random() * float64(full))
	if !replays || attempt >= retries || after > p.longest() || !p.spend() {
		return false, 0
	}
	return true, after
}

const (
	backoffMin, backoffMax  = 100 * time.Millisecond, 10 * time.Second
	budgetMax, earnedByEach = 10.0, 0.1
)

func (p *Pacer) longest() time.Duration {
	if p.MaxWait > 0 {
		return p.MaxWait
	}
	return 30 * time.Second
}

func (p *Pacer) earn() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.budget = math.Max(0, p.budget-earnedByEach)
}

func (p *Pacer) spend() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.budget+1 > budgetMax {
		return false
	}
	p.budget++
	return true
}

// turn returns the delay of the next request, and reserves its start.
func (p *Pacer) turn(key string) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	known := p.paces[key]
	if known == nil || !known.known {
		return 0
	}
	if known.left >= 1 {
		known.left--
		return 0
	}
	wait := time.Until(known.next)
	if wait > p.longest() {
		return 0 // the service will refuse it
	}
	if wait < 0 {
		wait, known.next = 0, time.Now()
	}
	known.next = known.next.Add(known.interval)
	return wait
}

// learn updates the pace from the headers of a response.
func (p *Pacer) learn(key string, h http.Header) {
	left, more, known := remaining(h)
	if !known {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.paces == nil || len(p.paces) >= pacesMax {
		p.paces = map[string]*pace{}
	}
	now := p.paces[key]
	if now == nil {
		now = &pace{}
		p.paces[key] = now
	}
	now.interval = interval(h)
	if next := time.Now().Add(more); left < 1 && (now.left >= 1 || !now.known || next.After(now.next)) {
		now.next = next
	}
	now.left, now.known = left, true
}

const pacesMax = 1_000

func (p *Pacer) wait(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	if p.sleep != nil {
		return p.sleep(ctx, d)
	}
	return (&Decision{Wait: d}).AwaitStart(ctx)
}

// retryAfter parses Retry-After: seconds or a date.
func retryAfter(h http.Header) (time.Duration, bool) {
	text := h.Get("Retry-After")
	if text == "" {
		text = h.Get("X-Ratelimit-Retry-After")
	}
	if seconds, err := strconv.ParseUint(text, 10, 31); err == nil {
		return time.Duration(seconds) * time.Second, true
	}
	if at, err := http.ParseTime(text); err == nil {
		if wait := time.Until(at); wait > 0 {
			return wait, true
		}
		return 0, true
	}
	return 0, false
}

// remaining returns the rest of the tightest limit, and the time until its reset.
func remaining(h http.Header) (left float64, more time.Duration, known bool) {
	for _, item := range items(h.Values("RateLimit")) {
		r, has := item["r"]
		if !has {
			continue
		}
		t := time.Duration(item["t"] * float64(time.Second))
		if !known || r < left || r == left && t > more {
			left, more, known = r, t, true
		}
	}
	if n, err := strconv.ParseFloat(h.Get("X-Ratelimit-Remaining"), 64); !known && err == nil {
		left, known = n, true
	}
	if after, given := retryAfter(h); given && known && left < 1 && after > more {
		more = after
	}
	return left, more, known
}

// interval returns the sustainable interval of requests under the slowest policy.
func interval(h http.Header) (slowest time.Duration) {
	for _, item := range items(h.Values("RateLimit-Policy")) {
		if q, w := item["q"], item["w"]; q > 0 && w > 0 {
			if apart := time.Duration(w / q * float64(time.Second)); apart > slowest {
				slowest = apart
			}
		}
	}
	return slowest
}

// items parses a list of structured fields: the numeric parameters of each item.
func items(fields []string) (all []map[string]float64) {
	quoted := false
	split := func(s string, by rune) []string {
		quoted = false
		escaped := false
		return strings.FieldsFunc(s, func(c rune) bool {
			switch {
			case escaped:
				escaped = false
			case quoted && c == '\\':
				escaped = true
			case c == '"':
				quoted = !quoted
			}
			return c == by && !quoted
		})
	}
	for _, item := range split(strings.Join(fields, ","), ',') {
		numbers := map[string]float64{}
		for _, parameter := range split(item, ';') {
			name, value, _ := strings.Cut(strings.TrimSpace(parameter), "=")
			if n, err := strconv.ParseFloat(value, 64); err == nil && n >= 0 && n < 1e9 {
				numbers[name] = n
			}
		}
		all = append(all, numbers)
	}
	return all
}
