package io.github.tidegate;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Comparator;
import java.util.concurrent.TimeUnit;
import java.util.stream.Stream;

/** The real daemon: TIDEGATE_BIN, else the newest build. */
public final class RealDaemon implements AutoCloseable {
    public final Path path;
    private final Path home;
    private Process process;

    public RealDaemon(Path home, String rules) throws Exception {
        this.home = home;
        path = home.resolve("s");
        Files.writeString(Files.createDirectory(home.resolve("rules")).resolve("rules.yaml"), rules);
        start();
    }

    private static Path binary() {
        String given = System.getenv("TIDEGATE_BIN");
        Path target = Support.root().resolve("target");
        return given != null ? Path.of(given) : Stream.of("release", "debug").map(kind -> target.resolve(kind).resolve("tidegate"))
                .filter(Files::exists).max(Comparator.comparing(path -> path.toFile().lastModified()))
                .orElseThrow(() -> new AssertionError("no tidegate to test with: cargo build, or set TIDEGATE_BIN"));
    }

    public void start() throws Exception {
        process = new ProcessBuilder(binary().toString(), "serve", "--socket", path.toString(), "--rules", home.resolve("rules").toString())
                .redirectErrorStream(true).redirectOutput(ProcessBuilder.Redirect.DISCARD).start();
        try (TidegateClient probe = TidegateClient.builder().socket(path).timeout(Duration.ofSeconds(1)).logger(line -> { }).build()) {
            Support.until(probe::check);
        }
    }

    /** Sends a signal by its name. */
    public void signal(String name) throws Exception {
        send(name, process.pid());
    }

    public static void send(String name, long pid) throws Exception {
        int status = new ProcessBuilder("kill", "-" + name, Long.toString(pid)).inheritIO().start().waitFor();
        if (status != 0) {
            throw new IOException("kill ended with " + status);
        }
    }

    public long pid() {
        return process.pid();
    }

    public void stop(String signal) throws Exception {
        signal(signal);
        await();
    }

    private void await() throws InterruptedException {
        if (!process.waitFor(30, TimeUnit.SECONDS)) {
            throw new AssertionError("the daemon does not end");
        }
    }

    @Override
    public void close() throws Exception {
        process.destroyForcibly();
        await();
    }
}
