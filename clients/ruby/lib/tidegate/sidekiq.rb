# frozen_string_literal: true

# Limits the jobs of Sidekiq 6 and 7. A limited job goes back to the schedule as it is: no attempt of its retries is
# burnt, nothing is lost.
#
#     Sidekiq.configure_server do |config|
#       config.server_middleware do |chain|
#         chain.add Tidegate::Sidekiq::Middleware, domain: "jobs", attributes: ->(job) { { org: job["args"].first } }
#       end
#     end

require_relative "jobs"

module Tidegate
  module Sidekiq
    # The options are those of `Jobs::Limit`; functions get the job's Hash. The daemon gets `job`, its class, `queue`
    # and what `attributes` adds.
    class Middleware
      def initialize(options = {})
        @limit = Jobs::Limit.new({ domain: "jobs" }.merge(options))
      end

      def call(_worker, job, queue, &work)
        back = ->(delay) { schedule(job, delay) }
        @limit.call(job, { "job" => job["wrapped"] || job["class"], "queue" => queue }, back, &work)
      end

      private

      # Beside Sidekiq's own client, whose middlewares have seen this job: one for unique jobs would drop it. If this
      # raises, so does the job, and Sidekiq's retries have it.
      def schedule(job, delay)
        at = Process.clock_gettime(Process::CLOCK_REALTIME) + delay
        ::Sidekiq.redis { |redis| redis.zadd("schedule", at.to_s, ::Sidekiq.dump_json(job)) }
        nil
      end
    end
  end
end
