# frozen_string_literal: true

# Finds how many concurrent requests this process works on as a Puma worker. Does not require Puma.
require "weakref"

module Tidegate
  module PumaSlots
    CLAIMS = {} # pool: process id and client that has the slots; rubocop:disable Style/MutableConstant

    # Returns the threads of the server that handles this thread's request; 0 (unknown) in its master, in a worker's
    # children, outside of a request, and elsewhere. Only one client of a pool in a process gets the slots, so that they
    # count once.
    def self.of(client, pool)
      found = threads
      pid, owner = CLAIMS[pool]
      return 0 if found.zero? || (pid == Process.pid && owner.weakref_alive? && !owner.__getobj__.equal?(client))

      CLAIMS[pool] = [Process.pid, WeakRef.new(client)]
      found
    rescue StandardError
      0
    end

    def self.threads
      return 0 unless defined?(::Puma::Server)

      server = ::Puma::Server.current
      # In a child that a worker forked, the server's own thread is dead.
      alive = server&.instance_variable_get(:@thread)&.alive?
      alive ? server.max_threads : 0
    end
    private_class_method :threads
  end
end
