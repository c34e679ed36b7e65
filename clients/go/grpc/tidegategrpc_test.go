package tidegategrpc

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"log"
	"net"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/tidegate/tidegate/clients/go"
	"github.com/tidegate/tidegate/clients/go/internal/peer"
	"github.com/tidegate/tidegate/clients/go/tidegatetest"
)

// The server: gRPC's own health service with handlers of the test.
type service struct {
	grpc_health_v1.UnimplementedHealthServer
	check func(context.Context) error
	watch func(grpc_health_v1.Health_WatchServer) error
}

func (s *service) Check(ctx context.Context, _ *grpc_health_v1.HealthCheckRequest) (*grpc_health_v1.HealthCheckResponse, error) {
	return &grpc_health_v1.HealthCheckResponse{Status: grpc_health_v1.HealthCheckResponse_SERVING}, s.check(ctx)
}

func (s *service) Watch(_ *grpc_health_v1.HealthCheckRequest, stream grpc_health_v1.Health_WatchServer) error {
	return s.watch(stream)
}

// served returns a client of a limited server, over a connection in memory.
func served(t *testing.T, c *tidegate.Client, with Options, s *service, dial ...grpc.DialOption) grpc_health_v1.HealthClient {
	t.Helper()
	listener := bufconn.Listen(1 << 16)
	recovered := func(ctx context.Context, r any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (answer any, err error) {
		defer func() {
			if recover() != nil {
				err = status.Error(codes.Internal, "panic")
			}
		}()
		return next(ctx, r)
	}
	server := grpc.NewServer(grpc.ChainUnaryInterceptor(recovered, Unary(c, with)), grpc.ChainStreamInterceptor(Stream(c, with)))
	grpc_health_v1.RegisterHealthServer(server, s)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	dial = append(dial, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))
	connection, err := grpc.NewClient("passthrough:///bufconn", dial...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { connection.Close() })
	return grpc_health_v1.NewHealthClient(connection)
}

func fine(context.Context) error { return nil }

var (
	ctx     = context.Background()
	request = &grpc_health_v1.HealthCheckRequest{}
)

func TestUnary(t *testing.T) {
	t.Parallel()
	fake := tidegatetest.New(t)
	var seen *tidegate.Decision
	with := Options{
		Domain: "api", User: func(ctx context.Context, _ string) string { return first(ctx, "x-user") },
		Attributes: func(context.Context, string) tidegate.Attributes { return tidegate.Attributes{{"plan", "free"}} },
		Priority:   func(context.Context, string) string { return "high" },
		Instrument: func(d *tidegate.Decision, took time.Duration) { seen = d },
	}
	health := served(t, fake.Client(), with, &service{check: func(ctx context.Context) error {
		if tidegate.FromContext(ctx) == nil || len(fake.Held()) != 1 {
			return errors.New("no lease")
		}
		return nil
	}})
	if _, err := health.Check(metadata.AppendToOutgoingContext(ctx, "x-user", "u1"), request); err != nil {
		t.Fatal(err)
	}
	fake.AssertReleased()
	asked := fake.Asked()[0]
	if asked.Domain != "api" || asked.Attributes["path"] != "/grpc.health.v1.Health/Check" || asked.Attributes["user"] != "u1" ||
		asked.Attributes["plan"] != "free" || asked.Priority != "high" || !strings.Contains(asked.Attributes["user_agent"], "grpc-go") {
		t.Fatalf("%+v", asked)
	}
	if seen == nil || !seen.Allowed {
		t.Fatal("not instrumented")
	}
}

func first(ctx context.Context, name string) string {
	md, _ := metadata.FromIncomingContext(ctx)
	if values := md.Get(name); len(values) > 0 {
		return values[0]
	}
	return ""
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	fake := tidegatetest.New(t)
	health := served(t, fake.Client(), Options{}, &service{check: fine, watch: func(grpc_health_v1.Health_WatchServer) error { return nil }})
	for verdict, want := range map[tidegate.Verdict]struct {
		code     codes.Code
		pushback string
		delay    time.Duration
	}{
		"limit": {codes.ResourceExhausted, "6000", 6 * time.Second},
		"shed":  {codes.Unavailable, "1000", time.Second},
		"deny":  {codes.PermissionDenied, "-1", 0},
	} {
		fake.Force("per-user", verdict)
		var trailer metadata.MD
		_, err := health.Check(ctx, request, grpc.Trailer(&trailer))
		stream, streamed := health.Watch(ctx, request)
		if streamed == nil {
			_, streamed = stream.Recv()
		}
		for _, err := range []error{err, streamed} {
			if status.Code(err) != want.code {
				t.Fatalf("%s: %v", verdict, err)
			}
			var delay time.Duration
			for _, detail := range status.Convert(err).Details() {
				if info, is := detail.(*errdetails.RetryInfo); is {
					delay = info.RetryDelay.AsDuration()
				}
			}
			if delay != want.delay {
				t.Fatalf("%s: to try again after %v", verdict, delay)
			}
		}
		for _, got := range []metadata.MD{trailer, stream.Trailer()} {
			if pushback := strings.Join(got.Get("grpc-retry-pushback-ms"), ","); pushback != want.pushback {
				t.Fatalf("%s: pushback %q", verdict, pushback)
			}
		}
	}
}

// A client with a retry policy waits for the pushback, and then passes.
func TestClientsObeyPushback(t *testing.T) {
	t.Parallel()
	fake := tidegatetest.New(t)
	fake.Force("host/workers", "shed")
	policy := `{"methodConfig": [{"name": [{}], "retryPolicy": {"maxAttempts": 2, "initialBackoff": "0.001s",
		"maxBackoff": "0.001s", "backoffMultiplier": 1, "retryableStatusCodes": ["UNAVAILABLE"]}}]}`
	health := served(t, fake.Client(), Options{Instrument: func(d *tidegate.Decision, _ time.Duration) {
		fake.Allow() // after the first
	}}, &service{check: fine}, grpc.WithDefaultServiceConfig(policy))
	began := time.Now()
	if _, err := health.Check(ctx, request); err != nil || time.Since(began) < time.Second {
		t.Fatalf("%v after %v", err, time.Since(began))
	}
}

func TestLeasesEndWithTheHandler(t *testing.T) {
	t.Parallel()
	fake := tidegatetest.New(t)
	s := &service{check: func(context.Context) error { panic("work") }}
	streaming := make(chan struct{})
	s.watch = func(stream grpc_health_v1.Health_WatchServer) error {
		_ = stream.Send(&grpc_health_v1.HealthCheckResponse{})
		close(streaming)
		<-stream.Context().Done()
		return stream.Context().Err()
	}
	health := served(t, fake.Client(), Options{}, s)
	if _, err := health.Check(ctx, request); status.Code(err) != codes.Internal {
		t.Fatal(err)
	}
	fake.AssertReleased()
	s.check = func(context.Context) error { return status.Error(codes.NotFound, "none") }
	if _, err := health.Check(ctx, request); status.Code(err) != codes.NotFound {
		t.Fatal(err)
	}
	fake.AssertReleased()
	working, cancel := context.WithCancel(ctx)
	stream, err := health.Watch(working, request)
	if err != nil {
		t.Fatal(err)
	}
	<-streaming
	if len(fake.Held()) != 1 {
		t.Fatal("the stream holds none")
	}
	cancel()
	for err == nil {
		_, err = stream.Recv()
	}
	if err == io.EOF {
		t.Fatal("it was cancelled")
	}
	fake.AssertReleased()
	s.check = fine
	if _, err := health.Check(ctx, request); err != nil {
		t.Fatal(err)
	}
	fake.AssertReleased()
	want := []tidegate.Outcome{tidegate.Dropped, tidegate.Failed, tidegate.Dropped, tidegate.OK}
	if got := fake.Ended(); !reflect.DeepEqual(got, want) {
		t.Fatalf("%v, not %v", got, want)
	}
}

func TestCallbacksThatPanicAndNoDaemon(t *testing.T) {
	t.Parallel()
	fake := tidegatetest.New(t)
	c := fake.Client()
	health := served(t, c, Options{User: func(context.Context, string) string { panic(1) }}, &service{check: fine})
	if _, err := health.Check(ctx, request); err != nil || c.Stats().Missed["callback"] != 1 {
		t.Fatalf("%v %+v", err, c.Stats())
	}
	nowhere := tidegate.New(tidegate.WithSocket("/nowhere/s"), tidegate.WithLogger(log.New(io.Discard, "", 0)))
	if _, err := served(t, nowhere, Options{}, &service{check: fine}).Check(ctx, request); err != nil {
		t.Fatal(err)
	}
	closed := Options{OnFailure: func(string) bool { return true }}
	if _, err := served(t, nowhere, closed, &service{check: fine}).Check(ctx, request); status.Code(err) != codes.Unavailable {
		t.Fatal(err)
	}
}

// Refusals are byte for byte as in every other language.
func TestAnswers(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile("../../../tests/vectors/answers.json")
	if err != nil {
		t.Fatal(err)
	}
	var answers []struct {
		Name, Message string
		Decision      *string
		GRPC          *struct {
			Code     string
			DelayUS  *int64 `json:"retry_delay_us"`
			Pushback int64  `json:"pushback_ms"`
		}
	}
	if err := json.Unmarshal(data, &answers); err != nil {
		t.Fatal(err)
	}
	names := map[string]codes.Code{"RESOURCE_EXHAUSTED": codes.ResourceExhausted, "UNAVAILABLE": codes.Unavailable,
		"PERMISSION_DENIED": codes.PermissionDenied}
	seen := 0
	for _, a := range answers {
		if a.GRPC == nil {
			continue
		}
		seen++
		d := tidegate.New(tidegate.WithSocket("/nowhere/s"), tidegate.WithLogger(log.New(io.Discard, "", 0))).Hit(ctx, "api", nil, tidegate.RefuseOnFailure())
		if a.Decision != nil {
			frame, _ := hex.DecodeString(*a.Decision)
			d = played(t, frame[4:])
		}
		refusal, pushback := Status(d)
		if refusal.Code() != names[a.GRPC.Code] || refusal.Message() != a.Message {
			t.Errorf("%s: %v", a.Name, refusal)
		}
		if want, _ := json.Marshal(a.GRPC.Pushback); pushback != string(want) {
			t.Errorf("%s: pushback %s, not %s", a.Name, pushback, want)
		}
		details := refusal.Details()
		if (a.GRPC.DelayUS == nil) != (len(details) == 0) {
			t.Errorf("%s: %v", a.Name, details)
		} else if len(details) == 1 {
			if delay := details[0].(*errdetails.RetryInfo).RetryDelay.AsDuration(); delay.Microseconds() != *a.GRPC.DelayUS {
				t.Errorf("%s: %v", a.Name, delay)
			}
		}
	}
	if seen < 15 {
		t.Fatalf("%d answers", seen)
	}
}

// played returns a decision from a daemon that always replies with this payload.
func played(t *testing.T, payload []byte) *tidegate.Decision {
	t.Helper()
	script, err := peer.Saying(payload)
	if err != nil {
		t.Fatal(err)
	}
	daemon, err := peer.New(script)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(daemon.Close)
	d := tidegate.New(tidegate.WithSocket(daemon.Path), tidegate.WithTimeout(5*time.Second)).Hit(ctx, "api", nil)
	if d.Degraded {
		t.Fatalf("%+v", d)
	}
	return d
}
