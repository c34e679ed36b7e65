// Limits a net/http application. It sets headers before the handler runs and never wraps the ResponseWriter, so that
// flushing, hijacking and deadlines work.

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

// HTTP has the options of a middleware; all are optional. Functions must be safe for concurrent use; if one panics, the
// request is checked without its value.
//
// The attributes are method, path, route, ip, user, user_agent and then Attributes, in this order.
type HTTP struct {
	Domain      string                                 // "web" if empty
	User        func(*http.Request) string             // the caller; "": unknown
	Route       func(*http.Request) string             // the matched pattern, as RouteOf; default: net/http's (Go 1.23), known inside of the ServeMux
	Attributes  func(*http.Request) Attributes         // further attributes
	FromHeaders [][2]string                            // names of attributes and their headers
	Descriptors func(*http.Request) []Attributes       // further descriptors
	Cost        func(*http.Request) CallOption         // Cost(n) or Costs(units)
	Priority    func(*http.Request) string             // never from a caller's header
	Exempt      func(*http.Request) bool               // true: no check
	Outcome     func(*http.Request, *Decision) Outcome // after the handler's return, unless it called SetOutcome
	// OnRefused returns a handler for a refusal, or nil for the default; limit headers are set before.
	OnRefused func(*http.Request, *Decision) http.Handler
	// OnFailure returns true for paths to refuse (503) when the daemon does not answer: Refuse, RefuseUnder("/pay").
	OnFailure func(path string) bool
	// TrustedProxies are networks of proxies whose X-Forwarded-For and X-Request-Start count (with any network, also the
	// peer of a Unix socket); TrustedCount is the number of proxies instead.
	TrustedProxies []netip.Prefix
	TrustedCount   int
	Instrument     func(d *Decision, judging time.Duration) // after each decision
	Headers        string                                   // draft, legacy, both (if empty) or none
}

// Refuse is an OnFailure for every path.
func Refuse(string) bool { return true }

// RefuseUnder returns an OnFailure for these paths and all below them.
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

// RouteOf returns a Route for a middleware around mux: the pattern that mux will match, without its method.
func RouteOf(mux *http.ServeMux) func(*http.Request) string {
	return func(r *http.Request) string {
		_, pattern := mux.Handler(r)
		return pattern[strings.IndexByte(pattern, ' ')+1:]
	}
}

type key struct{}

// NewContext returns ctx with the decision.
func NewContext(ctx context.Context, d *Decision) context.Context {
	return context.WithValue(ctx, key{}, d)
}

// FromContext returns the decision on the request of a handler; nil without one.
func FromContext(ctx context.Context) *Decision {
	d, _ := ctx.Value(key{}).(*Decision)
	return d
}

// Middleware checks every request before the handler runs, and answers refused ones. The lease ends when the handler
// returns: dropped if it panics or the caller hung up, else with the outcome of SetOutcome or HTTP.Outcome. It panics if
// Domain or FromHeaders have invalid names, FromHeaders too many, or Headers another word.
func (c *Client) Middleware(with HTTP) func(http.Handler) http.Handler {
	if with.Domain == "" {
		with.Domain = "web"
	}
	if err := with.check(); err != nil {
		panic(err)
	}
	m := &middleware{HTTP: with, client: c.made()}
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { m.serve(next, w, r) })
	}
}

// check finds mistakes because of which every request would be refused.
func (with *HTTP) check() error {
	const own = 6 // attributes of the middleware itself
	if !IsName(with.Domain) {
		return fmt.Errorf("tidegate: HTTP.Domain %.99q is not a name; help: %s", with.Domain, nameHelp)
	}
	for _, from := range with.FromHeaders {
		if !IsName(from[0]) {
			return fmt.Errorf("tidegate: HTTP.FromHeaders has %.99q, which is not a name; help: %s", from[0], nameHelp)
		}
	}
	switch with.Headers {
	case "", "both", "draft", "legacy", "none":
	default:
		return fmt.Errorf("tidegate: HTTP.Headers is draft, legacy, both or none, not %.99q", with.Headers)
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
	d := m.decide(r)
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
		m.guarded("on_refused", func() {
			if m.OnRefused != nil {
				if own := m.OnRefused(r, d); own != nil {
					refusal = own
				}
			}
		})
		m.limits(w, d)
		refusal.ServeHTTP(w, r)
		return
	}
	if d.AwaitStart(r.Context()) != nil { // the caller hung up, or its deadline passed
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	if r.Header.Get("If-None-Match")+r.Header.Get("If-Modified-Since") == "" { // else the response may be a 304
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

// decide returns the decision; nil if the request is exempt.
func (m *middleware) decide(r *http.Request) *Decision {
	c := m.client
	if call(c, "exempt", m.Exempt, r) {
		return nil
	}
	path, peer := cleanPath(r.URL.Path), peerOf(r)
	pattern := m.Route
	if pattern == nil {
		pattern = route
	}
	attributes := make(Attributes, 0, 8)
	attributes = append(attributes, [2]any{"method", r.Method}, [2]any{"path", path},
		[2]any{"route", call(c, "route", pattern, r)}, [2]any{"ip", m.address(r, peer)},
		[2]any{"user", call(c, "user", m.User, r)}, [2]any{"user_agent", r.UserAgent()})
	attributes = append(attributes, call(c, "attributes", m.Attributes, r)...)
	for _, from := range m.FromHeaders {
		attributes = append(attributes, [2]any{from[0], r.Header.Get(from[1])})
	}
	options := make([]CallOption, 0, 5)
	options = append(options, Descriptors(call(c, "descriptors", m.Descriptors, r)...))
	options = append(options, Priority(call(c, "priority", m.Priority, r)), call(c, "cost", m.Cost, r))
	if call(c, "on_failure", m.OnFailure, path) {
		options = append(options, RefuseOnFailure())
	}
	if waited, known := m.queued(r, peer); known {
		options = append(options, Queued(waited))
	}
	return c.Acquire(r.Context(), m.Domain, attributes, options...)
}

// call returns the value of a callback; the zero value if it is nil or panics.
func call[A, T any](c *Client, name string, function func(A) T, argument A) (t T) {
	if function != nil {
		defer func() {
			if thrown := recover(); thrown != nil {
				c.CallbackFailed(name, thrown)
			}
		}()
		t = function(argument)
	}
	return t
}

// guarded runs a callback, which may panic.
func (m *middleware) guarded(name string, function func()) {
	call(m.client, name, func(any) any {
		function()
		return nil
	}, nil)
}

// limits sets the limit headers of the configured style; every style has Retry-After.
func (m *middleware) limits(w http.ResponseWriter, d *Decision) {
	for name, values := range d.Headers() {
		legacy, draft := strings.HasPrefix(name, "X-"), strings.HasPrefix(name, "Ratelimit")
		if legacy && (m.Headers == "draft" || m.Headers == "none") || draft && (m.Headers == "legacy" || m.Headers == "none") {
			continue
		}
		w.Header()[name] = values
	}
}

// Redirect is http.Redirect without limit headers, because of which clients would delay following it.
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
