// Package tidegategrpc limits gRPC servers: an interceptor for unary calls, and one for streams.
//
//	server := grpc.NewServer(
//		grpc.ChainUnaryInterceptor(tidegategrpc.Unary(client, tidegategrpc.Options{Domain: "api"})),
//		grpc.ChainStreamInterceptor(tidegategrpc.Stream(client, tidegategrpc.Options{Domain: "api"})))
//
// Over a limit a call ends with RESOURCE_EXHAUSTED, on a full host with UNAVAILABLE, both with RetryInfo and pushback,
// which clients with a retry policy obey. The lease of a call ends with its handler.
package tidegategrpc

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/tidegate/tidegate/clients/go"
	"github.com/tidegate/tidegate/clients/go/internal/forwarded"
)

// Options of an interceptor; all are optional. `method` is the full one, "/package.Service/Method". If a function
// panics, the call is checked without its value.
//
// The attributes are path (the method), ip, user, user_agent and then Attributes, in this order.
type Options struct {
	Domain      string                                                       // "web" if empty
	User        func(ctx context.Context, method string) string              // the caller; "": unknown
	Attributes  func(ctx context.Context, method string) tidegate.Attributes // further attributes
	Descriptors func(ctx context.Context, method string) []tidegate.Attributes
	Cost        func(ctx context.Context, method string) tidegate.CallOption
	Priority    func(ctx context.Context, method string) string // never unchanged from a caller's metadata
	Exempt      func(ctx context.Context, method string) bool
	Outcome     func(ctx context.Context, d *tidegate.Decision, err error) tidegate.Outcome
	OnRefused   func(ctx context.Context, d *tidegate.Decision) error // nil: the default
	OnFailure   func(method string) bool                              // true: refuse when the daemon does not answer
	Instrument  func(d *tidegate.Decision, judging time.Duration)
	// TrustedProxies are networks of proxies whose metadata x-forwarded-for and x-request-start count (with any network,
	// also the peer of a Unix socket); TrustedCount is the number of proxies instead. If neither is set, both are ignored.
	TrustedProxies []netip.Prefix
	TrustedCount   int
}

// Unary limits unary calls. It panics if the domain is invalid.
func Unary(c *tidegate.Client, with Options) grpc.UnaryServerInterceptor {
	l := newLimiter(c, with)
	return func(ctx context.Context, request any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		var answer any
		trailer := func(md metadata.MD) { _ = grpc.SetTrailer(ctx, md) }
		err := l.call(ctx, info.FullMethod, trailer, func(ctx context.Context) (err error) {
			answer, err = next(ctx, request)
			return err
		})
		return answer, err
	}
}

// Stream limits streams, each with one decision. It panics if the domain is invalid.
func Stream(c *tidegate.Client, with Options) grpc.StreamServerInterceptor {
	l := newLimiter(c, with)
	return func(server any, stream grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
		return l.call(stream.Context(), info.FullMethod, stream.SetTrailer, func(ctx context.Context) error {
			return next(server, &streamWithDecision{stream, ctx})
		})
	}
}

// streamWithDecision adds the decision to the context of a stream.
type streamWithDecision struct {
	grpc.ServerStream
	ctx context.Context
}

func (j *streamWithDecision) Context() context.Context { return j.ctx }

// Status returns the gRPC status of a refusal. Pushback is the trailer grpc-retry-pushback-ms, -1 for never.
func Status(d *tidegate.Decision) (refusal *status.Status, pushback string) {
	code := codes.Unavailable
	switch d.Verdict {
	case tidegate.VerdictLimit:
		code = codes.ResourceExhausted
	case tidegate.VerdictDeny:
		code = codes.PermissionDenied
	}
	refusal = status.New(code, d.Message())
	if d.RetryAfter == tidegate.Never {
		return refusal, "-1"
	}
	if with, err := refusal.WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(d.RetryAfter)}); err == nil {
		refusal = with
	}
	milliseconds := d.RetryAfter / time.Millisecond
	if d.RetryAfter%time.Millisecond > 0 {
		milliseconds++
	}
	return refusal, strconv.FormatInt(int64(milliseconds), 10)
}

type limiter struct {
	client *tidegate.Client
	Options
}

func newLimiter(c *tidegate.Client, with Options) *limiter {
	if with.Domain == "" {
		with.Domain = "web"
	}
	if !tidegate.IsName(with.Domain) {
		panic(fmt.Sprintf("tidegategrpc: Options.Domain %.99q is not a name; help: use 1 to 64 bytes without control characters, %q or %q",
			with.Domain, ":", "/"))
	}
	return &limiter{c, with}
}

func (l *limiter) call(
	ctx context.Context, method string, trailer func(metadata.MD), next func(context.Context) error,
) error {
	began := time.Now()
	d := l.decide(ctx, method)
	if d == nil {
		return next(ctx)
	}
	outcome := tidegate.Dropped // a panic
	defer func() { d.ReleaseAs(outcome) }()
	if l.Instrument != nil {
		l.guarded("instrument", func() { l.Instrument(d, time.Since(began)) })
	}
	if err := ctx.Err(); err != nil && !d.Allowed { // the caller hung up, or its deadline passed
		return status.FromContextError(err).Err()
	}
	if !d.Allowed {
		var own error
		l.guarded("on_refused", func() {
			if l.OnRefused != nil {
				own = l.OnRefused(ctx, d)
			}
		})
		refusal, pushback := Status(d)
		trailer(metadata.Pairs("grpc-retry-pushback-ms", pushback))
		if own != nil {
			return own
		}
		return refusal.Err()
	}
	if err := d.AwaitStart(ctx); err != nil {
		return status.FromContextError(err).Err()
	}
	err := next(tidegate.NewContext(ctx, d))
	switch code := status.Code(err); {
	case ctx.Err() != nil || code == codes.Canceled || code == codes.DeadlineExceeded: // remains Dropped
	case code == codes.OK:
		outcome = tidegate.OK
	default:
		outcome = tidegate.Failed
	}
	if l.Outcome != nil {
		l.guarded("outcome", func() { outcome = l.Outcome(ctx, d, err) })
	}
	return err
}

// decide returns the decision; nil if the call is exempt.
func (l *limiter) decide(ctx context.Context, method string) *tidegate.Decision {
	if call(l, "exempt", l.Exempt, ctx, method) {
		return nil
	}
	from, proxies := peerOf(ctx), forwarded.Proxies{Networks: l.TrustedProxies, Count: l.TrustedCount}
	md, _ := metadata.FromIncomingContext(ctx)
	ip := proxies.Address(md.Get("x-forwarded-for"), from)
	attributes := tidegate.Attributes{{"path", method}, {"ip", ip}, {"user", call(l, "user", l.User, ctx, method)},
		{"user_agent", firstOf(md, "user-agent")}}
	attributes = append(attributes, call(l, "attributes", l.Attributes, ctx, method)...)
	options := []tidegate.CallOption{tidegate.Descriptors(call(l, "descriptors", l.Descriptors, ctx, method)...),
		tidegate.Priority(call(l, "priority", l.Priority, ctx, method)), call(l, "cost", l.Cost, ctx, method)}
	l.guarded("on_failure", func() {
		if l.OnFailure != nil && l.OnFailure(method) {
			options = append(options, tidegate.RefuseOnFailure())
		}
	})
	if waited, known := proxies.Queued(firstOf(md, "x-request-start"), from); known {
		options = append(options, tidegate.Queued(waited))
	}
	return l.client.Acquire(ctx, l.Domain, attributes, options...)
}

// call returns the value of a callback; the zero value if it is nil or panics.
func call[T any](
	l *limiter, name string, function func(context.Context, string) T, ctx context.Context, method string,
) (t T) {
	if function != nil {
		l.guarded(name, func() { t = function(ctx, method) })
	}
	return t
}

// guarded runs a callback, which may panic.
func (l *limiter) guarded(name string, function func()) {
	defer func() {
		if thrown := recover(); thrown != nil {
			l.client.CallbackFailed(name, thrown)
		}
	}()
	function()
}

// peerOf returns the host of the peer; empty for a Unix socket.
func peerOf(ctx context.Context) string {
	if p, is := peer.FromContext(ctx); is && p.Addr != nil {
		if host, _, err := net.SplitHostPort(p.Addr.String()); err == nil {
			return host
		}
	}
	return ""
}

func firstOf(md metadata.MD, name string) string {
	if values := md.Get(name); len(values) > 0 {
		return values[0]
	}
	return ""
}
