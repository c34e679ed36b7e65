# frozen_string_literal: true

# Limits the jobs of Sidekiq 6 and 7. A limited job returns to the schedule without using up a retry.
#
#     Sidekiq.configure_server do |config|
#       config.server_middleware do |chain|
#         chain.add Tidegate::Sidekiq::Middleware, domain: "jobs", attributes: ->(job) { { org: job["args"].first } }
#       end
#     end

require_relative "jobs"

module Tidegate
  # The middleware for servers of Sidekiq.
  module Sidekiq
    # The options are those of `Jobs::Limit`; functions get the job's Hash. Attributes: `job` (its class), `queue` and
    # those of `attributes`.
    class Middleware
      def initialize(options = {})
        @limit = Jobs::Limit.new({ domain: "jobs" }.merge(options))
      end

      def call(_worker, job, queue, &work)
        back = ->(delay) { schedule(job, delay) }
        @limit.call(job, { "job" => job["wrapped"] || job["class"], "queue" => queue }, back, &work)
      end

      private

      # Writes the job to Redis without Sidekiq's client, whose middlewares for unique jobs would drop it. If this
      # raises, so does the job, and Sidekiq retries it.
      def schedule(job, delay)
        at = Process.clock_gettime(Process::CLOCK_REALTIME) + delay
        ::Sidekiq.redis { |redis| redis.zadd("schedule", at.to_s, ::Sidekiq.dump_json(job)) }
        nil
      end
    end
  end
end
