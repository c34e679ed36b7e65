# frozen_string_literal: true

# Limits jobs of Active Job. A limited job is enqueued again with a delay, without counting an execution.
#
#     class Export < ApplicationJob
#       include Tidegate::ActiveJob
#       limited "jobs", attributes: ->(job) { { org: job.arguments.first } }
#     end

require_relative "jobs"

module Tidegate
  # Include it into a class of jobs.
  module ActiveJob
    def self.included(base) = base.extend(Limited)

    # The class method of such jobs.
    module Limited
      # The options are those of `Jobs::Limit`; functions get the job. The attributes are `job` (its class), `queue` and
      # those of `attributes`.
      def limited(domain = "jobs", **options)
        limit = Jobs::Limit.new(options.merge(domain: domain))
        around_perform do |job, work|
          back = ->(delay) { ActiveJob.requeue(job, delay) }
          limit.call(job, { "job" => job.class.name, "queue" => job.queue_name }, back) { work.call }
        end
      end
    end

    # Enqueues the job again. Raises, as an attempt of the job, if it cannot (adapters without delay, callbacks that
    # abort).
    def self.requeue(job, delay)
      counted = job.executions
      job.executions -= 1
      return if scheduled?(job, delay)

      job.executions = counted
      raise "the limited job #{job.job_id} could not be enqueued again"
    end

    def self.scheduled?(job, delay)
      job.enqueue(wait: delay)
    rescue NotImplementedError
      false
    end
    private_class_method :scheduled?
  end
end
