# frozen_string_literal: true

# Options of a middleware, evaluated for one request or job.
module Tidegate
  # Returns a Hash of the values of `options`, calling functions with `subject`; nil if it is exempt; an allowing
  # decision if a function raises.
  def self.evaluate(client, options, subject)
    options.each_with_object({}) do |(name, value), values|
      if value.respond_to?(:call)
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
