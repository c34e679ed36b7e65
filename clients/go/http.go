// Limits a net/http application. It sets headers before the handler runs and never wraps the ResponseWriter: what that
// can do, flushing, hijacking, deadlines, it can do still.

package tidegate

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"time"
)

// HTTP says how an application is limited. Every field may be left out; a function may be called by many goroutines at
// once, and one that panics lets the request pass.
//
// The daemon gets method, path, route, ip, user, user_agent and then Attributes, in this order.
type HTTP struct {
	Domain      string                                 // "web" if empty
	User        func(*http.Request) string             // who calls, as the application knows it; "": nobody known
	Route       func(*http.Request) string             // the matched pattern; else what net/http says (from Go 1.23)
	Attributes  func(*http.Request) Attributes         // more of them
	FromHeaders [][2]string                            // attributes and the headers that they are taken from
	Descriptors func(*http.Request) []Attributes       // judged besides
	Cost        func(*http.Request) CallOption         // Cost(n) or Costs(units)
	Priority    func(*http.Request) string             // never from an end user's header
	Exempt      func(*http.Request) bool               // true: not judged
	Outcome     func(*http.Request, *Decision) Outcome // after the handler's return, if it did not say by SetOutcome
	// OnRefused gives the answer to a refusal, or nil for the usual one; limit headers are there already.
	OnRefused func(*http.Request, *Decision) http.Handler
	// OnFailure says which paths are refused, with 503, when the daemon does not answer: Refuse, RefuseUnder("/pay").
	OnFailure func(path string) bool
	// TrustedProxies are whose X-Forwarded-For and X-Request-Start are believed (and the peer of a Unix socket then);
	// TrustedCount is how many proxies stand in front, instead.
	TrustedProxies []netip.Prefix
	TrustedCount   int
	Instrument     func(d *Decision, judging time.Duration) // after each decision
	Headers        string                                   // draft, legacy, both (if empty) or none
}

// Refuse is an OnFailure for every path.
func Refuse(string) bool { return true }

// RefuseUnder is an OnFailure for what is at these paths or below.
func RefuseUnder(paths ...string) func(string) bool {
	return func(path string) bool {
		for _, under := range paths {
			under = strings.TrimSuffix(under, "/")
			if path == under || strings.HasPrefix(path, under+"/") {
				return true
			}
		}
		return false
	}
}

type key struct{}

// NewContext is ctx with the decision in it.
func NewContext(ctx context.Context, d *Decision) context.Context {
	return context.WithValue(ctx, key{}, d)
}

// FromContext is the decision about the request of a handler; nil where there was none.
func FromContext(ctx context.Context) *Decision {
	d, _ := ctx.Value(key{}).(*Decision)
	return d
}

// Middleware judges every request before the handler sees it. What may not start is answered here. The lease ends when
// the handler returns: dropped if it panics or the caller hung up, else as SetOutcome, or HTTP.Outcome, said. It panics
// if Domain or FromHeaders have no valid names, or FromHeaders too many.
func (c *Client) Middleware(with HTTP) func(http.Handler) http.Handler {
	if with.Domain == "" {
		with.Domain = "web"
	}
	if err := with.check(); err != nil {
		panic(err)
	}
	m := &middleware{HTTP: with, client: c}
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { m.serve(next, w, r) })
	}
}

// check finds mistakes that would have every request refused.
func (with *HTTP) check() error {
	const own = 6 // attributes of the middleware itself
	if !IsName(with.Domain) {
		return fmt.Errorf("tidegate: HTTP.Domain %.99q is no name; help: %s", with.Domain, nameHelp)
	}
	for _, from := range with.FromHeaders {
		if !IsName(from[0]) {
			return fmt.Errorf("tidegate: HTTP.FromHeaders has %.99q, which is no name; help: %s", from[0], nameHelp)
		}
	}
	if count := len(with.FromHeaders); count > pairsMax-own {
		return fmt.Errorf("tidegate: HTTP.FromHeaders has %d attributes; help: use at most %d", count, pairsMax-own)
	}
	return nil
}

type middleware struct {
	HTTP
	client *Client
	warned sync.Once
}

func (m *middleware) serve(next http.Handler, w http.ResponseWriter, r *http.Request) {
	began := time.Now()
	d := m.judge(r)
	if d == nil {
		next.ServeHTTP(w, r)
		return
	}
	outcome := Dropped
	defer func() { d.ReleaseAs(outcome) }()
	if m.Instrument != nil {
		m.guarded("instrument", func() { m.Instrument(d, time.Since(began)) })
	}
	if !d.Allowed && r.Context().Err() != nil { // the caller has hung up
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	if !d.Allowed {
		refusal := http.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { refuse(w, d) }))
		if failed := m.guarded("on_refused", func() {
			if m.OnRefused != nil {
				if own := m.OnRefused(r, d); own != nil {
					refusal = own
				}
			}
		}); failed != nil {
			d = failed
		} else {
			m.limits(w, d)
			refusal.ServeHTTP(w, r)
			return
		}
	}
	if d.AwaitStart(r.Context()) != nil { // nobody waits for the answer any more, or not long enough
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	if r.Header.Get("If-None-Match")+r.Header.Get("If-Modified-Since") == "" { // else it may be a 304
		m.limits(w, d)
	}
	r = r.WithContext(NewContext(r.Context(), d))
	next.ServeHTTP(w, r)
	if outcome = OK; r.Context().Err() != nil {
		outcome = Dropped
	} else if m.Outcome != nil {
		m.guarded("outcome", func() { outcome = m.Outcome(r, d) })
	}
}

// judge asks the daemon; nil: exempt. A function of the application's that panics lets the request pass.
func (m *middleware) judge(r *http.Request) (d *Decision) {
	step := "exempt"
	defer func() {
		if why := recover(); why != nil {
			d = m.client.CallbackFailed(step, why)
		}
	}()
	if m.Exempt != nil && m.Exempt(r) {
		return nil
	}
	path, peer := cleanPath(r.URL.Path), peerOf(r)
	attributes := make(Attributes, 0, 8)
	attributes = append(attributes, [2]any{"method", r.Method}, [2]any{"path", path})
	step = "route"
	if m.Route != nil {
		attributes = append(attributes, [2]any{"route", m.Route(r)})
	} else {
		attributes = append(attributes, [2]any{"route", route(r)})
	}
	step = "user"
	attributes = append(attributes, [2]any{"ip", m.address(r, peer)}, [2]any{"user", call(m.User, r)},
		[2]any{"user_agent", r.UserAgent()})
	step = "attributes"
	attributes = append(attributes, call(m.Attributes, r)...)
	for _, from := range m.FromHeaders {
		attributes = append(attributes, [2]any{from[0], r.Header.Get(from[1])})
	}
	options := make([]CallOption, 0, 5)
	step = "descriptors"
	options = append(options, Descriptors(call(m.Descriptors, r)...))
	step = "priority"
	options = append(options, Priority(call(m.Priority, r)))
	step = "cost"
	if cost := call(m.Cost, r); cost != nil {
		options = append(options, cost)
	}
	step = "on_failure"
	if m.OnFailure != nil && m.OnFailure(path) {
		options = append(options, RefuseOnFailure())
	}
	if waited, said := m.queued(r, peer); said {
		options = append(options, Queued(waited))
	}
	return m.client.Acquire(r.Context(), m.Domain, attributes, options...)
}

func call[T any](function func(*http.Request) T, r *http.Request) (t T) {
	if function != nil {
		t = function(r)
	}
	return t
}

// guarded runs what the application gave; after a panic, the decision there is then.
func (m *middleware) guarded(what string, function func()) (failed *Decision) {
	defer func() {
		if why := recover(); why != nil {
			failed = m.client.CallbackFailed(what, why)
		}
	}()
	function()
	return nil
}

// limits sets the limit headers in the style that was asked for; Retry-After is of every style.
func (m *middleware) limits(w http.ResponseWriter, d *Decision) {
	for _, field := range d.Headers() {
		legacy, draft := strings.HasPrefix(field[0], "X-"), strings.HasPrefix(field[0], "RateLimit")
		if legacy && (m.Headers == "draft" || m.Headers == "none") || draft && (m.Headers == "legacy" || m.Headers == "none") {
			continue
		}
		w.Header().Set(field[0], field[1])
	}
}

// Redirect is http.Redirect without limit headers: who follows it would otherwise do so late because of them.
func Redirect(w http.ResponseWriter, r *http.Request, url string, code int) {
	for _, name := range limitHeaders {
		w.Header().Del(name)
	}
	http.Redirect(w, r, url, code)
}

var limitHeaders = []string{"RateLimit", "RateLimit-Policy", "X-Ratelimit-Limit", "X-Ratelimit-Remaining"}

func refuse(w http.ResponseWriter, d *Decision) {
	body := d.Problem()
	w.Header().Set("Content-Type", "application/problem+json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(d.Status)
	_, _ = w.Write(body)
}
