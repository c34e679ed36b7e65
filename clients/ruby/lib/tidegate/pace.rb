# frozen_string_literal: true

# Paces calls to a limited service: slows down before the limit, and retries refusals with jitter and within a budget.
#
#     pace = Tidegate::Pace.new
#     response = pace.call { http.get("/v1/charges") }
#
# It reads RateLimit and RateLimit-Policy, or X-Ratelimit-Limit and -Remaining, and Retry-After. Make one for each
# service and credential; safe in threads.

module Tidegate
  # `attempts`: of one call, including the first. `wait_max`: longest wait in seconds; if the service asks for more,
  # `call` returns its refusal. `budget`: retries earned by each call, in addition to ten initial ones, so that retries
  # do not amplify an overload. `slow_below`: below this share of a quota, calls are spread over its remaining time.
  class Pace
    RETRIES_MAX = 10.0
    REFUSED = [429, 503].freeze
    TEXT = /"(?:[^"\\]|\\.)*"/
    PARAMETER = /;\s*([a-z*][a-z0-9_.*-]*)=(#{TEXT}|[^;,"\s]+)/
    ITEM = /"((?:[^"\\]|\\.)*)"((?:\s*;\s*[a-z*][a-z0-9_.*-]*(?:=(?:#{TEXT}|[^;,"\s]+))?)*)/
    private_constant :TEXT, :PARAMETER, :ITEM

    def initialize(attempts: 4, base: 0.1, wait_max: 60.0, budget: 0.1, slow_below: 0.2)
      @attempts, @base, @wait_max, @budget, @slow_below = attempts, base, wait_max, budget, slow_below
      @lock = Mutex.new
      @tokens = RETRIES_MAX
      @from = 0.0 # when the next call may start
      @spacing = 0.0
    end

    # Waits if necessary, yields, and returns the last result of the block: a response with `status` or `code` and
    # `headers` or `[]`, or a Rack Array. Exceptions of the block pass.
    def call
      attempt = 0
      @lock.synchronize { @tokens = [@tokens + @budget, RETRIES_MAX].min }
      loop do
        await_start
        response = yield
        attempt += 1
        delay = retry_delay(response, attempt)
        return response if delay.nil?

        pause(delay)
      end
    end

    # Seconds until a call would start now.
    def delay = @lock.synchronize { [@from - now, 0.0].max }

    # Learns from a response obtained without `call`.
    def heard(response)
      limits = read(response)
      return if limits.nil?

      left, most, seconds = limits
      @lock.synchronize do
        @spacing = left.positive? && left <= most * @slow_below ? seconds / (left + 1) : 0.0
        @from = [@from, now + (left.positive? ? @spacing : seconds)].max
      end
    end

    # Parses a List of RFC 9651: names to their integer parameters. Skips invalid items.
    def self.items(text)
      text.to_s.scan(ITEM).to_h do |name, parameters|
        numbers = parameters.scan(PARAMETER).select { |_, value| value.match?(/\A\d{1,15}\z/) }
        [name, numbers.to_h.transform_values(&:to_i)]
      end
    end

    # Parses Retry-After: seconds, or a date.
    def self.seconds(text, now)
      text = text.to_s.strip
      return text.to_f if text.match?(/\A\d{1,9}\z/)

      require "time"
      text.empty? ? nil : [Time.httpdate(text) - now, 0.0].max
    rescue ArgumentError
      nil
    end

    private

    # Waits for the start of this call. Each thread reserves the next time, so that they do not start together.
    def await_start
      wait = @lock.synchronize do
        start = @from.clamp((time = now), time + @wait_max) # no response delays later calls for longer
        @from = start + @spacing
        start - time
      end
      pause(wait) if wait.positive?
    end

    # Returns seconds until a retry; nil: no retry.
    def retry_delay(response, attempt)
      heard(response)
      return nil unless REFUSED.include?(status(response)) && attempt < @attempts

      asked = Pace.seconds(field(response, "retry-after"), Time.now)
      wait = (asked || 0.0) + jitter([@base * (2**attempt), asked || 0.0].max)
      return nil if wait > @wait_max

      @lock.synchronize { @tokens >= 1 ? (@tokens -= 1) && wait : nil }
    end

    # Full jitter.
    def jitter(seconds) = rand * [seconds, @wait_max].min

    # Returns remaining, limit and seconds until the reset of the most used limit.
    def read(response)
      policies = Pace.items(field(response, "ratelimit-policy"))
      limits = Pace.items(field(response, "ratelimit")).filter_map do |name, item|
        policy = policies[name] || {}
        left = item["r"]
        [left, policy["q"] || left, item["t"] || policy["w"] || 1] if left
      end
      limits << older(response) if limits.empty?
      limits.compact.min_by { |remaining, quota, seconds| [remaining.fdiv([quota, 1].max), -seconds] }
    end

    def older(response)
      left, most = %w[x-ratelimit-remaining x-ratelimit-limit].map do |name|
        field(response, name).to_s[/\A\d{1,15}\z/]&.to_i
      end
      left && [left, most || left, Pace.seconds(field(response, "x-ratelimit-retry-after"), Time.now) || 1]
    end

    def status(response)
      return response[0].to_i if response.is_a?(Array)

      (response.respond_to?(:status) ? response.status : response.code).to_i
    end

    def field(response, name)
      headers = response.is_a?(Array) ? response[1] : response
      headers = response.headers if !response.is_a?(Array) && response.respond_to?(:headers)
      value = headers[name]
      value = headers.find { |key, _| key.to_s.casecmp?(name) }&.last if value.nil? && headers.is_a?(Hash)
      value.is_a?(Array) ? value.join(", ") : value
    end

    def now = Process.clock_gettime(Process::CLOCK_MONOTONIC)
    def pause(seconds) = sleep(seconds)
  end
end
