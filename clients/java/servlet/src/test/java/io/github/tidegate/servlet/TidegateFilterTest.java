package io.github.tidegate.servlet;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.google.gson.JsonObject;
import io.github.tidegate.GuardOptions;
import io.github.tidegate.OnFailure;
import io.github.tidegate.PlayedDaemon;
import io.github.tidegate.RealDaemon;
import io.github.tidegate.Support;
import io.github.tidegate.TidegateClient;
import io.github.tidegate.Vectors;
import jakarta.servlet.AsyncContext;
import jakarta.servlet.http.HttpServlet;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletResponse;
import java.io.File;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.net.InetAddress;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import org.apache.catalina.Context;
import org.apache.catalina.Wrapper;
import org.apache.catalina.startup.Tomcat;
import org.apache.tomcat.util.descriptor.web.FilterDef;
import org.apache.tomcat.util.descriptor.web.FilterMap;
import org.junit.jupiter.api.Test;

/** The filter in Tomcat, before the scripted daemon and the real one. */
class TidegateFilterTest extends Support {
    private final HttpClient http = HttpClient.newHttpClient();
    private final List<String> entered = new ArrayList<>();

    /** The application: its path says what it does. */
    private final class Application extends HttpServlet {
        private static final long serialVersionUID = 1;

        @Override
        protected void service(HttpServletRequest request, HttpServletResponse response) throws IOException {
            entered.add(request.getRequestURI());
            switch (request.getRequestURI()) {
                case "/redirect" -> response.sendRedirect("/");
                case "/unmodified" -> response.setStatus(304);
                case "/missing" -> response.sendError(404);
                case "/own" -> {
                    response.setHeader("RateLimit", "own");
                    response.getWriter().write("own");
                }
                case "/late" -> { // the status is set after the writer was made
                    response.getWriter();
                    response.setStatus(302);
                    response.getWriter().write("late");
                }
                case "/large" -> {
                    for (int i = 0; i < 1_000; i++) {
                        response.getOutputStream().write(new byte[100]);
                    }
                }
                case "/broken" -> throw new IllegalStateException("broken");
                case "/async" -> {
                    AsyncContext context = request.startAsync();
                    context.start(() -> {
                        try {
                            context.getResponse().getWriter().write("later");
                        } catch (IOException error) {
                            throw new UncheckedIOException(error);
                        }
                        context.complete();
                    });
                }
                case "/dispatched" -> {
                    if (request.getAttribute("again") == null) {
                        request.setAttribute("again", true);
                        request.startAsync().dispatch();
                    } else {
                        response.getWriter().write("dispatched");
                    }
                }
                default -> response.getOutputStream().print(TidegateFilter.decision(request).verdict() + " " + request.getAttribute("none"));
            }
        }
    }

    private String start(TidegateClient client, GuardOptions<HttpServletRequest> options) throws Exception {
        return start(client, "api", options);
    }

    private String start(TidegateClient client, String domain, GuardOptions<HttpServletRequest> options) throws Exception {
        Tomcat tomcat = new Tomcat();
        tomcat.setBaseDir(folder().toString());
        tomcat.setPort(0);
        tomcat.getConnector().setProperty("address", "127.0.0.1");
        Context context = tomcat.addContext("", new File(".").getAbsolutePath());
        Wrapper application = Tomcat.addServlet(context, "application", new Application());
        application.setAsyncSupported(true);
        application.addMapping("/*");
        application.addMapping("/login/*");
        FilterDef filter = new FilterDef();
        filter.setFilterName("tidegate");
        filter.setFilter(new TidegateFilter(client, domain, options));
        filter.setAsyncSupported("true");
        context.addFilterDef(filter);
        FilterMap map = new FilterMap();
        map.setFilterName("tidegate");
        map.addURLPattern("/*");
        for (String dispatcher : List.of("REQUEST", "ASYNC", "ERROR", "FORWARD")) {
            map.setDispatcher(dispatcher);
        }
        context.addFilterMap(map);
        tomcat.start();
        opened(() -> {
            tomcat.stop();
            tomcat.destroy();
        });
        return "http://" + InetAddress.getLoopbackAddress().getHostAddress() + ":" + tomcat.getConnector().getLocalPort();
    }

    private HttpResponse<byte[]> get(String url, String... headers) throws Exception {
        HttpRequest.Builder request = HttpRequest.newBuilder(URI.create(url));
        if (headers.length > 0) {
            request.headers(headers);
        }
        return http.send(request.build(), HttpResponse.BodyHandlers.ofByteArray());
    }

    private static String header(HttpResponse<?> response, String name) {
        return String.join(" | ", response.headers().allValues(name));
    }

    @Test
    void answersEachRefusalAsEveryClientAndEachAllowedRequestWithItsHeaders() throws Exception {
        PlayedDaemon daemon = played();
        TidegateClient client = client(daemon.path);
        Map<String, String> urls = new HashMap<>(); // by style
        for (JsonObject row : Vectors.read("answers.json")) {
            String name = Vectors.text(row, "name"), body = Vectors.text(row, "body"), frame = Vectors.text(row, "decision");
            int status = row.get("status").getAsInt();
            String domain = row.has("domain") ? Vectors.text(row, "domain") : "api";
            if (frame == null || status != 200 && body == null || body != null && body.contains("\"digest\"") && !row.has("domain")) {
                continue; // decided by the client, another status of the application, or a body without its domain
            }
            daemon.script = (socket, message) -> {
                byte[] reply = HexFormat.of().parseHex(frame);
                reply[6] = message.get(1) == null ? 0 : ((Long) message.get(1)).byteValue(); // ids stay below 128
                return message.get(1) == null ? null : reply;
            };
            String style = Vectors.text(row, "style");
            if (!urls.containsKey(style)) {
                urls.put(style, start(client, domain, new GuardOptions<HttpServletRequest>().headers(GuardOptions.Headers.valueOf(style.toUpperCase()))));
            }
            HttpResponse<byte[]> response = get(urls.get(style) + "/");
            assertEquals(status, response.statusCode(), name);
            row.getAsJsonArray("headers").forEach(field -> {
                String key = field.getAsJsonArray().get(0).getAsString();
                assertEquals(field.getAsJsonArray().get(1).getAsString(), header(response, key).replace(";charset=ISO-8859-1", ""), name + " " + key);
            });
            long limits = response.headers().map().keySet().stream().filter(key -> key.matches("(?i)(x-)?ratelimit.*|retry-after")).count();
            assertEquals(row.getAsJsonArray("headers").size() - (body == null ? 0 : 3), limits, name);
            if (body != null) {
                assertEquals(body, new String(response.body(), "UTF-8"), name);
            }
        }
    }

    @Test
    void addsHeadersWhenTheStatusIsKnownAndReleasesWithTheResponse() throws Exception {
        PlayedDaemon daemon = played();
        daemon.script = PlayedDaemon::grant;
        String url = start(client(daemon.path), new GuardOptions<HttpServletRequest>().user(request -> request.getHeader("X-User")));
        assertEquals("ALLOW null", new String(get(url + "/", "X-User", "ann").body()));
        assertTrue(daemon.last(1).get(3).toString().matches(".*method, GET, path, /, ip, 127.0.0.1, user, ann, user_agent, Java.*"), daemon.last(1).toString());
        get(url + "/login/");
        assertTrue(daemon.last(1).get(3).toString().matches(".*path, /login/, route, /login/\\*, ip.*"), daemon.last(1).toString());
        for (String path : List.of("/missing", "/large", "/async", "/dispatched")) {
            assertEquals("\"per-user\";r=39;t=1", header(get(url + path), "RateLimit"), path);
        }
        for (String path : List.of("/redirect", "/unmodified", "/late")) {
            assertEquals("", header(get(url + path), "RateLimit"), path);
        }
        assertEquals("own", header(get(url + "/own"), "RateLimit"));
        assertEquals("39", header(get(url + "/own"), "X-Ratelimit-Remaining"));
        assertEquals(500, get(url + "/broken").statusCode());
        assertEquals(List.of(0L, 0L, 1L, 0L, 0L, 0L, 0L, 0L, 0L, 0L, 0L, 2L), daemon.releases(12).stream().map(release -> release.get(1)).toList());
        assertEquals(12, daemon.of(1).size()); // one decision, also of a dispatched request and of an error page
    }

    @Test
    void refusesWithoutEnteringTheApplicationAndAnswersAsTheApplicationSays() throws Exception {
        PlayedDaemon daemon = played();
        daemon.script = (socket, message) -> PlayedDaemon.decision(message, PlayedDaemon.LIMIT);
        GuardOptions<HttpServletRequest> options = new GuardOptions<HttpServletRequest>().onRefused((request, decision) ->
                request.getRequestURI().equals("/own") ? new GuardOptions.Refusal(420, Map.of("X-Own", "1"), "calm".getBytes()) : null);
        String url = start(client(daemon.path), options);
        HttpResponse<byte[]> response = get(url + "/own");
        assertEquals(List.of(420, "1", "1", "calm"), List.of(response.statusCode(), header(response, "X-Own"), header(response, "Retry-After"),
                new String(response.body())));
        HttpRequest head = HttpRequest.newBuilder(URI.create(url)).method("HEAD", HttpRequest.BodyPublishers.noBody()).build();
        HttpResponse<byte[]> headed = http.send(head, HttpResponse.BodyHandlers.ofByteArray());
        assertEquals(List.of(429, 0), List.of(headed.statusCode(), headed.body().length));
        String failing = start(client(daemon.path), new GuardOptions<HttpServletRequest>().onRefused((request, decision) -> {
            throw new IllegalStateException("secret");
        }).user(request -> {
            throw new IllegalStateException("secret");
        }));
        HttpResponse<byte[]> usual = get(failing + "/");
        assertEquals(List.of(429, "application/problem+json"), List.of(usual.statusCode(), header(usual, "Content-Type").split(";")[0]));
        assertEquals(List.of(), entered);
    }

    @Test
    void startsAfterAWait() throws Exception {
        PlayedDaemon daemon = played();
        daemon.script = (socket, message) -> PlayedDaemon.decision(message, Arrays.asList(3, "queue", 4, 5, 0, 0, 60_000, 90));
        String url = start(client(daemon.path), new GuardOptions<>());
        long began = System.nanoTime();
        assertEquals("WAIT null", new String(get(url + "/").body()));
        assertTrue(System.nanoTime() - began >= 60_000_000);
        daemon.releases(1);
    }

    @Test
    void answersWithoutADaemonAndLimitsWithTheRealOne() throws Exception {
        TidegateClient without = client(folder().resolve("s"));
        assertEquals(200, get(start(without, new GuardOptions<>()) + "/").statusCode());
        assertEquals(503, get(start(without, new GuardOptions<HttpServletRequest>().onFailure(OnFailure.REFUSE)) + "/").statusCode());
        RealDaemon daemon = opened(new RealDaemon(folder(), """
                domain: api
                limits:
                  - {name: per-address, key: [ip], rate: 1/h, burst: 2}
                """));
        String url = start(client(daemon.path), new GuardOptions<>());
        List<Integer> statuses = new ArrayList<>();
        HttpResponse<byte[]> last = null;
        for (int i = 0; i < 3; i++) {
            last = get(url + "/");
            statuses.add(last.statusCode());
        }
        assertEquals(List.of(200, 200, 429), statuses);
        assertTrue(new String(last.body()).contains("\"domain\":\"api\""));
        assertFalse(lines.isEmpty());
    }
}
