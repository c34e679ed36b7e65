# frozen_string_literal: true

# tidegate: asks the daemon of this host whether a request may start.
#
#     decision = Tidegate::Client.new.hit("api", { user: user_id })
#
# No call raises because of the daemon or outlasts its deadline (20 ms); without an answer the decision is *allow*, or
# what `on_failure` and `fallback` say, and is marked (`degraded?`, `reason`). The client is this file with
# tidegate/protocol.rb and tidegate/connection.rb; copy the three.
%w[forwardable monitor].each { |library| require library }
require_relative "tidegate/protocol"
require_relative "tidegate/connection"

module Tidegate
  TIMEOUT, TIMEOUT_MAX, BACKLOG_WAIT = 0.020, 10, 0.001 # seconds
  IDLE_MAX, IDLE_KEPT, IDLE_SECONDS = 64, 2, 15 # connections; beyond the second number they are closed after the third
  ABANDONED_MAX, LOGGED_MAX = 512, 100

  # Safe in threads, fibers and over forks; opens nothing before the first request. `socket`: the path, else
  # TIDEGATE_SOCKET, else the usual places. `timeout`: seconds for a call. `slots`: how many requests this process works
  # on at once (0: as Puma says). `fallback`: a rate, or a Hash of rule names to rates, that limits in this process
  # while the daemon does not answer.
  class Client
    PAUSED = Fault.new("the breaker is open", "breaker", :own)
    private_constant :PAUSED

    def initialize(socket: nil, timeout: nil, pool: "default", slots: 0, enabled: true, logger: nil, fallback: nil)
      @timeout = timeout || ENV.fetch("TIDEGATE_TIMEOUT_MS", "")[/\A\d+([.]\d+)?\z/]&.to_f&.fdiv(1_000) || TIMEOUT
      fits = (1e-6..TIMEOUT_MAX).cover?(@timeout) && slots >= 0
      raise ArgumentError, "timeout is in seconds, above 0 and at most #{TIMEOUT_MAX}; slots are 0 or more" unless fits

      Wire.check_name(@pool = pool.to_s, "pool")
      @path, @slots, @logger, @logged = (socket || ENV.fetch("TIDEGATE_SOCKET", "")).to_s, slots, logger, {}
      @fallback = Fallback.from(fallback)
      @enabled = enabled && ["", "0"].include?(ENV.fetch("TIDEGATE_DISABLE", ""))
      @open = OPEN[object_id] = {}.compare_by_identity
      begin_anew
      ObjectSpace.define_finalizer(self, FORGOTTEN)
    end

    # May this request start? `acquire` is for work that ends with `release`, `hit` for what has no end; `peek` charges
    # nothing. Raises InvalidCost for a cost that is negative or no integer. `fallback`: in place of the client's.
    # `held`: an Array that gets a decision of the daemon before an exception of another thread can arrive.
    { acquire: ACQUIRE, hit: HIT, peek: PEEK }.each do |name, operation| # written out, which saves a Hash and a call
      class_eval <<~RUBY, __FILE__, __LINE__ + 1
        def #{name}(domain, given = nil, cost: 1, priority: nil, idem: nil, queued: nil, max_wait: nil, on_failure: "",
                    fallback: @fallback, held: nil)
          return Decision.from([0], "disabled") unless @enabled

          begin_anew if @pid != $$
          options, report = idem || queued || max_wait ? options(idem, queued, max_wait) : nil, nil
          out = Wire.judgement(#{operation}, domain, given, cost, priority, options)
          if !@report.empty? && out.bytesize < FRAME_MAX / 2 # where it cannot cost an attribute its text
            Thread.handle_interrupt(NEVER) { report = locked { @report.tap { @report = {} } } }
            out = Wire.judgement(#{operation}, domain, given, cost, priority, (options || {}).merge(report))
          end
          own = [] if held.nil? && (fallback || idem)
          answer = exchange(#{operation}, DECISION, out, held || own)
          if answer.instance_of?(Fault)
            return refuse(answer) if answer.refusal?

            return without(answer.reason, on_failure, fallback, #{operation}, domain, given, cost)
          end

          report = nil # the daemon has it
          fallback&.learn(domain, given, answer.rule)
          answer.idem = options["idem"] if idem
          own = nil
          answer
        rescue Fault => e
          refuse(e)
        ensure
          Thread.handle_interrupt(NEVER) { tell_later(report) } if report
          own[0].release("dropped") if own && own[0]
        end
      RUBY
    end

    # For a block: sleeps off a WAIT, releases at the end; raises Denied for a refused request.
    def limit(domain, attributes = nil, **more)
      held = []
      decision = acquire(domain, attributes, **more, held: held)
      raise Denied, decision unless decision.allowed?

      sleep(decision.wait) if decision.wait.positive?
      yield decision
    rescue Exception # passed on
      held[0]&.release("dropped")
      raise
    ensure
      held[0]&.release # the second time nothing happens
    end

    # After the fact: takes from every rate that matches, into debt. A negative amount refunds, and names a grant or
    # charge: `of` is its decision, lease or `idem`. False: nothing changed.
    def charge(domain, attributes = nil, amount = 1, idem: nil, of: nil)
      done?(CHARGE) do
        options = { "idem" => idem && Wire.idem(idem), "of" => of.nil? ? nil : refunded(of) }.compact
        Wire.judgement(CHARGE, domain, attributes, amount, nil, options.empty? ? nil : options)
      end
    end

    # Reports a load of this process as it measures it, from 0 to 1; the daemon forgets it after 3 s.
    def signal(name, value)
      return unless @enabled

      begin_anew if @pid != $$
      number = value.is_a?(Numeric) && value.real? && !(value.respond_to?(:nan?) && value.nan?)
      raise Fault.new("a signal is a number from 0 to 1, not a #{value.class}", "invalid") unless number

      out = +Wire::HEADS[SIGNAL] << Wire.name(@pool) << Wire.name(name)
      exchange(SIGNAL, nil, Wire.encode((value.clamp(0, 1) * 1_000).round, out)) && nil
    rescue Fault => e
      log_refusal(e)
    end

    # Whether the daemon answers; false, without asking, if the breaker is open or the client disabled.
    def check = done?(PING, &:itself)

    # Decisions without the daemon and refusals of the client, by reason; connections; whether the breaker is open.
    def stats = { missed: @missed.dup, refused: @refused.dup, connections: @open.size, breaker_open: @breaker.open? }
    # Closes idle connections; the client may be used again.
    def close = @idle.shift(IDLE_MAX).each { |connection| drop(connection) } && nil
    def inspect = "#<#{self.class} #{@path.empty? ? 'usual socket' : @path}>" # no session

    # The decision for a request that an application's function failed on; for middlewares.
    def callback_failed(what, error) # whose message may have a user's data
      log("#{what} raised #{error.class}: such requests are not limited", once: true) || without("callback")
    end

    # The decision for a request that cannot be asked; for middlewares.
    def refuse(error)
      reason = error.is_a?(Fault) ? error.reason : "invalid"
      locked { @refused[reason] += 1 }
      log_refusal(error) || Decision.from([2, *[nil] * 5, 1_000_000], reason)
    end

    # Logs a line about the limiter itself.
    def log(text, once: false)
      return if once && (@logged[text] || @logged.size >= LOGGED_MAX)

      @logged[text] = true if once
      Thread.handle_interrupt(StandardError => :never) do # so that only those of the logger are dropped
        (@logger || Kernel).warn("tidegate: #{text}")
      rescue StandardError
        nil
      end && nil
    end

    private

    # Gives this process its own session: after a fork no lock, count or socket of the parent is used.
    def begin_anew
      Tidegate.locked(ANEW) do
        next if @pid == Process.pid # another thread has done it

        @open.each_key(&:close).clear
        @lock, @idle, @session, @numbers, @info = Monitor.new, [], Random.urandom(16).b, 0, nil
        @missed, @refused, @report, @breaker = Hash.new(0), Hash.new(0), {}, Breaker.new
        @told, @pid = nil, Process.pid # the state of the daemon that was logged last; nil: none yet
      end
    end

    def locked(&block) = Tidegate.locked(@lock, &block)
    def now = Process.clock_gettime(Process::CLOCK_MONOTONIC)

    def options(idem, queued, wait)
      { "idem" => idem && Wire.idem(idem), "queued_us" => micro(queued), "max_wait_us" => micro(wait) }.compact
    end

    def micro(seconds)
      return if seconds.nil?

      number = Float(seconds, exception: false)
      raise Fault.new("a time is a number of seconds, not a #{seconds.class}", "invalid") unless number&.finite?

      (number.clamp(0, 1e12) * 1e6).round(3).ceil # 0.07 * 1e6 is above 70 000
    end

    def refunded(of)
      return of if of.is_a?(Integer)

      named = of.is_a?(Decision) ? of.reference : Wire.idem(of)
      named || raise(Fault.new("`of` names no grant: the decision has neither lease nor idem", "invalid"))
    end

    def done?(operation)
      return false unless @enabled

      begin_anew if @pid != $$
      exchange(operation, DONE, yield(+Wire::HEADS[operation])) == [true]
    rescue Fault => e
      log_refusal(e) || false
    end

    # A Decision, the elements of a DONE, true where no reply is wanted, or a Fault.
    def exchange(operation, wanted, out, held = nil)
      if @breaker.open?
        deadline = wanted ? probe : PAUSED
        return deadline if deadline.instance_of?(Fault)
      end
      reply = attempt(operation, wanted, out, held, deadline, false)
      fault = reply.instance_of?(Fault)
      reply = attempt_again(reply, operation, wanted, out, held, deadline) if fault
      settle(reply, wanted) if fault || @told || @breaker.troubled?
      reply
    end

    # Sends a PING on a new connection, if the breaker's pause is over: the deadline of this call, or a Fault.
    def probe
      started = now
      return PAUSED unless (probing = locked { @breaker.probe?(started, @timeout + Breaker::PAUSE_MAX) })

      settle(reply = attempt(PING, DONE, +Wire::HEADS[PING], nil, nil, true), DONE, true)
      reply.instance_of?(Fault) ? reply : started + @timeout
    ensure
      locked { @breaker.give_up_probe } if probing && (reply.nil? || (reply.instance_of?(Fault) && reply.flag?(:own)))
    end

    # Sends again, within the deadline, what the daemon has not judged. If it has no room for one more connection, waits
    # for room or for a connection of another thread.
    def attempt_again(reply, operation, wanted, out, held, deadline)
      fresh, started, pause = false, reply.started, BACKLOG_WAIT
      deadline ||= started + @timeout
      while reply.instance_of?(Fault)
        resend = reply.flag?(:resend) && !fresh
        break unless resend || (reply.flag?(:full) && wanted && now < deadline)

        resend ? fresh = true : sleep(pause.clamp(0, [deadline - now, BACKLOG_WAIT].max)) && pause *= 2
        reply = attempt(operation, wanted, out, held, deadline, fresh)
      end
      reply.started = started if reply.instance_of?(Fault)
      reply
    end

    # One request on one connection. Exceptions of other threads arrive only while it waits, or after it is done: then
    # the connection is closed, and an undelivered grant is reported as abandoned.
    def attempt(operation, wanted, out, held, deadline, fresh)
      connection = started = reply = kept = passed = nil
      Thread.handle_interrupt(NEVER) do
        connection = @idle.pop unless fresh
        connection ||= connect
        started = connection.write(wanted, out)
        reply = wanted ? connection.read(wanted) : true
        kept = keep(connection, reply, held) if reply # from here on it may be another thread's
      end
      deadline ||= started + @timeout
      until reply
        connection.wait(deadline)
        Thread.handle_interrupt(NEVER) do
          kept = keep(connection, reply, held) if (reply = connection.read(wanted))
        end
      end
      passed = reply
    rescue Fault => e
      e.started = started || now
      passed = e
    ensure
      Thread.handle_interrupt(NEVER) { end_attempt(operation, connection, kept, passed, held) } unless kept && passed
    end

    # After a fault or an exception of the application.
    def end_attempt(operation, connection, kept, passed, held)
      if kept
        tell_later("abandoned" => [[connection.number, kept]]) if operation == ACQUIRE && held.nil?
      elsif passed.instance_of?(Fault) && passed.flag?(:keep)
        keep(connection)
      elsif connection
        drop(connection, operation == ACQUIRE)
      end
    end

    # Makes a connection idle, and closes one that was idle for long; the id of its last request.
    def keep(connection, reply = nil, held = nil)
      held&.push(reply)
      id = connection.asked
      return drop(connection) || id if connection.spent || @idle.size >= IDLE_MAX

      oldest = @idle.first if @idle.size >= IDLE_KEPT
      surplus = @idle.shift if oldest && connection.used - oldest.used > IDLE_SECONDS
      @idle.push(connection)
      drop(surplus) if surplus
      id
    end

    def connect
      connection = locked do
        slots = @slots.zero? && !@info && defined?(PumaSlots) ? PumaSlots.of(self, @pool) : @slots
        @info ||= { client: "ruby/#{VERSION}", session: @session, pid: @pid, pool: @pool, slots: slots }
        Connection.new(self, @numbers += 1)
      end
      own = "#{ENV.fetch('XDG_RUNTIME_DIR', '')}/tidegate/tidegate.sock"
      own = "/run/tidegate/tidegate.sock" if own.start_with?("/tidegate/") || !own.start_with?("/") || !File.exist?(own)
      connection.open(@path.empty? ? own : @path, @info.merge(connection: connection.number))
      connection.tap { locked { @open[connection.socket] = true } }
    end

    def drop(connection, abandoned = false)
      tell_later("abandoned" => [[connection.number, connection.asked]]) if abandoned
      locked { @open.delete(connection.socket) }
      connection.close
    end

    def give_back(lease, outcome, connection, id)
      begin_anew if @pid != $$
      fault = exchange(RELEASE, nil, Wire.encode(outcome, Wire.encode(lease, +Wire::HEADS[RELEASE])))
      tell_later("abandoned" => [[connection.number, id]]) if fault.instance_of?(Fault)
    end

    # The decision without the daemon: the fallback's, else as `on_failure` says.
    def without(reason, on_failure = "allow", fallback = nil, *request)
      locked { @missed[reason] += 1 }
      tell_later("missed" => { reason => 1 })
      elements = fallback&.judge(*request)
      return Decision.from(elements, "fallback") if elements

      on_failure.to_s != "refuse" ? Decision.from([0], reason) : Decision.from([2, *[nil] * 5, 1_000_000], reason)
    end

    def tell_later(news)
      sum = ->(_, old, new) { old.is_a?(Hash) ? old.merge(new) { |_, a, b| a + b } : (new + old).first(ABANDONED_MAX) }
      locked { @report = @report.merge(news, &sum) }
    end

    # Counts a reply or a fault, and logs the first fault at once, later ones as a state.
    def settle(reply, wanted, probe = false)
      fault = reply if reply.instance_of?(Fault)
      return if fault.nil? && wanted.nil? # no answer
      return log_refusal(fault) if fault && !fault.counts? && !fault.flag?(:own)

      change = locked do
        if fault.nil? then @breaker.answered(probe: probe)
        elsif fault.counts? then @breaker.failed(fault.started, now, fault.flag?(:absent), probe)
        end
        trouble = !fault.nil? && (@told != false || @breaker.open?)
        (trouble != (@told || false)).tap { @told = trouble }
      end
      return unless change

      instead = @fallback ? "the fallback limits requests" : "requests are not limited"
      again = "the daemon answers again; #{@missed.values.sum} requests so far were not limited"
      log(fault ? "#{fault.message}; #{instead}" : again)
    end

    def log_refusal(error)
      what = error.is_a?(Fault) && !error.refusal? ? "not limited" : "refused"
      log("#{error.message}; such requests are #{what}", once: true)
    end
  end

  # Each client's sockets, by its object_id: a WeakMap of clients yields dead ones in Ruby 3.1.
  OPEN, FORGOTTEN, ANEW = {}, ->(id) { OPEN.delete(id) }, Monitor.new

  # A child closes the sockets that it inherited. Its clients begin anew at their next call, by the process's id.
  Process.singleton_class.prepend(Module.new do
    def _fork = super.tap { |pid| OPEN.each_value { |sockets| sockets.each_key(&:close) } if pid.zero? }
  end)
  require_relative "tidegate/puma_slots" if File.exist?("#{__dir__}/tidegate/puma_slots.rb") # not within a trap

  # The client of the program, made by `configure` or, with the defaults, at its first use.
  Settings = Struct.new(:socket, :timeout, :pool, :slots, :enabled, :logger, :fallback)
  extend SingleForwardable
  def_delegators :client, :acquire, :hit, :peek, :limit, :charge, :signal, :check, :stats, :close
  singleton_class.attr_writer :client

  def self.client = @client ||= Client.new

  def self.configure
    yield settings = Settings.new
    self.client = Client.new(**settings.to_h.compact)
  end
end
