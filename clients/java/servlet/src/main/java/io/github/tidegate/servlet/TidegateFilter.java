package io.github.tidegate.servlet;

import io.github.tidegate.Decision;
import io.github.tidegate.Guard;
import io.github.tidegate.GuardOptions;
import io.github.tidegate.Outcome;
import io.github.tidegate.TidegateClient;
import jakarta.servlet.AsyncContext;
import jakarta.servlet.AsyncEvent;
import jakarta.servlet.AsyncListener;
import jakarta.servlet.FilterChain;
import jakarta.servlet.ServletException;
import jakarta.servlet.ServletRequest;
import jakarta.servlet.http.HttpFilter;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletRequestWrapper;
import jakarta.servlet.http.HttpServletResponse;
import java.io.IOException;
import java.util.Collections;
import java.util.List;

/**
 * Limits a servlet application. A refused request is answered with its status, limit headers and application/problem+json; an
 * allowed one gets limit headers, and its lease ends with its response, also of an asynchronous one. (An asynchronous response
 * without a body gets no limit headers.)
 */
public class TidegateFilter extends HttpFilter {
    private static final long serialVersionUID = 1;
    private static final String DECISION = "io.github.tidegate.decision";
    private final transient Guard<HttpServletRequest> guard;

    /**
     * Makes a filter.
     *
     * @throws IllegalArgumentException if the domain is not a name
     */
    public TidegateFilter(TidegateClient client, String domain, GuardOptions<HttpServletRequest> options) {
        guard = new Guard<>(client, domain, options);
    }

    /** Returns the decision on a request; null if it is exempt or did not pass the filter. */
    public static Decision decision(ServletRequest request) {
        return request.getAttribute(DECISION) instanceof Decision decision ? decision : null;
    }

    @Override
    protected void doFilter(HttpServletRequest request, HttpServletResponse response, FilterChain chain)
            throws IOException, ServletException {
        if (request.getAttribute(DECISION) != null) { // a forward, an asynchronous dispatch, an error page
            chain.doFilter(request, response);
            if (response instanceof LimitedResponse limited && !request.isAsyncStarted()) {
                limited.addFields();
            }
            return;
        }
        Guard.Seen seen = new Guard.Seen(request.getMethod(), Guard.path(request.getRequestURI()), request.getRemoteAddr(),
                name -> header(request, name), route(request));
        Decision decision = guard.judge(request, seen);
        request.setAttribute(DECISION, decision == null ? Boolean.FALSE : decision);
        if (decision == null) {
            chain.doFilter(request, response);
        } else if (decision.allowed()) {
            run(request, new LimitedResponse(response, guard, decision), chain, decision);
        } else {
            refuse(request, response, decision);
        }
    }

    /** Returns the pattern of the servlet; null for one that takes all paths, which has routes of its own. */
    private static String route(HttpServletRequest request) {
        String pattern = request.getHttpServletMapping().getPattern();
        return pattern.isEmpty() || pattern.equals("/") || pattern.equals("/*") ? null : request.getContextPath() + pattern;
    }

    /** Returns the values of a header in one line; null if it is absent. */
    private static String header(HttpServletRequest request, String name) {
        List<String> values = Collections.list(request.getHeaders(name));
        return values.isEmpty() ? null : String.join(", ", values);
    }

    private void refuse(HttpServletRequest request, HttpServletResponse response, Decision decision) throws IOException {
        GuardOptions.Refusal refusal = guard.refusal(request, decision);
        response.setStatus(refusal.status());
        refusal.headers().forEach(response::setHeader);
        response.setContentLength(refusal.body().length);
        if (!request.getMethod().equals("HEAD")) {
            response.getOutputStream().write(refusal.body());
        }
    }

    private void run(HttpServletRequest request, LimitedResponse response, FilterChain chain, Decision decision)
            throws IOException, ServletException {
        Outcome outcome = Outcome.DROPPED;
        boolean asynchronous = false;
        try {
            decision.awaitStart();
            chain.doFilter(new LimitedRequest(request, response), response);
            asynchronous = request.isAsyncStarted();
            outcome = outcome(response);
            if (asynchronous) {
                request.getAsyncContext().addListener(new End(response, decision));
            } else {
                response.addFields();
            }
        } catch (InterruptedException error) { // the server stops
            Thread.currentThread().interrupt();
            response.sendError(HttpServletResponse.SC_SERVICE_UNAVAILABLE);
        } catch (IllegalStateException error) {
            if (!asynchronous) {
                throw error;
            }
            asynchronous = false; // its context ended before it could be watched
        } finally {
            if (!asynchronous) {
                decision.release(outcome);
            }
        }
    }

    private Outcome outcome(HttpServletResponse response) {
        int status = response.getStatus();
        return guard.outcome(status, status < 400 ? Outcome.OK : Outcome.ERROR);
    }

    /** A request whose asynchronous response is the limited one, too. */
    private static final class LimitedRequest extends HttpServletRequestWrapper {
        private final LimitedResponse response;

        LimitedRequest(HttpServletRequest request, LimitedResponse response) {
            super(request);
            this.response = response;
        }

        @Override
        public AsyncContext startAsync() {
            return startAsync(this, response);
        }
    }

    /** Releases the lease of an asynchronous response. */
    private final class End implements AsyncListener {
        private final LimitedResponse response;
        private final Decision decision;

        End(LimitedResponse response, Decision decision) {
            this.response = response;
            this.decision = decision;
        }

        @Override
        public void onComplete(AsyncEvent event) {
            decision.release(outcome(response)); // does nothing after one of the following
        }

        @Override
        public void onTimeout(AsyncEvent event) {
            decision.release(Outcome.DROPPED);
        }

        @Override
        public void onError(AsyncEvent event) {
            decision.release(Outcome.DROPPED);
        }

        @Override
        public void onStartAsync(AsyncEvent event) {
            event.getAsyncContext().addListener(this); // a second asynchronous cycle forgets listeners
        }
    }
}
