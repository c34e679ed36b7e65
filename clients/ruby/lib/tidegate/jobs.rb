# frozen_string_literal: true

# The common part of sidekiq.rb and active_job.rb.
require_relative "../tidegate"
require_relative "evaluate"

module Tidegate
  # @private
  module Jobs
    # The limit of a class of jobs. `client`: default: the program's. `attributes`: a function from the job to
    # attributes besides `job` and `queue`. `cost`, `priority`: a value or a function. `exempt`: a function; true: no
    # check. A job whose function raises is checked without its value, and the client logs it once. `on_failure`: allow,
    # or refuse when the daemon does not answer: the job is queued again. `max_wait`: longest WAIT to sleep, in seconds.
    # `fallback`: replaces the client's.
    class Limit
      WORDS = %i[domain client fallback attributes cost priority exempt on_failure max_wait].freeze

      def initialize(options)
        unknown = options.keys - WORDS
        raise ArgumentError, "unknown: #{unknown.join(', ')}" unless unknown.empty?

        @domain, @client = options.values_at(:domain, :client)
        @fallback = Fallback.from(options[:fallback])
        @given = { cost: 1, on_failure: "allow", max_wait: 1 }.merge(options.slice(*WORDS[3..]))
        Wire.check_name(@domain, "domain")
        Wire.check_cost(@given[:cost])
        Wire.action(@given[:on_failure]) unless @given[:on_failure].respond_to?(:call)
      end

      # Runs the block; or, if refused, calls `back` with the seconds until a retry. Raises Denied for a job that can
      # never pass, which the library's own retries then report and keep.
      def call(job, known, back)
        held = []
        left = "dropped"
        decision = check(job, known, held)
        return yield if decision.nil?
        return refused(decision, back) unless decision.allowed?

        sleep(decision.wait) if decision.wait.positive?
        value = yield
        left = "ok"
        value
      ensure
        held[0]&.release(left)
      end

      private

      # Returns the decision; nil if the job is exempt.
      def check(job, known, held)
        client = @client || Tidegate.client
        given = Tidegate.evaluate(client, @given, job)
        return nil if given.nil?

        attributes = known.merge((given[:attributes] || {}).to_h.transform_keys(&:to_s))
        arguments = given.slice(:cost, :priority, :on_failure, :max_wait)
        arguments[:fallback] = @fallback if @fallback
        client.acquire(@domain, attributes, held: held, **arguments)
      end

      # Adds up to half of the delay, so that jobs refused together do not return together.
      def refused(decision, back)
        again = decision.retry_after
        raise Denied, decision if again.nil? || decision.reason == "invalid"

        back.call(again + (rand * 0.5 * [again, 1.0].max))
      end
    end
  end
end
