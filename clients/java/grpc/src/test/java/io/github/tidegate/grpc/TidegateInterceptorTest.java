package io.github.tidegate.grpc;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.google.gson.JsonObject;
import com.google.rpc.RetryInfo;
import io.github.tidegate.Decision;
import io.github.tidegate.GuardOptions;
import io.github.tidegate.PlayedDaemon;
import io.github.tidegate.RealDaemon;
import io.github.tidegate.Support;
import io.github.tidegate.TidegateClient;
import io.github.tidegate.Vectors;
import io.grpc.CallOptions;
import io.grpc.ManagedChannel;
import io.grpc.Metadata;
import io.grpc.MethodDescriptor;
import io.grpc.Server;
import io.grpc.ServerServiceDefinition;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.grpc.netty.shaded.io.grpc.netty.NettyChannelBuilder;
import io.grpc.netty.shaded.io.grpc.netty.NettyServerBuilder;
import io.grpc.protobuf.StatusProto;
import io.grpc.stub.ClientCalls;
import io.grpc.stub.ServerCalls;
import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.UncheckedIOException;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;

/** The interceptor in a server of gRPC, before the scripted daemon and the real one. */
class TidegateInterceptorTest extends Support {
    private static final MethodDescriptor.Marshaller<String> TEXT = new MethodDescriptor.Marshaller<>() {
        @Override
        public InputStream stream(String value) {
            return new ByteArrayInputStream(value.getBytes(StandardCharsets.UTF_8));
        }

        @Override
        public String parse(InputStream stream) {
            try {
                return new String(stream.readAllBytes(), StandardCharsets.UTF_8);
            } catch (IOException error) {
                throw new UncheckedIOException(error);
            }
        }
    };
    private static final MethodDescriptor<String, String> ECHO = method("Echo", MethodDescriptor.MethodType.UNARY);
    private static final MethodDescriptor<String, String> COUNT = method("Count", MethodDescriptor.MethodType.SERVER_STREAMING);

    private static MethodDescriptor<String, String> method(String name, MethodDescriptor.MethodType type) {
        return MethodDescriptor.<String, String>newBuilder(TEXT, TEXT).setType(type).setFullMethodName("test.Service/" + name).build();
    }

    private ManagedChannel start(TidegateClient client, GuardOptions<TidegateInterceptor.Call> options) throws IOException {
        ServerServiceDefinition service = ServerServiceDefinition.builder("test.Service")
                .addMethod(ECHO, ServerCalls.asyncUnaryCall((text, reply) -> {
                    if (text.equals("fail")) {
                        reply.onError(Status.NOT_FOUND.asRuntimeException());
                    } else if (text.equals("throw")) {
                        throw new IllegalStateException("thrown");
                    } else if (!text.equals("hang")) {
                        Decision decision = TidegateInterceptor.DECISION.get();
                        reply.onNext(decision == null ? "exempt" : decision.verdict().toString());
                        reply.onCompleted();
                    }
                }))
                .addMethod(COUNT, ServerCalls.asyncServerStreamingCall((text, reply) -> {
                    reply.onNext("1");
                    reply.onNext("2");
                    reply.onCompleted();
                })).build();
        Server server = NettyServerBuilder.forAddress(new InetSocketAddress("127.0.0.1", 0)).addService(service)
                .intercept(new TidegateInterceptor(client, "api", options)).build().start();
        opened(() -> server.shutdownNow().awaitTermination(10, TimeUnit.SECONDS));
        ManagedChannel channel = NettyChannelBuilder.forAddress("127.0.0.1", server.getPort()).usePlaintext().build();
        opened(() -> channel.shutdownNow().awaitTermination(10, TimeUnit.SECONDS));
        return channel;
    }

    private static String echo(ManagedChannel channel, String text) {
        return ClientCalls.blockingUnaryCall(channel, ECHO, CallOptions.DEFAULT, text);
    }

    @Test
    void givesCallersTheSameStatusAsEveryClient() throws Exception {
        int compared = 0;
        for (JsonObject row : Vectors.read("answers.json")) {
            if (row.get("grpc").isJsonNull()) {
                continue;
            }
            JsonObject expected = row.getAsJsonObject("grpc");
            String name = Vectors.text(row, "name");
            StatusRuntimeException refusal = TidegateInterceptor.status(Vectors.decided(row));
            assertEquals(Vectors.text(expected, "code"), refusal.getStatus().getCode().name(), name);
            assertEquals(Vectors.text(row, "message"), refusal.getStatus().getDescription(), name);
            Metadata.Key<String> key = Metadata.Key.of("grpc-retry-pushback-ms", Metadata.ASCII_STRING_MARSHALLER);
            assertEquals(Vectors.text(expected, "pushback_ms"), refusal.getTrailers().get(key), name);
            com.google.rpc.Status status = StatusProto.fromThrowable(refusal);
            String delay = status.getDetailsCount() == 0 ? null : micros(status.getDetails(0).unpack(RetryInfo.class));
            assertEquals(Vectors.text(expected, "retry_delay_us"), delay, name);
            compared++;
        }
        assertTrue(compared > 20);
    }

    private static String micros(RetryInfo info) {
        return Long.toString(info.getRetryDelay().getSeconds() * 1_000_000 + info.getRetryDelay().getNanos() / 1_000);
    }

    @Test
    void checksEachCallAndReleasesItWithItsStatus() throws Exception {
        PlayedDaemon daemon = played();
        daemon.script = PlayedDaemon::grant;
        ManagedChannel channel = start(client(daemon.path), new GuardOptions<TidegateInterceptor.Call>()
                .user(call -> call.headers().get(Metadata.Key.of("user", Metadata.ASCII_STRING_MARSHALLER)))
                .attribute("method_name", TidegateInterceptor.Call::method)
                .exempt(call -> call.headers().containsKey(Metadata.Key.of("exempt", Metadata.ASCII_STRING_MARSHALLER))));
        assertEquals("ALLOW", echo(channel, "hello"));
        String attributes = daemon.last(1).get(3).toString();
        assertTrue(attributes.matches("\\[\\[path, /test.Service/Echo, ip, 127.0.0.1, user_agent, grpc-java.*, method_name, test.Service/Echo]]"), attributes);
        assertThrows(StatusRuntimeException.class, () -> echo(channel, "fail"));
        assertThrows(StatusRuntimeException.class, () -> echo(channel, "throw"));
        CallOptions late = CallOptions.DEFAULT.withDeadlineAfter(300, TimeUnit.MILLISECONDS);
        assertThrows(StatusRuntimeException.class, () -> ClientCalls.blockingUnaryCall(channel, ECHO, late, "hang"));
        ClientCalls.blockingServerStreamingCall(channel, COUNT, CallOptions.DEFAULT, "x").forEachRemaining(text -> { });
        assertEquals(5, daemon.of(1).size()); // a stream has one decision
        List<Object> outcomes = daemon.releases(5).stream().<Object>map(release -> release.get(1)).sorted().toList();
        assertEquals(List.of(0L, 0L, 1L, 1L, 2L), outcomes);
    }

    @Test
    void refusesWithTheRealDaemonAndPassesWithoutOne() throws Exception {
        assertEquals("ALLOW", echo(start(client(folder().resolve("s")), new GuardOptions<>()), "hello"));
        RealDaemon daemon = opened(new RealDaemon(folder(), """
                domain: api
                limits:
                  - {name: per-address, key: [ip], rate: 1/h, burst: 2}
                """));
        ManagedChannel channel = start(client(daemon.path), new GuardOptions<TidegateInterceptor.Call>().user(call -> {
            throw new IllegalStateException("secret"); // the daemon is asked about the rest
        }));
        assertEquals(List.of("ALLOW", "ALLOW"), List.of(echo(channel, "a"), echo(channel, "b")));
        StatusRuntimeException refused = assertThrows(StatusRuntimeException.class, () -> echo(channel, "c"));
        assertEquals(Status.Code.RESOURCE_EXHAUSTED, refused.getStatus().getCode());
        assertTrue(StatusProto.fromThrowable(refused).getDetails(0).is(RetryInfo.class));
        assertEquals("exempt", echo(start(client(daemon.path), new GuardOptions<TidegateInterceptor.Call>().exempt(call -> true)), "d"));
        assertNull(TidegateInterceptor.DECISION.get());
    }
}
