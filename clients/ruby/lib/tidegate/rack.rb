# frozen_string_literal: true

# Limits a Rack application, 2.2 or 3: Rails, Sinatra, Hanami, Roda or plain. Requires nothing of Rack.
#
#     use Tidegate::Rack::Middleware, domain: "api", user: ->(env) { env["app.user"] }
#
# The daemon gets `method`, `path`, `route`, `ip`, `user`, `user_agent` and what the application adds, in this order.
# What may not start is answered here; everything else reaches the application, also when the daemon or a function given
# here fails.

require "json"
require_relative "../tidegate"
require_relative "evaluate"
require_relative "rack/caller"
require_relative "rack/held"

module Tidegate
  module Rack
    # Judges every request before `app` sees it, and adds limit headers to every answer but redirects. What is a
    # function below gets env; where it raises, the request passes, and a line is logged once.
    #
    # `client`: else the program's, `Tidegate.client`. `user`: the user's name, or nil. `attributes`: more of them, as a
    # function, or as a Hash of names to functions and names of headers. `descriptors`: a function to an Array of
    # Hashes, further descriptors. `cost`, `priority`: a value or a function. `exempt`: true for what is not judged.
    # `outcome`: a function of the answer's status to ok, error or dropped. `on_refused`, with env and the decision: the
    # answer to a refusal as Rack has it, or an application, or nil for the usual one (application/problem+json); limit
    # headers are added. `on_failure`: "allow" or "refuse" (503) when the daemon does not answer, or a function, or a
    # list of [path, word], where a path is exact, ends in *, or is a Regexp.
    # `trusted_proxies`: whose X-Forwarded-For and X-Request-Start are believed: networks ("10.0.0.0/8"; the peer on a
    # Unix socket is one of them), or how many proxies stand in front. `instrument`: called with the decision and the
    # seconds it took. `headers`: draft, legacy, both or none. `fallback`: as of `Client`, in place of the client's.
    # Attributes must come from what the application knows, the priority never from an end user's header.
    #
    # The decision is in `env["tidegate.decision"]`.
    class Middleware
      def initialize(app, client: nil, domain: "web", user: nil, attributes: nil, descriptors: nil, cost: 1,
                     priority: nil, exempt: nil, outcome: nil, on_refused: nil, on_failure: "allow",
                     trusted_proxies: nil, instrument: nil, headers: "both", fallback: nil)
        Wire.check_name(domain, "domain")
        Wire.check_cost(cost)
        @fallback = Fallback.from(fallback)
        @app, @client, @domain = app, client, domain
        @outcome, @on_refused, @instrument = outcome, on_refused, instrument
        @given = { exempt: exempt, user: user, attributes: attributes_of(attributes), descriptors: descriptors,
                   cost: cost, priority: priority, on_failure: on_failure_of(on_failure) }.freeze
        @left_out = LEFT_OUT.fetch(headers.to_s) { raise ArgumentError, "headers are draft, legacy, both or none" }
        @caller = Caller.new(trusted_proxies)
        functions(exempt: exempt, user: user, descriptors: descriptors, outcome: outcome, on_refused: on_refused,
                  instrument: instrument)
        functions(attributes: attributes) unless attributes.is_a?(Hash)
      end

      def call(env)
        held = []
        client = @client || Tidegate.client
        decision = judge(client, env, held)
        return @app.call(env) if decision.nil?

        env["tidegate.decision"] = decision
        answer = refusal(client, env, decision) unless decision.allowed?
        answer ||= work(client, env, env["tidegate.decision"])
      ensure
        held[0].release("dropped") if held[0] && answer.nil? # the second time nothing happens
      end

      private

      # The decision; nil: exempt.
      def judge(client, env, held)
        given = Tidegate.evaluate(client, @given, env)
        return given unless given.is_a?(Hash)

        said = said(client, env, given)
        said.is_a?(Hash) ? ask(client, said, held) : said
      end

      # The arguments of `acquire`; or, if the request cannot be read, its refusal.
      def said(client, env, given)
        Thread.handle_interrupt(NEVER) do # so that only its own exceptions are rescued
          { attributes: descriptors(client, env, given), cost: given[:cost], priority: given[:priority],
            on_failure: given[:on_failure] || "allow", queued: @caller.queued(env) }
        rescue StandardError => e
          client.refuse(Fault.new("reading a request raised #{e.class}", "invalid"))
        end
      end

      def ask(client, said, held)
        started = Process.clock_gettime(Process::CLOCK_MONOTONIC)
        said[:fallback] = @fallback if @fallback
        decision = client.acquire(@domain, said.delete(:attributes), held: held, **said)
        took = Process.clock_gettime(Process::CLOCK_MONOTONIC) - started
        safely(client, "instrument") { @instrument.call(decision, took) } if @instrument
        decision
      rescue InvalidCost => e # of a function: not an error of the request
        client.refuse(e)
      end

      def descriptors(client, env, given)
        route = env["action_dispatch.route_uri_pattern"] || env["sinatra.route"]
        first = { "method" => env["REQUEST_METHOD"], "path" => Rack.path(env), "route" => route,
                  "ip" => @caller.address(env, client), "user" => given[:user], "user_agent" => env["HTTP_USER_AGENT"] }
        given[:attributes]&.each { |name, value| first[name.to_s] = value }
        given[:descriptors] ? [first, *given[:descriptors]] : first
      end

      def work(client, env, decision)
        left = "dropped"
        sleep(decision.wait) if decision.wait.positive?
        left = "error" # should something be thrown over this, as Warden does
        status, fields, body = @app.call(env)
        held = Held.new(decision, outcome(client, status.to_i)) if decision.lease
        limited = with_limits(status, fields, decision)
        body, limited = held.until_finished(env, status, limited, body) if held
        left = nil
        [status, limited, body]
      rescue Exception
        left = "dropped"
        raise
      ensure
        decision.release(left) if left
      end

      # nil: the request passes.
      def refusal(client, env, decision)
        answer = @on_refused&.call(env, decision)
        answer = answer.call(env) if answer.respond_to?(:call)
        status, fields, body = answer || usual(env, decision)
        [status, with_limits(status, fields, decision), body]
      rescue StandardError => e
        raise if answer.respond_to?(:call) # an application's errors are its own

        env["tidegate.decision"] = client.callback_failed("on_refused", e)
        nil
      end

      def usual(env, decision)
        body = Rack.problem(decision)
        fields = { "content-type" => "application/problem+json", "content-length" => body.bytesize.to_s,
                   "cache-control" => "no-store" }
        [decision.status, fields, env["REQUEST_METHOD"] == "HEAD" ? [] : [body]]
      end

      # In names of lower case, which Rack 3 asks for; never over the application's own.
      def with_limits(status, fields, decision)
        limits = decision.headers
        return fields if limits.empty? || status.to_i.between?(300, 399) # a redirect would be followed late for them

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
        (@outcome && safely(client, "outcome") { @outcome.call(status) }) || usual
      end

      def safely(client, name)
        yield
      rescue StandardError => e
        client.callback_failed(name, e)
        nil
      end

      # A word in place of a function would be the user of everybody, or exempt everything.
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

        readers = given.transform_values do |value|
          next value if value.respond_to?(:call)

          key = value.to_s.upcase.tr("-", "_")
          key = "HTTP_#{key}" unless %w[CONTENT_TYPE CONTENT_LENGTH].include?(key)
          ->(env) { env[key] }
        end
        ->(env) { readers.transform_values { |reader| reader.call(env) } }
      end

      def on_failure_of(given)
        return given if given.respond_to?(:call)

        list = given.respond_to?(:each) ? given.to_a : [["*", given]]
        list.each { |_, word| raise ArgumentError, "on_failure is allow or refuse" unless WORDS.include?(word.to_s) }
        return list[0][1].to_s unless given.respond_to?(:each)

        lambda do |env|
          path = Rack.path(env)
          list.find { |pattern, _| matches?(pattern, path) }&.last.to_s
        end
      end

      def matches?(pattern, path)
        return pattern.match?(path) if pattern.is_a?(Regexp)

        pattern.end_with?("*") ? path.start_with?(pattern.chomp("*")) : path == pattern
      end

      WORDS, BUILT_IN = %w[allow refuse].freeze, %w[method path route ip user user_agent].freeze
      # How headers begin that a style has not; Retry-After every refusal has.
      LEFT_OUT = { "both" => [], "draft" => ["x-"], "legacy" => ["ratelimit"], "none" => %w[x- ratelimit] }.freeze
      private_constant :WORDS, :BUILT_IN, :LEFT_OUT
    end

    # An application's own Hash is left alone.
    def self.copied(fields)
      fields.is_a?(Hash) ? fields.dup : {}.tap { |all| fields.each { |name, value| all[name] = value } }
    end

    # The body of a refusal, application/problem+json: RFC 9457, with the types of the draft. Its `retry_after` is exact
    # to the millisecond, unlike the header. tests/vectors/answers.json has its bytes.
    def self.problem(decision)
      kind, title = PROBLEMS.fetch(decision.status, [nil, "OK"])
      type = kind ? "https://iana.org/assignments/http-problem-types##{kind}" : "about:blank"
      answer = { "type" => type, "title" => title, "status" => decision.status, "detail" => decision.message }
      if decision.named? && decision.verdict == "limit"
        window = Decision.number(((decision.window || 0) * 1_000_000).round)
        answer.update("violated-policies" => [decision.rule], "limit" => decision.limit, "window" => window)
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
