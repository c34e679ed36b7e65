package io.github.tidegate.spring;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.github.tidegate.Decision;
import io.github.tidegate.DecisionListener;
import io.github.tidegate.RealDaemon;
import io.github.tidegate.Support;
import io.github.tidegate.TidegateClient;
import io.github.tidegate.servlet.TidegateFilter;
import jakarta.servlet.http.HttpServletRequest;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.CopyOnWriteArrayList;
import org.junit.jupiter.api.Test;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.EnableAutoConfiguration;
import org.springframework.context.ConfigurableApplicationContext;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.web.bind.annotation.GetMapping;
import org.springframework.web.bind.annotation.PathVariable;
import org.springframework.web.bind.annotation.RestController;

/** A Spring Boot application with the starter and the real daemon. */
class TidegateAutoConfigurationTest extends Support {
    private static final List<Decision> DECISIONS = new CopyOnWriteArrayList<>();

    @Configuration
    @EnableAutoConfiguration
    @RestController
    static class Application {
        @Bean
        TidegateAutoConfiguration.Customizer users() {
            return options -> options.user(request -> request.getHeader("X-User"));
        }

        @Bean
        DecisionListener decisions() {
            return (decision, took) -> DECISIONS.add(decision);
        }

        @GetMapping("/")
        String index(HttpServletRequest request) {
            return TidegateFilter.decision(request).rule();
        }

        @GetMapping("/login/{step}")
        String login(@PathVariable("step") String step) {
            return step;
        }

        @GetMapping("/later")
        Callable<String> later(HttpServletRequest request) {
            return () -> TidegateFilter.decision(request).verdict().toString();
        }
    }

    private ConfigurableApplicationContext start(Map<String, Object> properties) {
        SpringApplication application = new SpringApplication(Application.class);
        application.setDefaultProperties(properties);
        return opened(application.run("--server.port=0", "--server.address=127.0.0.1", "--spring.main.banner-mode=off"));
    }

    private static HttpResponse<String> get(ConfigurableApplicationContext context, String path, String user) throws Exception {
        URI uri = URI.create("http://127.0.0.1:" + context.getEnvironment().getProperty("local.server.port") + path);
        HttpRequest request = HttpRequest.newBuilder(uri).header("X-User", user).build();
        return HttpClient.newHttpClient().send(request, HttpResponse.BodyHandlers.ofString());
    }

    @Test
    void limitsAnApplicationByItsProperties() throws Exception {
        RealDaemon daemon = opened(new RealDaemon(folder(), """
                domain: api
                limits:
                  - {name: per-user, key: [user], rate: 1/h, burst: 2}
                """));
        ConfigurableApplicationContext context = start(Map.of("tidegate.domain", "api", "tidegate.socket", daemon.path.toString(),
                "tidegate.timeout", "5s", "tidegate.fallback.[*]", "20/s", "tidegate.headers", "draft", "tidegate.trusted-proxies", "10.0.0.0/8"));
        HttpResponse<String> first = get(context, "/", "ann"), second = get(context, "/later", "ann"), third = get(context, "/", "ann");
        assertEquals(List.of(200, 200, 429, 200), List.of(first.statusCode(), second.statusCode(), third.statusCode(), get(context, "/", "bob").statusCode()));
        assertEquals(List.of("per-user", "ALLOW"), List.of(first.body(), second.body()));
        assertEquals(List.of("\"per-user\";r=1;t=3600", true), List.of(first.headers().firstValue("RateLimit").orElse(""),
                first.headers().firstValue("X-Ratelimit-Limit").isEmpty()));
        assertEquals("application/problem+json", third.headers().firstValue("Content-Type").orElse(""));
        assertTrue(third.body().contains("\"violated-policies\":[\"per-user\"]"), third.body());
        assertEquals(4, DECISIONS.size());
    }

    @Test
    void limitsARouteInAllSpellingsThatSpringTakes() throws Exception {
        RealDaemon daemon = opened(new RealDaemon(folder(), """
                domain: api
                limits:
                  - {name: logins, match: {route: "/login/{step}"}, key: [ip], rate: 1/h, burst: 2}
                """));
        ConfigurableApplicationContext context = start(Map.of("tidegate.domain", "api", "tidegate.socket", daemon.path.toString(),
                "tidegate.timeout", "5s", "tidegate.route", "true"));
        List<Integer> statuses = new ArrayList<>();
        for (String path : List.of("/login/a", "/login/%61", "/login/a;v=1", "/", "/none")) {
            statuses.add(get(context, path, "ann").statusCode());
        }
        assertEquals(List.of(200, 200, 429, 200, 404), statuses);
        HttpRequest post = HttpRequest.newBuilder(URI.create("http://127.0.0.1:" + context.getEnvironment().getProperty("local.server.port") + "/login/a"))
                .POST(HttpRequest.BodyPublishers.noBody()).build();
        assertEquals(405, HttpClient.newHttpClient().send(post, HttpResponse.BodyHandlers.ofString()).statusCode());
        assertEquals(Map.of(), context.getBean(TidegateClient.class).stats().missed());
    }

    @Test
    void makesOnlyTheClientWithoutADomain() throws Exception {
        ConfigurableApplicationContext context = start(Map.of("tidegate.enabled", "false"));
        assertFalse(context.containsBean("tidegateFilter"));
        assertFalse(context.getBean(TidegateClient.class).check());
    }
}
