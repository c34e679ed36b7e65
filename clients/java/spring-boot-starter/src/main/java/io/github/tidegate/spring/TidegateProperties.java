package io.github.tidegate.spring;

import io.github.tidegate.GuardOptions;
import io.github.tidegate.OnFailure;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import org.springframework.boot.context.properties.ConfigurationProperties;
import org.springframework.boot.context.properties.bind.DefaultValue;

/**
 * Properties of {@code tidegate}.
 *
 * @param domain of the filter; without it there is no filter
 * @param socket path of the daemon's socket; else TIDEGATE_SOCKET, else the default paths
 * @param timeout deadline of a whole call; else TIDEGATE_TIMEOUT_MS, else 20 ms
 * @param pool name of the application
 * @param slots requests that this process works on concurrently; 0: unknown
 * @param enabled false: every request is allowed without any I/O
 * @param fallback rates by rule while the daemon is unreachable; {@code *} is for all other requests
 * @param onFailure the decision if the daemon does not answer
 * @param trustedProxies networks of proxies whose X-Forwarded-For and X-Request-Start count
 * @param headers the limit headers
 * @param route true: the attribute {@code route} is the pattern that Spring MVC will match
 * @param order of the filter: 0, behind Spring Security's
 */
@ConfigurationProperties("tidegate")
public record TidegateProperties(String domain, Path socket, Duration timeout, @DefaultValue("default") String pool,
        @DefaultValue("0") int slots, @DefaultValue("true") boolean enabled, Map<String, String> fallback,
        @DefaultValue("allow") OnFailure onFailure, @DefaultValue List<String> trustedProxies,
        @DefaultValue("both") GuardOptions.Headers headers, @DefaultValue("false") boolean route, @DefaultValue("0") int order) {}
