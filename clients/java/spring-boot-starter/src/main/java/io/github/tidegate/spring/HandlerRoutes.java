package io.github.tidegate.spring;

import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletRequestWrapper;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Supplier;
import org.springframework.web.servlet.HandlerMapping;
import org.springframework.web.util.ServletRequestPathUtils;

/** Finds the pattern that Spring will match, before it does: filters run earlier. */
final class HandlerRoutes {
    private final Supplier<List<HandlerMapping>> mappings;

    HandlerRoutes(Supplier<List<HandlerMapping>> mappings) {
        this.mappings = mappings;
    }

    /** Returns the pattern; null without a handler. Spring reports its errors, such as another method, when it looks itself. */
    String of(HttpServletRequest request) {
        HttpServletRequest copy = new OwnAttributes(request);
        try {
            ServletRequestPathUtils.parseAndCache(copy);
            for (HandlerMapping mapping : mappings.get()) {
                if (mapping.getHandler(copy) != null) {
                    Object pattern = copy.getAttribute(HandlerMapping.BEST_MATCHING_PATTERN_ATTRIBUTE);
                    return pattern == null ? null : request.getContextPath() + pattern;
                }
            }
        } catch (Exception error) {
            // no handler
        }
        return null;
    }

    /** A request whose new attributes the application does not see. */
    private static final class OwnAttributes extends HttpServletRequestWrapper {
        private final Map<String, Object> own = new HashMap<>();

        OwnAttributes(HttpServletRequest request) {
            super(request);
        }

        @Override
        public Object getAttribute(String name) {
            return own.containsKey(name) ? own.get(name) : super.getAttribute(name);
        }

        @Override
        public void setAttribute(String name, Object value) {
            own.put(name, value);
        }

        @Override
        public void removeAttribute(String name) {
            own.put(name, null);
        }
    }
}
