import io.github.tidegate.Decision;
import io.github.tidegate.TidegateClient;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.net.StandardProtocolFamily;
import java.net.UnixDomainSocketAddress;
import java.nio.ByteBuffer;
import java.nio.channels.SocketChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.HexFormat;
import java.util.Map;
import java.util.concurrent.TimeUnit;

/** Compares a call with the same bytes over a bare socket, interleaved. Argument: the daemon. */
final class Bench {
    private static final int ROUNDS = 400, CALLS = 100, WARM_UP = 200;

    public static void main(String[] arguments) throws Exception {
        Path home = Files.createTempDirectory("tg-");
        Path socket = home.resolve("s"), rules = Files.createDirectory(home.resolve("rules"));
        Files.writeString(rules.resolve("api.yaml"), """
                domain: api
                limits:
                  - {name: per-user, key: [user], rate: 1000000/s, burst: 1000000}
                """);
        Process daemon = new ProcessBuilder(arguments[0], "serve", "--socket", socket.toString(), "--rules", rules.toString())
                .redirectErrorStream(true).redirectOutput(ProcessBuilder.Redirect.DISCARD).start();
        try (TidegateClient client = TidegateClient.builder().socket(socket).logger(line -> { }).build()) {
            while (!client.check()) {
                Thread.sleep(10);
            }
            measure(client, bare(socket));
        } finally {
            daemon.destroy();
            daemon.waitFor(10, TimeUnit.SECONDS);
        }
    }

    /** Returns a call of the same bytes, by blocking writes and reads. */
    private static Runnable bare(Path socket) throws IOException {
        SocketChannel channel = SocketChannel.open(StandardProtocolFamily.UNIX);
        channel.connect(UnixDomainSocketAddress.of(socket));
        channel.write(ByteBuffer.wrap(HexFormat.of().parseHex("0000000493000001")));
        ByteBuffer request = ByteBuffer.allocateDirect(64), reply = ByteBuffer.allocateDirect(512);
        request.put(HexFormat.of().parseHex("00000012950307a36170699192a475736572a2753101")).flip();
        channel.read(reply);
        return () -> {
            try {
                channel.write(request.rewind());
                channel.read(reply.clear());
            } catch (IOException error) {
                throw new UncheckedIOException(error);
            }
        };
    }

    private static void measure(TidegateClient client, Runnable bare) {
        Map<String, String> attributes = Map.of("user", "u1");
        Runnable call = () -> {
            Decision decision = client.hit("api", attributes);
            if (decision.degraded()) {
                degraded++;
            }
        };
        double[] client50 = new double[ROUNDS], bare50 = new double[ROUNDS];
        for (int round = -WARM_UP; round < ROUNDS; round++) {
            double one = median(call), other = median(bare);
            if (round >= 0) {
                client50[round] = one;
                bare50[round] = other;
            }
        }
        Arrays.sort(client50);
        Arrays.sort(bare50);
        double one = client50[ROUNDS / 2], other = bare50[ROUNDS / 2];
        System.out.printf("call %.1f µs, bare socket %.1f µs: %.2f; %d of %d degraded%n",
                one, other, one / other, degraded, (ROUNDS + WARM_UP) * CALLS);
    }

    private static int degraded;

    /** Returns the median time of a call, in µs. */
    private static double median(Runnable call) {
        double[] times = new double[CALLS];
        for (int i = 0; i < CALLS; i++) {
            long began = System.nanoTime();
            call.run();
            times[i] = (System.nanoTime() - began) / 1e3;
        }
        Arrays.sort(times);
        return times[CALLS / 2];
    }
}
