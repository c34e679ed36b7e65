# frozen_string_literal: true

# Options of a middleware, evaluated for one request or job.
module Tidegate
  DEFAULTS = { cost: 1, on_failure: "allow", max_wait: 1 }.freeze # of options whose function raises; else nil
  private_constant :DEFAULTS

  # Returns a Hash of the values of `options`, calling functions, also those in a Hash, with `subject`; the default of a
  # function that raises, or that returns no values by name for `attributes`. nil if `subject` is exempt.
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
    return value unless value.respond_to?(:call)

    begin # around the function alone: elsewhere an exception of another thread must pass
      result = value.call(subject)
      name == :attributes ? mapping(result) : result
    rescue StandardError => e
      client.callback_failed(name, e)
      DEFAULTS[name]
    end
  end

  # Returns the result of the function `attributes` as a Hash; raises if it holds no values by name.
  def self.mapping(result)
    return {} if result.nil?
    raise WrongResult, "#{result.class}, not values by name" unless result.respond_to?(:each_pair)

    result.each_pair.to_h
  end
  private_class_method :value_of, :mapping
end
