# frozen_string_literal: true

# Publishes each decision as the event `decision.tidegate` of ActiveSupport::Notifications.
#
#     Tidegate.configure { |settings| settings.on_decision = Tidegate::Notifications }
#
#     ActiveSupport::Notifications.subscribe("decision.tidegate") do |event|
#       StatsD.increment("decisions", tags: event.payload.slice(:verdict, :rule, :reason))
#     end
#
# The payload has `decision`, `verdict`, `rule`, `reason` and `seconds`, which the decision took. Requires
# ActiveSupport at the first decision.
require_relative "../tidegate"

module Tidegate
  # An `on_decision` for ActiveSupport.
  module Notifications
    EVENT = "decision.tidegate"

    # @param decision [Decision]
    # @param seconds [Float]
    def self.call(decision, seconds)
      require "active_support/notifications" unless defined?(ActiveSupport::Notifications)
      return unless ActiveSupport::Notifications.notifier.listening?(EVENT)

      payload = { decision: decision, verdict: decision.verdict, rule: decision.rule, reason: decision.reason,
                  seconds: seconds }
      ActiveSupport::Notifications.instrument(EVENT, payload)
    end
  end
end
