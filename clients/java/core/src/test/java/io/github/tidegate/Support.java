package io.github.tidegate;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.Comparator;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.stream.Stream;
import org.junit.jupiter.api.AfterEach;

/** Daemons, clients and folders that end with their test. */
public class Support {
    /** For tests that are not about the deadline, on a busy machine. */
    public static final Duration PATIENT = Duration.ofSeconds(30);
    public static final Map<String, String> USER = Map.of("user", "u1");
    private final List<AutoCloseable> opened = new ArrayList<>();
    /** Lines of the log of all clients. */
    public final List<String> lines = Collections.synchronizedList(new ArrayList<>());

    @AfterEach
    public void closeAll() throws Exception {
        Collections.reverse(opened);
        for (AutoCloseable one : opened) {
            one.close();
        }
    }

    public <T extends AutoCloseable> T opened(T one) {
        opened.add(one);
        return one;
    }

    /** Returns the root of the repository. */
    public static Path root() {
        Path here = Path.of("").toAbsolutePath();
        while (!Files.exists(here.resolve("tests/vectors"))) {
            here = here.getParent();
        }
        return here;
    }

    /** Makes a folder whose path is short enough for a socket. */
    public Path folder() {
        try {
            Path folder = Files.createTempDirectory("tg-");
            opened.add(() -> {
                try (Stream<Path> files = Files.walk(folder)) {
                    files.sorted(Comparator.reverseOrder()).forEach(path -> path.toFile().delete());
                }
            });
            return folder;
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    public PlayedDaemon played() throws IOException {
        return opened(new PlayedDaemon(folder().resolve("s")));
    }

    public TidegateClient.Builder options(Path socket) {
        return TidegateClient.builder().socket(socket).timeout(PATIENT).logger(lines::add);
    }

    public TidegateClient client(Path socket) {
        return opened(options(socket).build());
    }

    public TidegateClient client(Path socket, long milliseconds) {
        return opened(options(socket).timeout(Duration.ofMillis(milliseconds)).build());
    }

    public static void until(Callable<Boolean> condition) throws Exception {
        for (long end = System.nanoTime() + PATIENT.toNanos(); !condition.call(); Thread.sleep(1)) {
            if (System.nanoTime() > end) {
                throw new AssertionError("not in time");
            }
        }
    }

    public static Reason hit(TidegateClient client) {
        return client.hit("api", USER).reason();
    }

    public static List<Reason> hits(TidegateClient client, int count) {
        return Stream.generate(() -> hit(client)).limit(count).toList();
    }
}
