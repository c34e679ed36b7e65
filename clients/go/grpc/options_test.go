package tidegategrpc

// Every option, and mistakes with it.

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/tidegate/tidegate/clients/go"
	"github.com/tidegate/tidegate/clients/go/internal/logs"
	"github.com/tidegate/tidegate/clients/go/internal/peer"
	"github.com/tidegate/tidegate/clients/go/tidegatetest"
)

// The exact request to the daemon: over TCP, where the peer has an address.
func TestSendsTheRequest(t *testing.T) {
	t.Parallel()
	daemon, err := peer.New(func(_ net.Conn, message []any) []any { return []any{1, message[1], 0} })
	if err != nil {
		t.Fatal(err)
	}
	defer daemon.Close()
	c := tidegate.New(tidegate.WithSocket(daemon.Path), tidegate.WithTimeout(5*time.Second))
	with := Options{
		User:        func(context.Context, string) string { return "u1" },
		Attributes:  func(context.Context, string) tidegate.Attributes { return tidegate.Attributes{{"plan", "free"}} },
		Descriptors: func(context.Context, string) []tidegate.Attributes { return []tidegate.Attributes{{{"second", 2}}} },
		Cost:        func(context.Context, string) tidegate.CallOption { return tidegate.Cost(5) },
		Priority:    func(context.Context, string) string { return "high" },
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.UnaryInterceptor(Unary(c, with)))
	grpc_health_v1.RegisterHealthServer(server, &service{check: fine})
	go func() { _ = server.Serve(listener) }()
	defer server.Stop()
	connection, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithUserAgent("me"))
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	if _, err := grpc_health_v1.NewHealthClient(connection).Check(ctx, request); err != nil {
		t.Fatal(err)
	}
	got := fmt.Sprint(daemon.Seen()[1][2:])
	if i := strings.Index(got, " grpc-go/"); i > 0 { // its version
		got = got[:i] + got[i+strings.IndexAny(got[i+1:], " ]")+1:]
	}
	if want := "[web [[path /grpc.health.v1.Health/Check ip 127.0.0.1 user u1 user_agent me plan free] [second 2]] 5 high]"; got != want {
		t.Fatalf("%s, not %s", got, want)
	}
}

// The caller's address and the queue time, from metadata of trusted proxies only.
func TestTrustedProxies(t *testing.T) {
	t.Parallel()
	loopback := []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("10.0.0.0/8")}
	for name, row := range map[string]struct {
		with   Options
		sent   []string
		ip     string
		queued bool
	}{
		"none is trusted":       {Options{}, []string{"192.0.2.7"}, "127.0.0.1", false},
		"no header":             {Options{TrustedProxies: loopback}, nil, "127.0.0.1", true},
		"the nearest untrusted": {Options{TrustedProxies: loopback}, []string{"203.0.113.9, 192.0.2.7", "10.1.1.1"}, "192.0.2.7", true},
		"another network":       {Options{TrustedProxies: loopback[1:]}, []string{"192.0.2.7"}, "127.0.0.1", false},
		"a count":               {Options{TrustedCount: 2}, []string{"203.0.113.9, 192.0.2.7, 198.51.100.1"}, "192.0.2.7", true},
		"a port":                {Options{TrustedCount: 1}, []string{"[2001:db8::1]:4711"}, "2001:db8::1", true},
	} {
		daemon, err := peer.New(func(_ net.Conn, message []any) []any { return []any{1, message[1], 0} })
		if err != nil {
			t.Fatal(err)
		}
		defer daemon.Close()
		c := tidegate.New(tidegate.WithSocket(daemon.Path), tidegate.WithTimeout(5*time.Second))
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		server := grpc.NewServer(grpc.UnaryInterceptor(Unary(c, row.with)))
		grpc_health_v1.RegisterHealthServer(server, &service{check: fine})
		go func() { _ = server.Serve(listener) }()
		defer server.Stop()
		connection, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		defer connection.Close()
		with := metadata.Pairs("x-request-start", fmt.Sprintf("t=%d", time.Now().Add(-time.Second).UnixMilli()))
		with.Append("x-forwarded-for", row.sent...)
		if _, err := grpc_health_v1.NewHealthClient(connection).Check(metadata.NewOutgoingContext(ctx, with), request); err != nil {
			t.Fatal(err)
		}
		got := fmt.Sprint(daemon.Seen()[1][2:])
		if !strings.Contains(got, " ip "+row.ip+" ") || strings.Contains(got, "queued_us") != row.queued {
			t.Errorf("%s: %s", name, got)
		}
	}
}

func TestExempt(t *testing.T) {
	t.Parallel()
	fake := tidegatetest.New(t)
	fake.Force("per-user", "limit")
	with := Options{Exempt: func(_ context.Context, method string) bool { return strings.HasSuffix(method, "/Check") }}
	health := served(t, fake.Client(), with, &service{check: func(ctx context.Context) error {
		if tidegate.FromContext(ctx) != nil {
			return errors.New("judged")
		}
		return nil
	}})
	if _, err := health.Check(ctx, request); err != nil || len(fake.Asked()) != 0 {
		t.Fatalf("%v %v", err, fake.Asked())
	}
}

// If a function panics, the call is checked without its value, and the panic is logged once by name and counted.
func TestEveryFunctionMayPanic(t *testing.T) {
	t.Parallel()
	for name, with := range map[string]Options{
		"exempt":      {Exempt: func(context.Context, string) bool { panic("secret") }},
		"user":        {User: func(context.Context, string) string { panic("secret") }},
		"attributes":  {Attributes: func(context.Context, string) tidegate.Attributes { panic("secret") }},
		"descriptors": {Descriptors: func(context.Context, string) []tidegate.Attributes { panic("secret") }},
		"cost":        {Cost: func(context.Context, string) tidegate.CallOption { panic("secret") }},
		"priority":    {Priority: func(context.Context, string) string { panic("secret") }},
		"on_failure":  {OnFailure: func(string) bool { panic("secret") }},
		"on_refused":  {OnRefused: func(context.Context, *tidegate.Decision) error { panic("secret") }},
		"outcome":     {Outcome: func(context.Context, *tidegate.Decision, error) tidegate.Outcome { panic("secret") }},
		"instrument":  {Instrument: func(*tidegate.Decision, time.Duration) { panic("secret") }},
	} {
		fake, logged := tidegatetest.New(t), &logs.Lines{}
		want := codes.OK
		if name != "outcome" {
			fake.Force("per-user", "limit")
			want = codes.ResourceExhausted
		}
		c := fake.Client(tidegate.WithLogger(logged))
		health := served(t, c, with, &service{check: fine})
		for i := 0; i < 2; i++ {
			if _, err := health.Check(ctx, request); status.Code(err) != want {
				t.Fatalf("%s: %v", name, err)
			}
		}
		fake.AssertReleased()
		lines := logged.All()
		counted := int64(2)
		if name == "outcome" || name == "instrument" {
			counted = 0
		}
		if c.Stats().Missed["callback"] != counted || len(lines) != 1 || !strings.Contains(lines[0], name+" panicked") ||
			strings.Contains(lines[0], "secret") {
			t.Fatalf("%s: %v %v", name, c.Stats().Missed, lines)
		}
	}
}

func TestOnRefused(t *testing.T) {
	t.Parallel()
	fake := tidegatetest.New(t)
	fake.Force("per-user", "limit")
	own := status.Error(codes.FailedPrecondition, "mine")
	with := Options{OnRefused: func(_ context.Context, d *tidegate.Decision) error { return own }}
	ran := false
	health := served(t, fake.Client(), with, &service{check: func(context.Context) error { ran = true; return nil }})
	var trailer metadata.MD
	_, err := health.Check(ctx, request, grpc.Trailer(&trailer))
	if ran || status.Code(err) != codes.FailedPrecondition || strings.Join(trailer.Get("grpc-retry-pushback-ms"), "") != "6000" {
		t.Fatalf("%v %v", err, trailer)
	}
	own = nil
	if _, err := health.Check(ctx, request); status.Code(err) != codes.ResourceExhausted {
		t.Fatal(err)
	}
}

func TestOnFailureByMethod(t *testing.T) {
	t.Parallel()
	nowhere := tidegate.New(tidegate.WithSocket("/nowhere/s"), tidegate.WithLogger(&logs.Lines{}))
	for suffix, want := range map[string]codes.Code{"/Check": codes.Unavailable, "/Watch": codes.OK} {
		suffix := suffix
		with := Options{OnFailure: func(method string) bool { return strings.HasSuffix(method, suffix) }}
		_, err := served(t, nowhere, with, &service{check: fine}).Check(ctx, request)
		if status.Code(err) != want {
			t.Fatalf("%s: %v", suffix, err)
		}
	}
}

func TestSleepsOnWait(t *testing.T) {
	t.Parallel()
	fake := tidegatetest.New(t)
	fake.Force("hooks", "wait") // 10 ms
	ran := false
	health := served(t, fake.Client(), Options{}, &service{check: func(context.Context) error { ran = true; return nil }})
	began := time.Now()
	if _, err := health.Check(ctx, request); err != nil || !ran || time.Since(began) < 10*time.Millisecond {
		t.Fatalf("%v after %v", err, time.Since(began))
	}
	fake.AssertReleased()

	// If the wait exceeds the deadline, the handler does not run, and the permit is free. Calls the interceptor
	// directly, because a client ends at its own deadline.
	l, ran := newLimiter(fake.Client(), Options{}), false
	short, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	l.Instrument = func(d *tidegate.Decision, _ time.Duration) { d.Wait = time.Hour; cancel() }
	err := l.call(short, "/s/m", func(metadata.MD) {}, func(context.Context) error { ran = true; return nil })
	if ran || status.Code(err) != codes.Canceled {
		t.Fatalf("%v, ran: %v", err, ran)
	}
	fake.AssertReleased()
	if ended := fake.Ended(); fmt.Sprint(ended) != fmt.Sprint([]tidegate.Outcome{tidegate.OK, tidegate.Dropped}) {
		t.Fatalf("%v", ended)
	}
}

func TestOutcomes(t *testing.T) {
	t.Parallel()
	fake := tidegatetest.New(t)
	working, cancel := context.WithCancel(ctx)
	defer cancel()
	for i, row := range []struct {
		ctx     context.Context
		ended   error
		with    Options
		outcome tidegate.Outcome
	}{
		{ctx, nil, Options{}, tidegate.OK},
		{ctx, status.Error(codes.NotFound, ""), Options{}, tidegate.Failed},
		{ctx, errors.New("odd"), Options{}, tidegate.Failed},
		{ctx, status.Error(codes.Canceled, ""), Options{}, tidegate.Dropped},
		{ctx, status.Error(codes.DeadlineExceeded, ""), Options{}, tidegate.Dropped},
		{working, nil, Options{}, tidegate.Dropped}, // the caller hung up meanwhile
		{ctx, nil, Options{Outcome: func(_ context.Context, d *tidegate.Decision, err error) tidegate.Outcome {
			if d == nil || err != nil {
				return tidegate.Dropped
			}
			return tidegate.Failed
		}}, tidegate.Failed},
	} {
		l := newLimiter(fake.Client(), row.with)
		err := l.call(row.ctx, "/s/m", func(metadata.MD) {}, func(context.Context) error {
			if row.ctx == working {
				cancel()
			}
			return row.ended
		})
		fake.AssertReleased()
		if ended := fake.Ended(); err != row.ended || len(ended) != i+1 || ended[i] != row.outcome {
			t.Fatalf("%d: %v %v", i, err, ended)
		}
	}
}

func TestTheHandlerOfAStreamFindsTheDecision(t *testing.T) {
	t.Parallel()
	fake := tidegatetest.New(t)
	fake.Force("per-user", "allow")
	health := served(t, fake.Client(), Options{}, &service{watch: func(stream grpc_health_v1.Health_WatchServer) error {
		d := tidegate.FromContext(stream.Context())
		if d == nil {
			return errors.New("none")
		}
		return status.Error(codes.AlreadyExists, d.Rule)
	}})
	stream, err := health.Watch(ctx, request)
	if err == nil {
		_, err = stream.Recv()
	}
	if status.Code(err) != codes.AlreadyExists || status.Convert(err).Message() != "per-user" {
		t.Fatal(err)
	}
}

// Unary and Stream panic for an invalid name, because of which every call would be refused.
func TestInterceptorPanicsForAnInvalidDomain(t *testing.T) {
	t.Parallel()
	for _, made := range []func(){
		func() { Unary(tidegate.New(), Options{Domain: "a/b"}) }, func() { Stream(tidegate.New(), Options{Domain: "a:b"}) },
	} {
		func() {
			defer func() {
				if why := recover(); why == nil || !strings.Contains(fmt.Sprint(why), "help: ") {
					t.Errorf("%v", why)
				}
			}()
			made()
		}()
	}
}

// A cancelled call is not refused by a limit.
func TestACancelledCall(t *testing.T) {
	t.Parallel()
	fake := tidegatetest.New(t)
	l := newLimiter(fake.Client(), Options{})
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	err := l.call(ctx, "/s/m", func(metadata.MD) {}, func(context.Context) error { t.Error("it runs"); return nil })
	if status.Code(err) != codes.Canceled {
		t.Fatal(err)
	}
}
