# frozen_string_literal: true

# What the options of a middleware say of one request or job.
module Tidegate
  # A Hash of the values of `options`, of which some are functions of `subject`. nil if it is exempt; the decision for
  # such requests if a function raises.
  def self.evaluate(client, options, subject)
    options.each_with_object({}) do |(name, value), values|
      if value.respond_to?(:call) # else there is nothing of the application's to rescue
        begin
          value = value.call(subject)
        rescue StandardError => e
          return client.callback_failed(name, e)
        end
      end
      return nil if name == :exempt && value

      values[name] = value
    end
  end
end
