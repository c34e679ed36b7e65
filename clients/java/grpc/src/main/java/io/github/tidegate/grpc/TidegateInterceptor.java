package io.github.tidegate.grpc;

import com.google.protobuf.Any;
import com.google.rpc.Code;
import com.google.rpc.RetryInfo;
import io.github.tidegate.Decision;
import io.github.tidegate.Guard;
import io.github.tidegate.GuardOptions;
import io.github.tidegate.Outcome;
import io.github.tidegate.TidegateClient;
import io.grpc.Context;
import io.grpc.Contexts;
import io.grpc.ForwardingServerCall.SimpleForwardingServerCall;
import io.grpc.ForwardingServerCallListener.SimpleForwardingServerCallListener;
import io.grpc.Grpc;
import io.grpc.Metadata;
import io.grpc.ServerCall;
import io.grpc.ServerCallHandler;
import io.grpc.ServerInterceptor;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.grpc.protobuf.StatusProto;
import java.net.InetSocketAddress;
import java.net.SocketAddress;
import java.time.Duration;

/**
 * Limits a gRPC server, with one decision for each call or stream. Over a limit a call ends with RESOURCE_EXHAUSTED, on a full
 * host with UNAVAILABLE, both with RetryInfo and pushback, which clients with a retry policy obey. The lease of a call ends
 * with it. Do not use it with {@code directExecutor()}: a check takes up to the client's timeout.
 */
public final class TidegateInterceptor implements ServerInterceptor {
    /** The decision on a call, in its context; null if it is exempt. */
    public static final Context.Key<Decision> DECISION = Context.key("tidegate");

    /** A call as functions of the options see it; {@code method} is the full one, {@code package.Service/Method}. */
    public record Call(String method, Metadata headers, ServerCall<?, ?> call) {}

    private static final Metadata.Key<String> PUSHBACK = key("grpc-retry-pushback-ms");
    private final Guard<Call> guard;

    /**
     * Makes an interceptor. {@code onRefused} and {@code headers} of the options are for HTTP only.
     *
     * @throws IllegalArgumentException if the domain is not a name
     */
    public TidegateInterceptor(TidegateClient client, String domain, GuardOptions<Call> options) {
        guard = new Guard<>(client, domain, options);
    }

    /** Returns the status of a refusal, with RetryInfo and pushback as trailers. */
    public static StatusRuntimeException status(Decision decision) {
        Code code = switch (decision.verdict()) {
            case LIMIT -> Code.RESOURCE_EXHAUSTED;
            case DENY -> Code.PERMISSION_DENIED;
            default -> Code.UNAVAILABLE;
        };
        com.google.rpc.Status.Builder status = com.google.rpc.Status.newBuilder().setCode(code.getNumber()).setMessage(decision.message());
        Duration retry = decision.retryAfter();
        Metadata trailers = new Metadata();
        if (retry != null) {
            var delay = com.google.protobuf.Duration.newBuilder().setSeconds(retry.getSeconds()).setNanos(retry.getNano());
            status.addDetails(Any.pack(RetryInfo.newBuilder().setRetryDelay(delay).build()));
        }
        trailers.put(PUSHBACK, retry == null ? "-1" : Long.toString(retry.plusNanos(999_999).toMillis()));
        return StatusProto.toStatusRuntimeException(status.build(), trailers);
    }

    @Override
    public <Q, A> ServerCall.Listener<Q> interceptCall(ServerCall<Q, A> call, Metadata headers, ServerCallHandler<Q, A> next) {
        String method = call.getMethodDescriptor().getFullMethodName();
        Call seen = new Call(method, headers, call);
        Decision decision = guard.judge(seen, new Guard.Seen(null, "/" + method, peer(call), name -> value(headers, name)));
        if (decision == null) {
            return next.startCall(call, headers);
        } else if (!decision.allowed()) {
            StatusRuntimeException refusal = status(decision);
            call.close(refusal.getStatus(), refusal.getTrailers());
            return new ServerCall.Listener<>() {};
        }
        Limited<Q, A> limited = new Limited<>(call);
        boolean started = false;
        try {
            decision.awaitStart();
            var listener = Contexts.interceptCall(Context.current().withValue(DECISION, decision), limited, headers, next);
            started = true;
            return new End<>(listener, limited, decision);
        } catch (InterruptedException error) { // the server stops
            Thread.currentThread().interrupt();
            call.close(Status.UNAVAILABLE, new Metadata());
            return new ServerCall.Listener<>() {};
        } finally {
            if (!started) {
                decision.release(Outcome.DROPPED);
            }
        }
    }

    /** Returns the address of the peer; empty for a Unix socket. */
    private static String peer(ServerCall<?, ?> call) {
        SocketAddress address = call.getAttributes().get(Grpc.TRANSPORT_ATTR_REMOTE_ADDR);
        return address instanceof InetSocketAddress socket && socket.getAddress() != null ? socket.getAddress().getHostAddress() : "";
    }

    /** Returns the values of a header in one line; null if it is absent. */
    private static String value(Metadata headers, String name) {
        Iterable<String> values = headers.getAll(key(name));
        return values == null ? null : String.join(", ", values);
    }

    private static Metadata.Key<String> key(String name) {
        return Metadata.Key.of(name, Metadata.ASCII_STRING_MARSHALLER);
    }

    /** A call that remembers its status. */
    private static final class Limited<Q, A> extends SimpleForwardingServerCall<Q, A> {
        private volatile Status status = Status.UNKNOWN;

        Limited(ServerCall<Q, A> call) {
            super(call);
        }

        @Override
        public void close(Status end, Metadata trailers) {
            status = end;
            super.close(end, trailers);
        }
    }

    /** Releases the lease when the call ends. */
    private final class End<Q> extends SimpleForwardingServerCallListener<Q> {
        private final Limited<?, ?> call;
        private final Decision decision;

        End(ServerCall.Listener<Q> listener, Limited<?, ?> call, Decision decision) {
            super(listener);
            this.call = call;
            this.decision = decision;
        }

        @Override
        public void onComplete() {
            Status.Code code = call.status.getCode();
            Outcome usual = switch (code) {
                case OK -> Outcome.OK;
                case CANCELLED, DEADLINE_EXCEEDED -> Outcome.DROPPED;
                default -> Outcome.ERROR;
            };
            decision.release(guard.outcome(code.value(), usual));
            super.onComplete();
        }

        @Override
        public void onCancel() {
            decision.release(Outcome.DROPPED);
            super.onCancel();
        }
    }
}
