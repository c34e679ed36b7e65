package tidegate

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tidegate/tidegate/clients/go/internal/logs"
	"github.com/tidegate/tidegate/clients/go/internal/peer"
)

type answer struct {
	Name, Domain, Style, Message string
	Decision, Reason             *string
	Status                       int
	Headers                      [][2]string
	Body                         *string
	GRPC                         *struct {
		Code    string
		DelayUS *int64 `json:"retry_delay_us"`
		Push    int64  `json:"pushback_ms"`
	}
}

// decided parses the decision of the response.
func decided(t *testing.T, a answer) *Decision {
	t.Helper()
	if a.Reason != nil {
		return degraded(*a.Reason, a.Status == 503)
	}
	var message value
	message.decode(unhex(t, *a.Decision)[4:], levelsMax)
	d := &Decision{}
	d.read(message.list[2:])
	return d
}

// Byte for byte as in every other language, through a real server and a daemon that replies with the vector.
func TestAnswers(t *testing.T) {
	var answers []answer
	vectors(t, "answers.json", &answers)
	for _, a := range answers {
		a := a
		t.Run(a.Name, func(t *testing.T) {
			if got := decided(t, a).Message(); got != a.Message {
				t.Errorf("%q, not %q", got, a.Message)
			}
			script := func(c net.Conn, _ []any) []any {
				_, _ = c.Write([]byte{0, 0, 0, 1, 0xC1})
				return nil
			}
			if a.Decision != nil {
				script = saying(t, unhex(t, *a.Decision)[4:])
			}
			p := played(t, script)
			with := HTTP{Domain: a.Domain, Headers: a.Style}
			if a.Reason != nil && a.Status == 503 {
				with.OnFailure = Refuse
			}
			var request http.Request
			handler := client(t, p.Path).Middleware(with)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "text/plain")
				switch {
				case a.Status == 304: // only such requests get it
				case a.Status >= 300 && a.Status < 400:
					Redirect(w, r, "/elsewhere", a.Status)
					return
				}
				w.WriteHeader(a.Status)
			}))
			server := httptest.NewServer(handler)
			defer server.Close()
			request.Method, request.Header = "GET", http.Header{}
			request.URL, _ = request.URL.Parse(server.URL + "/")
			if a.Status == 304 {
				request.Header.Set("If-None-Match", `"1"`)
			}
			response, err := http.DefaultTransport.RoundTrip(&request)
			if err != nil {
				t.Fatal(err)
			}
			body, _ := io.ReadAll(response.Body)
			response.Body.Close()
			if response.StatusCode != a.Status || a.Body != nil && string(body) != *a.Body {
				t.Errorf("%d %s", response.StatusCode, body)
			}
			for _, field := range a.Headers {
				if got := response.Header.Values(field[0]); len(got) != 1 || got[0] != field[1] {
					t.Errorf("%s: %q, not %q", field[0], got, field[1])
				}
				response.Header.Del(field[0])
			}
			for name := range response.Header {
				if strings.Contains(strings.ToLower(name), "ratelimit") || name == "Retry-After" {
					t.Errorf("%s: %s", name, response.Header.Get(name))
				}
			}
		})
	}
}

// get requests a handler's response over a real connection.
func get(t *testing.T, handler http.Handler, path string, headers ...string) *http.Response {
	t.Helper()
	server := httptest.NewServer(handler)
	defer server.Close()
	request, err := http.NewRequest("GET", server.URL+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		request.Header.Add(headers[i], headers[i+1])
	}
	request.Header.Set("User-Agent", "test")
	response, err := http.DefaultTransport.RoundTrip(request)
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(response.Body)
	response.Body.Close()
	response.Body = io.NopCloser(strings.NewReader(string(body)))
	return response
}

// asked returns the descriptors of the last request.
func asked(t *testing.T, p *peer.Peer) string {
	t.Helper()
	sent := ""
	for _, message := range p.Seen() {
		if message[0] == uint64(1) {
			sent = fmt.Sprint(message[3])
		}
	}
	return sent
}

func fine(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "fine") }

func TestAttributesInTheirOrder(t *testing.T) {
	p := played(t, grant)
	with := HTTP{
		Domain: "api", User: func(r *http.Request) string { return r.Header.Get("X-User") },
		Route:       func(*http.Request) string { return "/a/{b}" },
		Attributes:  func(*http.Request) Attributes { return Attributes{{"plan", "free"}} },
		FromHeaders: [][2]string{{"tenant", "X-Tenant"}},
		Descriptors: func(*http.Request) []Attributes { return []Attributes{{{"second", 2}}} },
		Cost:        func(*http.Request) CallOption { return Costs(Units{"tokens": 5}) },
		Priority:    func(*http.Request) string { return "critical" },
	}
	limited := client(t, p.Path).Middleware(with)(http.HandlerFunc(fine))
	get(t, limited, "/a/./b//c%2Fd/../%65?q=1", "X-User", "u1", "X-Tenant", "t1")
	message := p.Seen()[1]
	equal(t, message[2:], []any{"api", []any{[]any{"method", "GET", "path", "/a/b/c/e", "route", "/a/{b}", "ip", "127.0.0.1",
		"user", "u1", "user_agent", "test", "plan", "free", "tenant", "t1"}, []any{"second", 2}},
		map[string]any{"tokens": 5}, "critical"})
	equal(t, releases(t, p, 1)[0][2], 0)
}

// A rule by path would not limit the other spellings that reach the handler of a route.
func TestTheRouteOfAServeMuxAroundWhichTheMiddlewareIs(t *testing.T) {
	p, mux := played(t, grant), http.NewServeMux()
	mux.HandleFunc("/login/", fine)
	limited := client(t, p.Path).Middleware(HTTP{Domain: "api", Route: RouteOf(mux)})(mux)
	var found [][]any
	for i, path := range []string{"/login/", "/login/a", "/none"} {
		get(t, limited, path)
		releases(t, p, i+1)
	}
	for _, message := range p.Seen() {
		if message[0] == uint64(opAcquire) {
			found = append(found, message[3].([]any)[0].([]any)[4:6])
		}
	}
	equal(t, found, [][]any{{"route", "/login/"}, {"route", "/login/"}, {"ip", "127.0.0.1"}})
}

func TestPaths(t *testing.T) {
	for path, want := range map[string]string{
		"/": "/", "": "/", "//": "/", "/a": "/a", "/a/": "/a/", "/a//b": "/a/b", "/a/../b": "/b", "/../../a": "/a", "/a/.": "/a/",
		"/a/b/..": "/a/", "/.a": "/.a", "/a/...": "/a/...", "*": "/*",
	} {
		if got := cleanPath(path); got != want {
			t.Errorf("%q: %q, not %q", path, got, want)
		}
	}
}

func TestAddresses(t *testing.T) {
	ten := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8")}
	for _, row := range []struct {
		peer      string
		forwarded []string
		networks  []netip.Prefix
		count     int
		want      string
	}{
		{"10.0.0.1:99", nil, ten, 0, "10.0.0.1"},
		{"10.0.0.1:99", []string{"1.2.3.4"}, nil, 0, "10.0.0.1"},
		{"10.0.0.1:99", []string{"1.2.3.4"}, ten, 0, "1.2.3.4"},
		{"10.0.0.1:99", []string{"6.6.6.6, 1.2.3.4"}, ten, 0, "1.2.3.4"},
		{"10.0.0.1:99", []string{"6.6.6.6", "1.2.3.4, 10.1.1.1"}, ten, 0, "1.2.3.4"},
		{"9.9.9.9:99", []string{"1.2.3.4"}, ten, 0, "9.9.9.9"},
		{"10.0.0.1:99", []string{"nonsense"}, ten, 0, "10.0.0.1"},
		{"10.0.0.1:99", []string{`"[2001:db8::1]:443"`}, ten, 0, "2001:db8::1"},
		{"10.0.0.1:99", []string{"1.2.3.4:80"}, ten, 0, "1.2.3.4"},
		{"[fd00::1]:99", []string{"::ffff:1.2.3.4"}, ten, 0, "1.2.3.4"},
		{"@", []string{"1.2.3.4"}, ten, 0, "1.2.3.4"},
		{"", []string{"1.2.3.4"}, nil, 0, ""},
		{"5.5.5.5:1", []string{"6.6.6.6, 1.2.3.4"}, nil, 1, "1.2.3.4"},
		{"5.5.5.5:1", []string{"6.6.6.6, 1.2.3.4"}, nil, 2, "6.6.6.6"},
		{"5.5.5.5:1", []string{"1.2.3.4"}, nil, 5, "1.2.3.4"},
	} {
		m := &middleware{HTTP: HTTP{TrustedProxies: row.networks, TrustedCount: row.count}, client: client(t, "/nowhere/s")}
		r := &http.Request{RemoteAddr: row.peer, Header: http.Header{"X-Forwarded-For": row.forwarded}}
		if got := m.address(r, peerOf(r)); got != row.want {
			t.Errorf("%+v: %s", row, got)
		}
	}
}

func TestOneWarningOfAForgottenProxy(t *testing.T) {
	p := played(t, grant)
	logged := &logs.Lines{}
	limited := client(t, p.Path, WithLogger(logged)).Middleware(HTTP{})(http.HandlerFunc(fine))
	for i := 0; i < 3; i++ {
		get(t, limited, "/", "X-Forwarded-For", "1.2.3.4")
	}
	if lines := logged.All(); len(lines) != 1 || !strings.Contains(lines[0], "TrustedProxies") {
		t.Fatalf("%v", lines)
	}
}

// A peer on a Unix socket has no address: the line says so, with and without the proxy's header.
func TestOneWarningOfRequestsWithoutAnAddress(t *testing.T) {
	for _, row := range []struct {
		with   HTTP
		header []string
		warns  bool
	}{
		{HTTP{}, nil, true}, {HTTP{}, []string{"X-Forwarded-For", "1.2.3.4"}, true}, {HTTP{TrustedCount: 1}, nil, true},
		{HTTP{TrustedCount: 1}, []string{"X-Forwarded-For", "1.2.3.4"}, false},
	} {
		p, logged := played(t, grant), &logs.Lines{}
		limited := client(t, p.Path, WithLogger(logged)).Middleware(row.with)(http.HandlerFunc(fine))
		for i := 0; i < 2; i++ {
			r := httptest.NewRequest("GET", "/", nil)
			if r.RemoteAddr = "@"; row.header != nil {
				r.Header.Set(row.header[0], row.header[1])
			}
			limited.ServeHTTP(httptest.NewRecorder(), r)
		}
		lines, sent := logged.All(), fmt.Sprint(p.Seen()[1][3])
		if len(lines) > 0 != row.warns || row.warns && (len(lines) != 1 || !strings.Contains(lines[0], noAddress)) ||
			strings.Contains(sent, "1.2.3.4") == row.warns {
			t.Fatalf("%+v: %v %s", row, lines, sent)
		}
	}
}

func TestHeadersIsOneOfTheWords(t *testing.T) {
	defer func() {
		if thrown := fmt.Sprint(recover()); thrown != `tidegate: HTTP.Headers is draft, legacy, both or none, not "all"` {
			t.Fatal(thrown)
		}
	}()
	New().Middleware(HTTP{Headers: "all"})
}

func TestQueued(t *testing.T) {
	now := time.Now()
	local := HTTP{TrustedCount: 1}
	for header, want := range map[string]bool{
		fmt.Sprintf("t=%d", now.Add(-time.Second).UnixMicro()): true,
		fmt.Sprintf("t=%d", now.Add(-time.Second).UnixMilli()): true,
		fmt.Sprintf("%.3f", float64(now.UnixMilli()-1000)/1e3): true,
		fmt.Sprintf("t=%d", now.Add(time.Hour).UnixMilli()):    false,
		fmt.Sprintf("t=%d", now.Add(-time.Hour).UnixMilli()):   false,
		"t=yesterday": false, "": false, "t=1e9": false, "t=-5": false, "t=" + strings.Repeat("9", 400): false, ".": false,
	} {
		m := &middleware{HTTP: local}
		r := &http.Request{RemoteAddr: "10.0.0.1:1", Header: http.Header{"X-Request-Start": []string{header}}}
		waited, is := m.queued(r, peerOf(r))
		if is != want || is && (waited < 900*time.Millisecond || waited > 5*time.Second) {
			t.Errorf("%s: %v %v", header, waited, is)
		}
		if _, is := (&middleware{}).queued(r, peerOf(r)); is {
			t.Errorf("%s counted without a trusted proxy", header)
		}
	}
	p := played(t, grant)
	limited := client(t, p.Path).Middleware(local)(http.HandlerFunc(fine))
	get(t, limited, "/", "X-Request-Start", fmt.Sprintf("t=%d", time.Now().Add(-time.Second).UnixMilli()))
	if us := p.Seen()[1][6].(map[string]any)["queued_us"].(uint64); us < 900_000 || us > 20_000_000 {
		t.Fatalf("%d", us)
	}
}

// If a function panics, the request is checked without its value, and the panic is logged once and, if it affects the check, counted.
func TestCallbacksThatPanic(t *testing.T) {
	broken := func(*http.Request) string { panic("secret-user") }
	for name, with := range map[string]HTTP{
		"user": {User: broken}, "route": {Route: broken}, "priority": {Priority: broken},
		"exempt":      {Exempt: func(*http.Request) bool { panic(1) }},
		"attributes":  {Attributes: func(*http.Request) Attributes { panic(1) }},
		"descriptors": {Descriptors: func(*http.Request) []Attributes { panic(1) }},
		"cost":        {Cost: func(*http.Request) CallOption { panic(1) }},
		"on_failure":  {OnFailure: func(string) bool { panic(1) }},
		"on_refused":  {OnRefused: func(*http.Request, *Decision) http.Handler { panic(1) }},
		"outcome":     {Outcome: func(*http.Request, *Decision) Outcome { panic(1) }},
		"instrument":  {Instrument: func(*Decision, time.Duration) { panic(1) }},
	} {
		p := played(t, reply(limit...))
		logged := &logs.Lines{}
		c := client(t, p.Path, WithLogger(logged))
		if name == "outcome" {
			p.Play(grant)
		}
		limited := c.Middleware(with)(http.HandlerFunc(fine))
		for i := 0; i < 2; i++ {
			if response := get(t, limited, "/"); response.StatusCode != when(name == "outcome", 200, 429) {
				t.Fatalf("%s: %d", name, response.StatusCode)
			}
		}
		lines := logged.All()
		counted := when[int64](name == "outcome" || name == "instrument", 0, 2)
		if c.Stats().Missed["callback"] != counted || len(lines) != 1 || !strings.Contains(lines[0], name) ||
			strings.Contains(lines[0], "secret") {
			t.Fatalf("%s: %v %v", name, c.Stats().Missed, lines)
		}
	}
}

// A panicking function neither allows nor refuses: the daemon's absence is left to OnFailure.
func TestACallbackThatPanicsDoesNotReplaceOnFailure(t *testing.T) {
	c := client(t, "/nowhere/s")
	with := HTTP{User: func(*http.Request) string { panic(1) }, OnFailure: Refuse}
	if response := get(t, c.Middleware(with)(http.HandlerFunc(fine)), "/"); response.StatusCode != 503 {
		t.Fatal(response.StatusCode)
	}
	equal(t, c.Stats().Missed, Units{"callback": 1, "unreachable": 1})
}

func TestRefusals(t *testing.T) {
	p := played(t, reply(limit...))
	c := client(t, p.Path)
	ran := false
	handler := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { ran = true })
	own := HTTP{OnRefused: func(_ *http.Request, d *Decision) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(418)
			fmt.Fprint(w, d.Rule)
		})
	}}
	response := get(t, c.Middleware(own)(handler), "/")
	body, _ := io.ReadAll(response.Body)
	if ran || response.StatusCode != 418 || string(body) != "per-user" || response.Header.Get("Retry-After") != "1" {
		t.Fatalf("%v %s", response, body)
	}
	usual := HTTP{OnRefused: func(*http.Request, *Decision) http.Handler { return nil }}
	if response := get(t, c.Middleware(usual)(handler), "/"); response.StatusCode != 429 {
		t.Fatalf("%v", response)
	}
	if exempt := (HTTP{Exempt: func(*http.Request) bool { return true }}); get(t, c.Middleware(exempt)(handler), "/").StatusCode != 200 {
		t.Fatal("not exempt")
	}
}

func TestOnFailureByPath(t *testing.T) {
	p := played(t, nil)
	p.Hide()
	c := client(t, p.Path)
	limited := c.Middleware(HTTP{OnFailure: RefuseUnder("/pay/")})(http.HandlerFunc(fine))
	for path, want := range map[string]int{"/": 200, "/pay": 503, "/pay/now": 503, "/payments": 200, "/x/../pay/1": 503} {
		if got := get(t, limited, path).StatusCode; got != want {
			t.Errorf("%s: %d", path, got)
		}
	}
}

// The lease ends with an outcome when the handler returns.
func TestTheLeaseOfARequest(t *testing.T) {
	p := played(t, grant)
	c := client(t, p.Path)
	during := make(chan struct{})
	for _, row := range []struct {
		handler http.HandlerFunc
		with    HTTP
		outcome Outcome
	}{
		{fine, HTTP{}, OK},
		{func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, HTTP{}, Dropped},
		{func(w http.ResponseWriter, r *http.Request) {
			FromContext(r.Context()).SetOutcome(Failed)
			w.WriteHeader(500)
		}, HTTP{}, Failed},
		{fine, HTTP{Outcome: func(*http.Request, *Decision) Outcome { return Failed }}, Failed},
		{func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(200)
			_ = flush(w)
			during <- struct{}{}
			<-r.Context().Done()
		}, HTTP{}, Dropped},
	} {
		count := len(releases(t, p, 0))
		server := httptest.NewServer(c.Middleware(row.with)(row.handler))
		server.Config.ErrorLog = quiet
		working, cancel := context.WithCancel(ctx)
		request, _ := http.NewRequestWithContext(working, "GET", server.URL, nil)
		done := make(chan struct{})
		go func() {
			defer close(done)
			if response, err := http.DefaultClient.Do(request); err == nil {
				_, _ = io.ReadAll(response.Body)
				response.Body.Close()
			}
		}()
		select {
		case <-during:
			if len(releases(t, p, count)) != count {
				t.Fatal("released while it streams")
			}
			cancel() // the caller hangs up
		case <-done:
		}
		if got := releases(t, p, count+1)[count][2]; got != uint64(row.outcome) {
			t.Fatalf("%v, not %v", got, row.outcome)
		}
		<-done
		cancel()
		server.Close()
	}
}

// The ResponseWriter keeps all its methods, because it is not wrapped.
func TestTheResponseWriterIsTheServersOwn(t *testing.T) {
	p := played(t, grant)
	var inside http.ResponseWriter
	limited := client(t, p.Path).Middleware(HTTP{})(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { inside = w }))
	outer := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		limited.ServeHTTP(w, r)
		if inside != w {
			t.Error("wrapped")
		}
	})
	get(t, outer, "/")
	hijacked := client(t, p.Path).Middleware(HTTP{})(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		connection, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		fmt.Fprint(connection, "HTTP/1.1 299 Mine\r\nContent-Length: 0\r\n\r\n")
		connection.Close()
	}))
	if response := get(t, hijacked, "/"); response.StatusCode != 299 {
		t.Fatalf("%v", response)
	}
}

func TestSleepsOnWaitBeforeTheHandler(t *testing.T) {
	p := played(t, reply(3, "hooks", 21, 1, 20, 1, 60_000, 77))
	var began, ran atomic.Int64
	limited := client(t, p.Path).Middleware(HTTP{})(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		ran.Store(int64(time.Since(time.Unix(0, began.Load()))))
	}))
	began.Store(time.Now().UnixNano())
	get(t, limited, "/")
	if took := time.Duration(ran.Load()); took < 55*time.Millisecond {
		t.Fatalf("it ran after %v", took)
	}
}

func TestAWaitBeyondTheDeadline(t *testing.T) {
	p := played(t, reply(3, "hooks", 21, 1, 20, 1, 60_000_000, 77))
	c := client(t, p.Path)
	limited := c.Middleware(HTTP{Instrument: func(d *Decision, _ time.Duration) {
		if d.Wait != time.Minute {
			t.Errorf("%+v", d)
		}
	}})(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the handler runs") }))
	short, cancel := contextFor(200 * time.Millisecond)
	defer cancel()
	w := httptest.NewRecorder()
	limited.ServeHTTP(w, httptest.NewRequest("GET", "/", nil).WithContext(short))
	if w.Code != 503 {
		t.Fatal(w.Code)
	}
	equal(t, releases(t, p, 1), []any{[]any{nil, 77, 2}})
}

func TestInstrument(t *testing.T) {
	p := played(t, reply(limit...))
	var saw *Decision
	with := HTTP{Instrument: func(d *Decision, judging time.Duration) {
		if saw = d; judging <= 0 || judging > patient {
			t.Errorf("%v", judging)
		}
	}}
	get(t, client(t, p.Path).Middleware(with)(http.HandlerFunc(fine)), "/")
	if saw == nil || saw.Verdict != "limit" {
		t.Fatalf("%+v", saw)
	}
}

func TestOverAUnixSocket(t *testing.T) {
	p := played(t, grant)
	path := filepath.Join(filepath.Dir(p.Path), "http")
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	with := HTTP{TrustedProxies: []netip.Prefix{}}
	server := &http.Server{Handler: client(t, p.Path).Middleware(with)(http.HandlerFunc(fine))}
	go func() { _ = server.Serve(listener) }()
	defer server.Close()
	connection, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	fmt.Fprint(connection, "GET / HTTP/1.1\r\nHost: x\r\nX-Forwarded-For: 1.2.3.4\r\n\r\n")
	if _, err := http.ReadResponse(bufio.NewReader(connection), nil); err != nil {
		t.Fatal(err)
	}
	if sent := asked(t, p); !strings.Contains(sent, "ip 1.2.3.4") {
		t.Fatal(sent)
	}
}

// Middleware panics for invalid names, because of which every request would be refused.
func TestMiddlewarePanicsForInvalidNames(t *testing.T) {
	c := client(t, "/nowhere/s")
	many := make([][2]string, 11)
	for i := range many {
		many[i] = [2]string{fmt.Sprint("a", i), "X-A"}
	}
	for name, with := range map[string]HTTP{
		"domain": {Domain: "a/b"}, "attribute": {FromHeaders: [][2]string{{"a:b", "X-A"}}}, "many": {FromHeaders: many},
	} {
		func() {
			defer func() {
				if why := recover(); why == nil || !strings.Contains(fmt.Sprint(why), "help: ") {
					t.Errorf("%s: %v", name, why)
				}
			}()
			c.Middleware(with)
		}()
	}
	c.Middleware(HTTP{Domain: "größe", FromHeaders: many[:10]})
}

// New panics for options that the daemon would refuse with each connection.
func TestNewPanicsForInvalidOptions(t *testing.T) {
	New(WithSlots(1<<31 - 1))
	options := map[string]Option{"pool": WithPool("a/b"), "slots": WithSlots(-1)}
	if bits := strconv.IntSize; bits == 64 {
		options["many slots"] = WithSlots(1 << (bits / 2))
	}
	for name, option := range options {
		func() {
			defer func() {
				if why := recover(); why == nil || !strings.Contains(fmt.Sprint(why), "help: ") {
					t.Errorf("%s: %v", name, why)
				}
			}()
			New(option)
		}()
	}
}

// Invalid results of an application's functions refuse the request; the handler does not run.
func TestAMiddlewareRefusesInvalidRequests(t *testing.T) {
	p := played(t, reply(allow...))
	wide := Attributes{}
	for i := 0; i < 17; i++ {
		wide = append(wide, [2]any{fmt.Sprint("a", i), "v"})
	}
	for name, with := range map[string]HTTP{
		"cost":       {Cost: func(*http.Request) CallOption { return Cost(-1) }},
		"attributes": {Attributes: func(*http.Request) Attributes { return wide }},
	} {
		logged := &logs.Lines{}
		handler := client(t, p.Path, WithLogger(logged)).Middleware(with)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			t.Errorf("%s: it runs", name)
		}))
		for i := 0; i < 2; i++ {
			response := get(t, handler, "/")
			body, _ := io.ReadAll(response.Body)
			if response.StatusCode != 503 || !strings.Contains(string(body), "could not be judged") || strings.Contains(string(body), "cost") {
				t.Errorf("%s: %d %s", name, response.StatusCode, body)
			}
		}
		if lines := logged.All(); len(lines) != 1 {
			t.Errorf("%s: %v", name, lines)
		}
	}
}

func TestTheFallbackOfTheClientIsThatOfTheMiddleware(t *testing.T) {
	c := client(t, "/nowhere/s", WithFallback("2/h"))
	handler := c.Middleware(HTTP{User: func(*http.Request) string { return "u1" }, OnFailure: Refuse})(
		http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	for i, want := range []int{200, 200, 429, 429} {
		if response := get(t, handler, "/"); response.StatusCode != want || (want == 429) != (response.Header.Get("Retry-After") != "") {
			t.Errorf("%d: %d %v", i, response.StatusCode, response.Header)
		}
	}
}
