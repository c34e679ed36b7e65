# frozen_string_literal: true

# Limits a Rack application, 2.2 or 3: Rails, Sinatra, Hanami, Roda or plain. Requires nothing of Rack.
#
#     use Tidegate::Rack::Middleware, domain: "api", user: ->(env) { env["app.user"] }
#
# The attributes are `method`, `path`, `route`, `ip`, `user`, `user_agent` and those of the application, in this order.
# Answers refused requests; all others reach the application, also when the daemon fails.

require "json"
require_relative "../tidegate"
require_relative "evaluate"
require_relative "rack/caller"
require_relative "rack/body"
require_relative "rack/rails_route"

module Tidegate
  # The middleware for Rack, so for Rails.
  module Rack
    # Checks every request before `app` runs, and adds limit headers to every response but redirects. Functions get env;
    # if one raises, the request is checked without its value, and the client logs it once.
    #
    # `client`: default: the program's, `Tidegate.client`. `user`: function to the caller's name or nil. `route`: true:
    # the attribute `route` is the pattern that Rails will match; or a function to that of another router. `attributes`:
    # further attributes: a function, or a Hash from names to functions or header names. `descriptors`: function to an
    # Array of Hashes, further descriptors. `cost`, `priority`: a value or a function. `exempt`: function; true: no
    # check. `outcome`: function from the status to ok, error or dropped. `on_refused`: gets env and the decision;
    # returns a Rack response, an application, or nil for the default (application/problem+json); limit headers are
    # added. `on_failure`: "allow" or "refuse" (503) when the daemon does not answer; also a function, or a list of
    # [path, value], the path exact, ending in *, or a Regexp.
    # `trusted_proxies`: networks of proxies ("10.0.0.0/8") whose X-Forwarded-For and X-Request-Start count (with any
    # network, also the peer of a Unix socket), or the number of proxies. `instrument`: called with the decision and the
    # seconds it took. `headers`: draft, legacy, both or none. `fallback`: replaces the client's.
    # Attributes must come from trusted sources; never take the priority from a caller's header.
    #
    # The decision is in `env["tidegate.decision"]`.
    class Middleware
      def initialize(app, client: nil, domain: "web", user: nil, attributes: nil, descriptors: nil, cost: 1,
                     priority: nil, exempt: nil, outcome: nil, on_refused: nil, on_failure: "allow",
                     trusted_proxies: nil, instrument: nil, headers: "both", fallback: nil, route: nil)
        Wire.check_name(domain, "domain")
        Wire.check_cost(cost)
        @fallback = Fallback.from(fallback)
        @app, @client, @domain = app, client, domain
        @outcome, @on_refused, @instrument = outcome, on_refused, instrument
        route = Rack.method(:rails_route) if route == true
        @given = { exempt: exempt, user: user, route: route, attributes: attributes_of(attributes),
                   descriptors: descriptors, cost: cost, priority: priority,
                   on_failure: on_failure_of(on_failure) }.freeze
        @left_out = LEFT_OUT.fetch(headers.to_s) do
          raise ArgumentError, "headers is draft, legacy, both or none, not #{headers.inspect[0, 99]}"
        end
        @caller = Caller.new(trusted_proxies)
        functions(exempt: exempt, user: user, route: route, descriptors: descriptors, outcome: outcome,
                  on_refused: on_refused, instrument: instrument)
        functions(attributes: attributes) unless attributes.is_a?(Hash)
      end

      def call(env)
        held = []
        client = @client || Tidegate.client
        decision = check(client, env, held)
        return @app.call(env) if decision.nil?

        env["tidegate.decision"] = decision
        answer = decision.allowed? ? work(client, env, decision) : refusal(client, env, decision)
      ensure
        held[0].release("dropped") if held[0] && answer.nil? # a second release does nothing
      end

      private

      # Returns the decision; nil if the request is exempt.
      def check(client, env, held)
        given = Tidegate.evaluate(client, @given, env)
        return nil if given.nil?

        arguments = arguments(client, env, given)
        arguments.is_a?(Hash) ? acquire(client, arguments, held) : arguments
      end

      # Returns the arguments of `acquire`; or, if the request cannot be read, its refusal.
      def arguments(client, env, given)
        Thread.handle_interrupt(NEVER) do # rescue no exceptions of other threads
          { attributes: descriptors(client, env, given), cost: given[:cost], priority: given[:priority],
            on_failure: given[:on_failure] || "allow", queued: @caller.queued(env) }
        rescue StandardError => e
          client.refuse(Fault.new("reading a request raised #{e.class}", "invalid"))
        end
      end

      def acquire(client, arguments, held)
        started = Process.clock_gettime(Process::CLOCK_MONOTONIC)
        arguments[:fallback] = @fallback if @fallback
        decision = client.acquire(@domain, arguments.delete(:attributes), held: held, **arguments)
        took = Process.clock_gettime(Process::CLOCK_MONOTONIC) - started
        safely(client, "instrument", "the decision stays") { @instrument.call(decision, took) } if @instrument
        decision
      rescue InvalidCost, InvalidAction => e # returned by the function `cost` or `on_failure`
        client.refuse(e)
      end

      def descriptors(client, env, given)
        route = given[:route] || env["action_dispatch.route_uri_pattern"] || env["sinatra.route"]
        first = { "method" => env["REQUEST_METHOD"], "path" => Rack.path(env), "route" => route,
                  "ip" => @caller.address(env, client), "user" => given[:user], "user_agent" => env["HTTP_USER_AGENT"] }
        given[:attributes]&.each { |name, value| first[name.to_s] = value }
        given[:descriptors] ? [first, *given[:descriptors]] : first
      end

      def work(client, env, decision)
        left = "dropped"
        sleep(decision.wait) if decision.wait.positive?
        left = "error" # for a `throw`, as by Warden
        status, fields, body = @app.call(env)
        release = Release.new(decision, outcome(client, status.to_i)) if decision.lease
        limited = with_limits(status, fields, decision)
        body, limited = release.until_end(env, status, limited, body) if release
        left = nil
        [status, limited, body]
      rescue Exception
        left = "dropped"
        raise
      ensure
        decision.release(left) if left
      end

      # Returns the response to a refusal; the usual one if `on_refused` raises.
      def refusal(client, env, decision)
        answer = @on_refused&.call(env, decision)
        answer = answer.call(env) if answer.respond_to?(:call)
        status, fields, body = answer || usual(env, decision)
        [status, with_limits(status, fields, decision), body]
      rescue StandardError => e
        raise if answer.respond_to?(:call) # raised by the application that `on_refused` returned

        client.callback_failed("on_refused", e, "such refusals get the usual response")
        status, fields, body = usual(env, decision)
        [status, with_limits(status, fields, decision), body]
      end

      def usual(env, decision)
        body = Rack.problem(decision)
        fields = { "content-type" => "application/problem+json", "content-length" => body.bytesize.to_s,
                   "cache-control" => "no-store" }
        [decision.status, fields, env["REQUEST_METHOD"] == "HEAD" ? [] : [body]]
      end

      # Adds limit headers in lower case, as in Rack 3; never replaces the application's own.
      def with_limits(status, fields, decision)
        limits = decision.headers
        return fields if limits.empty? || status.to_i.between?(300, 399) # clients would delay following a redirect

        fields = Rack.copied(fields)
        own = fields.each_key.map { |name| name.to_s.downcase }
        limits.each do |name, value|
          lower = name.downcase
          fields[lower] = value unless lower.start_with?(*@left_out) || own.include?(lower)
        end
        fields
      end

      def outcome(client, status)
        usual = status < 400 ? "ok" : "error"
        (@outcome && safely(client, "outcome", "the status decides") { @outcome.call(status) }) || usual
      end

      # Logs, once, that a function which does not affect the check raised.
      def safely(client, name, consequence)
        yield
      rescue StandardError => e
        client.log("#{name} raised #{e.class}: #{consequence}", once: true)
      end

      # Raises ArgumentError for a value in place of a function, such as a `user` that all requests would share.
      def functions(**given)
        given.each do |name, value|
          next if value.nil? || value.respond_to?(:call)

          raise ArgumentError, "#{name} is a function, as in #{name}: ->(env) { ... }, not #{value.inspect}"
        end
      end

      def attributes_of(given)
        return given unless given.is_a?(Hash)

        given.each_key { |name| Wire.check_name(name, "attributes") }
        all = (BUILT_IN | given.keys.map(&:to_s)).size
        raise ArgumentError, "attributes: #{all} with those of every request, more than #{PAIRS_MAX}" if all > PAIRS_MAX

        given.transform_values do |value|
          next value if value.respond_to?(:call)

          key = value.to_s.upcase.tr("-", "_")
          key = "HTTP_#{key}" unless %w[CONTENT_TYPE CONTENT_LENGTH].include?(key)
          ->(env) { env[key] }
        end
      end

      def on_failure_of(given)
        return given if given.respond_to?(:call)

        list = given.respond_to?(:each) ? given.to_a : [["*", given]]
        list.each { |_, word| Wire.action(word) }
        return list[0][1].to_s unless given.respond_to?(:each)

        lambda do |env|
          path = Rack.path(env)
          list.find { |pattern, _| matches?(pattern, path) }&.last
        end
      end

      def matches?(pattern, path)
        return pattern.match?(path) if pattern.is_a?(Regexp)

        pattern.end_with?("*") ? path.start_with?(pattern.chomp("*")) : path == pattern
      end

      BUILT_IN = %w[method path route ip user user_agent].freeze
      # Prefixes of the headers that a style omits. Every refusal has Retry-After.
      LEFT_OUT = { "both" => [], "draft" => ["x-"], "legacy" => ["ratelimit"], "none" => %w[x- ratelimit] }.freeze
      private_constant :BUILT_IN, :LEFT_OUT
    end

    # Copies headers into a Hash; the application's own is not changed.
    def self.copied(fields)
      fields.is_a?(Hash) ? fields.dup : {}.tap { |all| fields.each { |name, value| all[name] = value } }
    end

    # Returns the body of a refusal, application/problem+json: RFC 9457, with the types of the draft. Its `retry_after`
    # is exact to the millisecond, unlike the header. tests/vectors/answers.json has its bytes.
    def self.problem(decision)
      kind, title = PROBLEMS.fetch(decision.status, [nil, "OK"])
      type = kind ? "https://iana.org/assignments/http-problem-types##{kind}" : "about:blank"
      type = "urn:tidegate:problem:blocked" if decision.blocked?
      answer = { "type" => type, "title" => title, "status" => decision.status, "detail" => decision.message }
      if decision.named? && decision.verdict == "limit"
        window = Decision.number(((decision.window || 0) * 1_000_000).round)
        answer.update("violated-policies" => [decision.rule], "limit" => decision.limit, "window" => window)
        answer.update("domain" => decision.domain, "digest" => decision.digest) if decision.digest
      end
      if !decision.allowed? && decision.retry_after
        answer["retry_after"] = Decision.number((decision.retry_after * 1_000_000).round)
      end
      answer["help"] = decision.help if decision.help
      JSON.generate(answer)
    end

    PROBLEMS = { 403 => [nil, "Forbidden"], 429 => ["quota-exceeded", "Too Many Requests"],
                 503 => ["temporary-reduced-capacity", "Service Unavailable"] }.freeze
    private_constant :PROBLEMS
  end
end
