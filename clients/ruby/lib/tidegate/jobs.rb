# frozen_string_literal: true

# What a limited job goes through, whichever library runs it: the base of sidekiq.rb and active_job.rb.
require_relative "../tidegate"
require_relative "evaluate"

module Tidegate
  module Jobs
    # `client`: else the program's. `attributes`: a function of the job to more attributes, besides `job` and `queue`.
    # `cost`, `priority`: a value or a function of the job. `exempt`: a function, true for what is not judged. Where a
    # function raises, the job is done, and a line is logged once. `on_failure`: allow, or refuse when the daemon does
    # not answer: then the job goes back too. `max_wait`: a WAIT up to so many seconds is slept off here. `fallback`: as
    # of `Client`, in place of the client's.
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
      end

      # Does the work of the block; or, if it may not start now, hands the seconds until it should be tried again to
      # `back`. What can never pass raises Denied, so that it is seen and, by the library's own retries, not lost.
      def call(job, known, back)
        held = []
        left = "dropped"
        decision = judge(job, known, held)
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

      # The decision; nil: exempt.
      def judge(job, known, held)
        client = @client || Tidegate.client
        given = Tidegate.evaluate(client, @given, job)
        return given unless given.is_a?(Hash)

        attributes = known.merge((given[:attributes] || {}).to_h.transform_keys(&:to_s))
        said = given.slice(:cost, :priority, :on_failure, :max_wait)
        said[:fallback] = @fallback if @fallback
        client.acquire(@domain, attributes, held: held, **said)
      end

      # With up to half as much again, so that what was refused together does not come back together.
      def refused(decision, back)
        again = decision.retry_after
        raise Denied, decision if again.nil? || decision.reason == "invalid"

        back.call(again + (rand * 0.5 * [again, 1.0].max))
      end
    end
  end
end
