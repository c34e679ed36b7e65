package tidegate

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
)

// A paced client against a scripted real server; waits are recorded instead of slept. Tests with
// servers of httptest run alone: closing one ends connections of the others.
func paced(t *testing.T, pacer *Pacer, answer http.HandlerFunc) (get func(method, body string) *http.Response, waits func() []time.Duration) {
	t.Helper()
	server := httptest.NewServer(answer)
	t.Cleanup(server.Close)
	var mu sync.Mutex
	var waited []time.Duration
	pacer.sleep = func(ctx context.Context, d time.Duration) error {
		mu.Lock()
		defer mu.Unlock()
		waited = append(waited, d)
		return ctx.Err()
	}
	client := &http.Client{Transport: pacer}
	return func(method, body string) *http.Response {
			request, err := http.NewRequest(method, server.URL, strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			response, err := client.Do(request)
			if err != nil {
				t.Fatal(err)
			}
			_, _ = io.Copy(io.Discard, response.Body)
			response.Body.Close()
			return response
		}, func() []time.Duration {
			mu.Lock()
			defer mu.Unlock()
			return append([]time.Duration(nil), waited...)
		}
}

func near(d, want time.Duration) bool { return d > want-1500*time.Millisecond && d <= want }

func TestWaitsBeforeARefusal(t *testing.T) {
	for name, headers := range map[string][]string{
		"draft": {"RateLimit", `"a;b,";r=30;t=1, "per-user";r=0;t=5`, "RateLimit-Policy", `"per-user";q=10;w=10`},
		"old":   {"X-Ratelimit-Remaining", "0", "Retry-After", "5"},
	} {
		get, waits := paced(t, &Pacer{}, func(w http.ResponseWriter, _ *http.Request) {
			for i := 0; i < len(headers); i += 2 {
				w.Header().Set(headers[i], headers[i+1])
			}
		})
		get("GET", "")
		if len(waits()) != 0 {
			t.Fatal("the first knows nothing")
		}
		get("GET", "")
		if all := waits(); len(all) != 1 || !near(all[0], 5*time.Second) {
			t.Fatalf("%s: %v", name, all)
		}
	}
}

func TestWaitingCallsAreSpaced(t *testing.T) {
	p := &Pacer{}
	h := http.Header{}
	h.Set("RateLimit", `"u";r=2;t=3`)
	h.Set("RateLimit-Policy", `"u";q=5;w=10`)
	p.learn("host", h)
	equal(t, []time.Duration{p.turn("host"), p.turn("host")}, []time.Duration{0, 0})
	h.Set("RateLimit", `"u";r=0;t=3`)
	p.learn("host", h)
	for i := 0; i < 4; i++ {
		if got, want := p.turn("host"), time.Duration(3+2*i)*time.Second; !near(got, want) {
			t.Fatalf("%d: %v, not %v", i, got, want)
		}
	}
	if p.turn("another") != 0 {
		t.Fatal("another host waits")
	}
}

func TestRetriesAfterRetryAfter(t *testing.T) {
	calls, bodies := 0, ""
	get, waits := paced(t, &Pacer{}, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		bodies += string(body)
		if calls++; calls < 3 {
			w.Header().Set("Retry-After", "2")
			w.WriteHeader(429)
		}
	})
	if response := get("POST", "body "); response.StatusCode != 200 || bodies != "body body body " {
		t.Fatalf("%d %q", response.StatusCode, bodies)
	}
	all := waits()
	if len(all) != 2 || all[0] < 2*time.Second || all[0] > 2*time.Second+backoffMin || all[1] > 2*time.Second+2*backoffMin || all[0] == all[1] {
		t.Fatalf("%v", all)
	}
}

func TestDoesNotRetry(t *testing.T) {
	for name, row := range map[string]struct {
		pacer   *Pacer
		status  int
		after   string
		method  string
		calls   int
		retried bool
	}{
		"a 500":                   {&Pacer{}, 500, "1", "GET", 1, false},
		"a 503 that says nothing": {&Pacer{}, 503, "", "GET", 1, false},
		"a POST at a 503":         {&Pacer{}, 503, "1", "POST", 1, false},
		"a GET at a 503":          {&Pacer{}, 503, "1", "GET", 4, true},
		"a 429 without a time":    {&Pacer{}, 429, "", "POST", 4, true},
		"too long":                {&Pacer{}, 429, "31", "GET", 1, false},
		"no retries":              {&Pacer{Retries: -1}, 429, "1", "GET", 1, false},
		"a date that has been":    {&Pacer{Retries: 1}, 429, "Mon, 02 Jan 2006 15:04:05 GMT", "GET", 2, true},
	} {
		calls := 0
		get, _ := paced(t, row.pacer, func(w http.ResponseWriter, _ *http.Request) {
			calls++
			if row.after != "" {
				w.Header().Set("Retry-After", row.after)
			}
			w.WriteHeader(row.status)
		})
		if response := get(row.method, ""); response.StatusCode != row.status || calls != row.calls {
			t.Errorf("%s: %d after %d calls", name, response.StatusCode, calls)
		}
	}
}

// Retries stay within a tenth of all requests, and ten initially.
func TestTheBudget(t *testing.T) {
	calls := 0
	get, _ := paced(t, &Pacer{}, func(w http.ResponseWriter, _ *http.Request) {
		calls++
		w.WriteHeader(429)
	})
	for i := 0; i < 200; i++ {
		get("GET", "")
	}
	if calls > 200+10+20 || calls < 210 {
		t.Fatalf("%d calls", calls)
	}
}

func TestAContextEndsItsWaiting(t *testing.T) {
	p := &Pacer{}
	h := http.Header{}
	h.Set("RateLimit", `"u";r=0;t=20`)
	p.learn("127.0.0.1:1", h)
	ended, cancel := contextFor(10 * time.Millisecond)
	defer cancel()
	request, _ := http.NewRequestWithContext(ended, "GET", "http://127.0.0.1:1/", nil)
	if _, err := p.RoundTrip(request); err != context.DeadlineExceeded {
		t.Fatal(err)
	}
}

func TestFieldsOfAnyKindAreRead(t *testing.T) {
	for _, field := range []string{"", ";", ",", `"`, `"\`, `"x`, `"x";r`, `"x";r=`, `"x";r=-1`, `"x";r=1e400`, strings.Repeat(";r=1,", 9_000), "\xff"} {
		h := http.Header{"Ratelimit": {field}, "Ratelimit-Policy": {field}, "Retry-After": {field}}
		_, _, _ = remaining(h)
		_ = interval(h)
		_, _ = retryAfter(h)
	}
	left, more, known := remaining(http.Header{"Ratelimit": {`"a\",;";r=7;t=2`, `"b";r=3;t=9`}})
	equal(t, []any{left, more, known}, []any{3.0, 9 * time.Second, true})
}

// Against a limited application, end to end: pacing by the middleware's headers avoids all refusals.
func TestPacedByTheMiddleware(t *testing.T) {
	d := realDaemon(t, "domain: web\nlimits:\n  - {name: all, key: [], rate: 20/s, burst: 5}\n")
	refused, served := 0, 0
	limited := client(t, d.path).Middleware(HTTP{})(http.HandlerFunc(fine))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		limited.ServeHTTP(w, r)
		if w.Header().Get("Retry-After") != "" {
			refused++
		} else {
			served++
		}
	}))
	defer server.Close()
	client := &http.Client{Transport: &Pacer{}}
	for i := 0; i < 8; i++ {
		response, err := client.Get(server.URL)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
	}
	if refused != 0 || served != 8 {
		t.Fatal(fmt.Sprint(refused, " refused, ", served, " served"))
	}
}
