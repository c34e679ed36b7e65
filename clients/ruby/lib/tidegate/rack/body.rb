# frozen_string_literal: true

# Response bodies that release a lease when the server has sent or abandoned them.
module Tidegate
  module Rack
    # Releases a lease with the outcome of its response. Also the finalizer of a body that was never closed.
    class Release
      def initialize(decision, outcome)
        @decision = decision
        @outcome = outcome
        @finished = false
      end

      # Returns the body and headers to send: the application's own body if the server reports the end, else a wrapped
      # one.
      def until_end(env, status, fields, body)
        finished = env["rack.response_finished"]
        return [release_by_server(finished, body), fields] if finished.respond_to?(:<<)

        # A server cannot report the end of a hijacked connection, and sends no body for a HEAD.
        hijacked = env["rack.hijack_io"] || status.to_i < 100
        empty = EMPTY.include?(status.to_i)
        @finished = hijacked || empty || env["REQUEST_METHOD"] == "HEAD" ||
                    (fields.respond_to?(:key?) && fields.key?("rack.hijack"))
        return [wrap(body), empty ? fields : with_length(fields, body)] unless hijacked

        call
        [body, fields]
      end

      def finished = @finished = true

      # Releases the lease; a second call does nothing.
      def call(_id = nil) = @decision.release(@finished ? @outcome : "dropped")

      private

      # Sets Content-Length for an Array of one chunk: servers would send the wrapped body in chunks.
      def with_length(fields, body)
        return fields unless body.instance_of?(Array) && body.size == 1
        return fields if Rack.copied(fields).each_key.any? { |name| FRAMED.include?(name.to_s.downcase) }

        Rack.copied(fields).tap { |all| all["content-length"] = body[0].bytesize.to_s }
      end

      def release_by_server(finished, body)
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

    # Wraps a body (a file, an Array, a streaming body), keeps its methods, and releases the lease at its end.
    class Body
      def initialize(body, release)
        @body = body
        @release = release
        @closed = false
      end

      def close
        return if @closed

        @closed = true
        begin
          @body.close if @body.respond_to?(:close)
        ensure
          @release.call
        end
      end

      def respond_to_missing?(name, all = false) = name != :to_str && @body.respond_to?(name, all)

      def method_missing(name, *given, **more, &block)
        return super if name == :to_str || !@body.respond_to?(name)

        begin
          value = @body.__send__(name, *given, **more, &block)
          # Servers do not report how much of a file they sent; a streaming body has ended when `call` returns.
          @release.finished if ENDS.include?(name)
          value
        ensure
          close if name == :to_ary # the server uses the Array instead of this body
        end
      end

      ENDS = %i[to_path to_ary call].freeze
      private_constant :ENDS
    end

    # A body with chunks.
    class EachBody < Body
      def each(&block)
        return enum_for(:each) unless block

        @body.each(&block)
        @release.finished
      end
    end
  end
end
