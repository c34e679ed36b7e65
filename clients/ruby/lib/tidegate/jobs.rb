# frozen_string_literal: true

# What a limited job goes through, whichever library runs it: the base of sidekiq.rb and active_job.rb.
require_relative "../tidegate"

module Tidegate
  module Jobs
    # `client`: else the program's. `attributes`: a function of the job to more attributes, besides `job` and `queue`.
    # `cost`, `priority`: a value or a function of the job. `exempt`: a function, true for what is not judged. Where a
    # function raises, the job is done, and a line is logged once. `on_failure`: allow, or refuse when the daemon does
    # not answer: then the job goes back too. `max_wait`: a WAIT up to so many seconds is slept off here.
    class Limit
      WORDS = %i[domain client attributes cost priority exempt on_failure max_wait].freeze

      def initialize(options)
        unknown = options.keys - WORDS
        raise ArgumentError, "unknown: #{unknown.join(', ')}" unless unknown.empty?

        @domain, @client = options.values_at(:domain, :client)
        @given = { cost: 1, on_failure: "allow", max_wait: 1 }.merge(options.slice(*WORDS[2..]))
      end

      # Does the work of the block; or, if it may not start now, hands the seconds until it should be tried again to
      # `back`. What can never pass raises Denied, so that it is seen and, by the library's own retries, not lost.
      def call(job, known, back)
        decision = judge(job, known)
        return yield if decision.nil?
        return refused(decision, back) unless decision.allowed?

        left = "dropped"
        begin
          sleep(decision.wait) if decision.wait.positive?
          value = yield
          left = "ok"
          value
        ensure
          decision.release(left)
        end
      end

      private

      # nil: exempt.
      def judge(job, known)
        client = @client || Tidegate.client
        given = {}
        @given.each do |name, value|
          given[name] = value.respond_to?(:call) ? value.call(job) : value
          return nil if name == :exempt && given[name]
        rescue StandardError => e
          return client.callback_failed(name, e)
        end
        attributes = known.merge((given[:attributes] || {}).to_h.transform_keys(&:to_s))
        client.acquire(@domain, attributes, **given.slice(:cost, :priority, :on_failure, :max_wait))
      end

      # With up to half as much again, so that what was refused together does not come back together.
      def refused(decision, back)
        again = decision.retry_after
        raise Denied, decision if again.nil?

        back.call(again + (rand * 0.5 * [again, 1.0].max))
      end
    end
  end
end
