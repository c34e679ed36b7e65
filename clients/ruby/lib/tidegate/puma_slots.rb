# frozen_string_literal: true

# How many requests at once the Puma worker works on that this process is. Requires nothing of Puma's.
require "weakref"

module Tidegate
  module PumaSlots
    TOLD = {} # of each pool the process and the client; rubocop:disable Style/MutableConstant

    # The threads of the server that handles the request of this thread; 0 (unknown) in its master, in children of a
    # worker's own, outside of a request, and anywhere else. Told to one client of a pool: another of the same process
    # has no slots of its own.
    def self.of(client, pool)
      found = threads
      pid, to = TOLD[pool]
      return 0 if found.zero? || (pid == Process.pid && to.weakref_alive? && !to.__getobj__.equal?(client))

      TOLD[pool] = [Process.pid, WeakRef.new(client)]
      found
    rescue StandardError
      0
    end

    def self.threads
      return 0 unless defined?(::Puma::Server)

      server = ::Puma::Server.current
      # In a child that a worker forked the threads of the server are dead, this one excepted.
      alive = server&.instance_variable_get(:@thread)&.alive?
      alive ? server.max_threads : 0
    end
    private_class_method :threads
  end
end
