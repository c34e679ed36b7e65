# frozen_string_literal: true

# Options of a middleware, evaluated for one request or job.
module Tidegate
  DEFAULTS = { cost: 1, on_failure: "allow", max_wait: 1 }.freeze # of options whose function raises; else nil
  private_constant :DEFAULTS

  # Returns a Hash of the values of `options`, calling functions, also those in a Hash, with `subject`; the default of a
  # function that raises. nil if `subject` is exempt.
  def self.evaluate(client, options, subject)
    options.each_with_object({}) do |(name, value), values|
      values[name] =
        if value.is_a?(Hash)
          value.to_h { |key, one| [key, value_of(client, "#{name}[:#{key}]", one, subject)] }
        else
          value_of(client, name, value, subject)
        end
      return nil if name == :exempt && values[name]
    end
  end

  def self.value_of(client, name, value, subject)
    value.respond_to?(:call) ? value.call(subject) : value
  rescue StandardError => e
    client.callback_failed(name, e)
    DEFAULTS[name]
  end
  private_class_method :value_of
end
