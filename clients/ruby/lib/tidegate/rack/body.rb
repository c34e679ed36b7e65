# frozen_string_literal: true

# A lease that is held until the server has sent the answer or given up on it.
module Tidegate
  module Rack
    # What is known of the end. It is called when the body was dropped without being closed, too: a finalizer.
    class Held
      def initialize(decision, outcome)
        @decision = decision
        @outcome = outcome
        @finished = false
      end

      # The body and the fields to answer with: the application's own where the server tells of the end, else a body
      # that tells.
      def until_finished(env, status, fields, body)
        finished = env["rack.response_finished"]
        return [told_by(finished, body), fields] if finished.respond_to?(:<<)

        # A server that was hijacked knows of no end, and to a HEAD it sends no body.
        hijacked = env["rack.hijack_io"] || status.to_i < 100
        empty = EMPTY.include?(status.to_i)
        @finished = hijacked || empty || env["REQUEST_METHOD"] == "HEAD" ||
                    (fields.respond_to?(:key?) && fields.key?("rack.hijack"))
        return [wrap(body), empty ? fields : with_length(fields, body)] unless hijacked

        call
        [body, fields]
      end

      def finished = @finished = true

      # The second time nothing happens.
      def call(_id = nil) = @decision.release(@finished ? @outcome : "dropped")

      private

      # Servers count the one chunk of an Array, which the body that tells is not: else it would be sent in chunks.
      def with_length(fields, body)
        return fields unless body.instance_of?(Array) && body.size == 1
        return fields if Rack.copied(fields).each_key.any? { |name| FRAMED.include?(name.to_s.downcase) }

        Rack.copied(fields).tap { |all| all["content-length"] = body[0].bytesize.to_s }
      end

      def told_by(finished, body)
        finished << lambda do |_env, _status, _fields, error|
          @finished = error.nil?
          call
        end
        body
      end

      def wrap(body)
        wrapped = (body.respond_to?(:each) ? EachBody : Body).new(body, self)
        ObjectSpace.define_finalizer(wrapped, self)
        wrapped
      end

      EMPTY = [204, 304].freeze
      FRAMED = %w[content-length transfer-encoding].freeze
      private_constant :EMPTY, :FRAMED
    end

    # Whatever the body is (a file, an Array, what is called with a stream), this is it, and its end is the lease's.
    class Body
      def initialize(body, held)
        @body = body
        @held = held
        @closed = false
      end

      def close
        return if @closed

        @closed = true
        begin
          @body.close if @body.respond_to?(:close)
        ensure
          @held.call
        end
      end

      def respond_to_missing?(name, all = false) = name != :to_str && @body.respond_to?(name, all)

      def method_missing(name, *given, **more, &block)
        return super if name == :to_str || !@body.respond_to?(name)

        begin
          value = @body.__send__(name, *given, **more, &block)
          # Of a file nobody says how much was sent; what was called with a stream has ended.
          @held.finished if ENDS.include?(name)
          value
        ensure
          close if name == :to_ary # which takes the place of the body
        end
      end

      ENDS = %i[to_path to_ary call].freeze
      private_constant :ENDS
    end

    # What has chunks.
    class EachBody < Body
      def each(&block)
        return enum_for(:each) unless block

        @body.each(&block)
        @held.finished
      end
    end
  end
end
