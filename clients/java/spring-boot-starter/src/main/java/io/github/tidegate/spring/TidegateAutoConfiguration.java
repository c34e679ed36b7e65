package io.github.tidegate.spring;

import io.github.tidegate.DecisionListener;
import io.github.tidegate.Fallback;
import io.github.tidegate.GuardOptions;
import io.github.tidegate.TidegateClient;
import io.github.tidegate.servlet.TidegateFilter;
import jakarta.servlet.DispatcherType;
import jakarta.servlet.http.HttpServletRequest;
import org.springframework.beans.factory.ObjectProvider;
import org.springframework.boot.autoconfigure.AutoConfiguration;
import org.springframework.boot.autoconfigure.condition.ConditionalOnClass;
import org.springframework.boot.autoconfigure.condition.ConditionalOnMissingBean;
import org.springframework.boot.autoconfigure.condition.ConditionalOnProperty;
import org.springframework.boot.autoconfigure.condition.ConditionalOnWebApplication;
import org.springframework.boot.context.properties.EnableConfigurationProperties;
import org.springframework.boot.web.servlet.FilterRegistrationBean;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.util.function.SingletonSupplier;
import org.springframework.web.servlet.HandlerMapping;

/** Makes a client, and a filter if {@code tidegate.domain} is set. A bean of yours replaces either. */
@AutoConfiguration
@EnableConfigurationProperties(TidegateProperties.class)
public class TidegateAutoConfiguration {
    /** Changes the options of the filter: its user, its attributes. */
    @FunctionalInterface
    public interface Customizer {
        /** Changes the options. */
        void customize(GuardOptions<HttpServletRequest> options);
    }

    /** Makes the client; a bean of the type DecisionListener is its {@code onDecision}. */
    @Bean
    @ConditionalOnMissingBean
    public TidegateClient tidegateClient(TidegateProperties properties, ObjectProvider<DecisionListener> onDecision) {
        TidegateClient.Builder options = TidegateClient.builder().socket(properties.socket()).timeout(properties.timeout())
                .pool(properties.pool()).slots(properties.slots()).enabled(properties.enabled())
                .onDecision(onDecision.getIfAvailable());
        if (properties.fallback() != null) {
            options.fallback(Fallback.of(properties.fallback()));
        }
        return options.build();
    }

    /** The attribute {@code route} of the filter. */
    @Configuration(proxyBeanMethods = false)
    @ConditionalOnClass(HandlerMapping.class)
    @ConditionalOnProperty("tidegate.route")
    public static class Routes {
        /** Adds the option. */
        @Bean
        public Customizer tidegateRoute(ObjectProvider<HandlerMapping> mappings) {
            HandlerRoutes routes = new HandlerRoutes(SingletonSupplier.of(() -> mappings.orderedStream().toList()));
            return options -> options.route(routes::of);
        }
    }

    /** The filter of a servlet application. */
    @Configuration(proxyBeanMethods = false)
    @ConditionalOnWebApplication(type = ConditionalOnWebApplication.Type.SERVLET)
    @ConditionalOnProperty("tidegate.domain")
    public static class Filter {
        /** Makes the filter. */
        @Bean
        @ConditionalOnMissingBean(name = "tidegateFilter")
        public FilterRegistrationBean<TidegateFilter> tidegateFilter(TidegateClient client, TidegateProperties properties,
                ObjectProvider<Customizer> customizers) {
            GuardOptions<HttpServletRequest> options = new GuardOptions<HttpServletRequest>()
                    .onFailure(properties.onFailure()).headers(properties.headers())
                    .trustedProxies(properties.trustedProxies().toArray(String[]::new));
            customizers.orderedStream().forEach(one -> one.customize(options));
            var filter = new FilterRegistrationBean<>(new TidegateFilter(client, properties.domain(), options));
            filter.setDispatcherTypes(DispatcherType.REQUEST);
            filter.setOrder(properties.order());
            return filter;
        }
    }
}
