# frozen_string_literal: true

# Client of tidegate, the rate limiting daemon of this host.
#
#     decision = Tidegate::Client.new.hit("api", { user: user_id })
#
# No call raises because of the daemon or outlasts its deadline (20 ms); without a reply the decision is *allow*, or
# follows `on_failure` and `fallback`, with `degraded?` and `reason` set. The client is this file with
# tidegate/protocol.rb and tidegate/connection.rb; copy the three.
%w[forwardable monitor].each { |library| require library }
require_relative "tidegate/protocol"
require_relative "tidegate/connection"

module Tidegate
  TIMEOUT, TIMEOUT_MAX, BACKLOG_WAIT = 0.020, 10, 0.001 # seconds
  IDLE_MAX, IDLE_KEPT, IDLE_SECONDS = 64, 2, 15 # connections; IDLE_KEPT of them stay open after IDLE_SECONDS
  ABANDONED_MAX, LOGGED_MAX, SLOTS_MAX = 512, 100, (1 << 32) - 1

  # Sends requests to the daemon; safe in threads, fibers and over forks. The first request connects. `socket`: path,
  # else TIDEGATE_SOCKET, else the default paths. `timeout`: seconds for a call. `slots`: requests that this process
  # works on concurrently (0: read from Puma). `fallback`: a rate, or a Hash of rule names to rates, that limits in this
  # process while the daemon does not answer. `on_decision`: called with the decision and its seconds after each
  # `acquire`, `hit` and `limit`.
  class Client
    PAUSED = Fault.new("the breaker is open", "breaker", :own)
    private_constant :PAUSED

    def initialize(socket: nil, timeout: nil, pool: "default", slots: 0, enabled: true, logger: nil, fallback: nil,
                   on_decision: nil)
      @logger, @logged = logger, {}
      @timeout = timeout || timeout_of(ENV.fetch("TIDEGATE_TIMEOUT_MS", ""))
      fits = (1e-6..TIMEOUT_MAX).cover?(@timeout) && slots.is_a?(Integer) && slots.between?(0, SLOTS_MAX)
      needed = "timeout is in seconds, above 0 and at most #{TIMEOUT_MAX}; slots are an Integer up to #{SLOTS_MAX}"
      raise ArgumentError, needed unless fits

      Wire.check_name(@pool = pool.to_s, "pool")
      @path, @slots = (socket || ENV.fetch("TIDEGATE_SOCKET", "")).to_s, slots
      @fallback = Fallback.from(fallback)
      @refuses = false # whether a request had on_failure: "refuse"
      @off = ENV.fetch("TIDEGATE_DISABLE", "").then { |given| given unless ["", "0"].include?(given) }
      @enabled = enabled && @off.nil?
      @open = OPEN[object_id] = {}.compare_by_identity
      begin_session
      observe(on_decision) if on_decision
      ObjectSpace.define_finalizer(self, FINALIZER)
    end

    # Ask whether a request may start: `acquire` if it ends with `release`, `hit` without a lease; `peek` charges
    # nothing. They raise InvalidCost for a cost that is negative or no integer. `fallback` replaces the client's.
    # `held`: an Array that receives the daemon's decision before an exception of another thread can arrive.
    # @!method acquire(domain, given = nil, **options)
    #   @return [Decision]
    # @!method hit(domain, given = nil, **options)
    #   @return [Decision]
    # @!method peek(domain, given = nil, **options)
    #   @return [Decision]
    { acquire: ACQUIRE, hit: HIT, peek: PEEK }.each do |name, operation| # written out, which saves a Hash and a call
      class_eval <<~RUBY, __FILE__, __LINE__ + 1
        def #{name}(domain, given = nil, cost: 1, priority: nil, idem: nil, queued: nil, max_wait: nil,
                    on_failure: "allow", fallback: @fallback, held: nil)
          return pass unless @enabled

          begin_session if @pid != $$
          @refuses = true if on_failure != "allow" && Wire.action(on_failure) == "refuse"
          Fallback.check(fallback) unless fallback.equal?(@fallback)
          options, report = idem || queued || max_wait ? options(idem, queued, max_wait) : nil, nil
          out = Wire.request(#{operation}, domain, given, cost, priority, options)
          if !@report.empty? && out.bytesize < FRAME_MAX / 2 # else a value might become its digest
            Thread.handle_interrupt(NEVER) { report = locked { @report.tap { @report = {} } } }
            out = Wire.request(#{operation}, domain, given, cost, priority, (options || {}).merge(report))
          end
          own = [] if held.nil? && (fallback || idem)
          answer = exchange(#{operation}, DECISION, out, held || own)
          if answer.instance_of?(Fault)
            return refuse(answer) if answer.refusal?

            return degrade(answer.reason, on_failure, fallback, #{operation}, domain, given, cost)
          end

          report = nil # the daemon has it
          answer.domain = Wire.utf8(domain.to_s) unless answer.allowed?
          log_unmatched(Wire.utf8(domain.to_s)) if answer.unmatched?
          fallback&.learn(domain, given, answer.rule)
          answer.idem = options["idem"] if idem
          log_no_rule(Wire.utf8(domain.to_s), given) if answer.no_rule?
          own = nil
          answer
        rescue Fault => e
          refuse(e)
        rescue NoMethodError => e
          refuse(unreadable(e))
        ensure
          Thread.handle_interrupt(NEVER) { report_later(report) } if report
          own[0].release("dropped") if own && own[0]
        end
      RUBY
    end

    # Yields under a lease: sleeps `wait`, releases at the end; raises Denied for a refused request.
    # @yieldparam decision [Decision]
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
      held[0]&.release # a second release does nothing
    end

    # Charges all matching rates after the fact, into debt. False: none was charged. A negative amount refunds part of
    # `of`: the decision, lease or `idem` of a grant or charge.
    # @return [Boolean]
    def charge(domain, attributes = nil, amount = 1, idem: nil, of: nil)
      done?(CHARGE) do
        options = { "idem" => idem && Wire.idem(idem), "of" => of.nil? ? nil : refund_reference(of) }.compact
        Wire.request(CHARGE, domain, attributes, amount, nil, options.empty? ? nil : options)
      end
    end

    # Reports a utilization of this process, from 0 to 1; the daemon drops it after 3 s.
    def signal(name, value)
      return unless @enabled

      begin_session if @pid != $$
      number = value.is_a?(Numeric) && value.real? && !(value.respond_to?(:nan?) && value.nan?)
      raise Fault.new("a signal is a number from 0 to 1, not a #{value.class}", "invalid") unless number

      out = +Wire::HEADS[SIGNAL] << Wire.name(@pool) << Wire.name(name)
      exchange(SIGNAL, nil, Wire.encode((value.clamp(0, 1) * 1_000).round, out)) && nil
    rescue Fault => e
      log_refusal(e)
    rescue NoMethodError => e
      log_refusal(unreadable(e))
    end

    # Pings the daemon; false if it does not answer, the breaker is open or the client disabled.
    def check = done?(PING, &:itself)

    # Counts decisions without the daemon and own refusals by reason, and connections; state of the breaker.
    def stats = { missed: @missed.dup, refused: @refused.dup, connections: @open.size, breaker_open: @breaker.open? }
    # Closes idle connections; the client may be used again.
    def close = @idle.shift(IDLE_MAX).each { |connection| drop(connection) } && nil
    def inspect = "#<#{self.class} #{@path.empty? ? 'usual socket' : @path}>" # without the session, a secret

    # Logs and counts a callback that raised; for middlewares. Does not log the message, which may have personal data.
    def callback_failed(name, error, consequence = "such requests are checked without it")
      wrong = error.is_a?(WrongResult)
      log("#{name} #{wrong ? "returned #{error.message}" : "raised #{error.class}"}: #{consequence}", once: true)
      degrade("callback") && nil # counts it; the next request reports it
    end

    # Refuses an invalid request; for middlewares.
    def refuse(error)
      reason = error.is_a?(Fault) ? error.reason : "invalid"
      locked { @refused[reason] += 1 }
      log_refusal(error) || Decision.from([2, *[nil] * 5, 1_000_000], reason)
    end

    # Logs a line about the limiter itself.
    def log(text, once: false, key: text)
      return if once && (@logged[key] || @logged.size >= LOGGED_MAX)

      @logged[key] = true if once
      Thread.handle_interrupt(StandardError => :never) do # rescue only exceptions of the logger
        (@logger || Kernel).warn("tidegate: #{text}")
      rescue StandardError
        nil
      end && nil
    end

    private

    # Returns the seconds of TIDEGATE_TIMEOUT_MS; the default, with a line of the log, for another value.
    def timeout_of(text)
      fits = text.match?(/\A[0-9]{1,5}([.][0-9]{1,6})?\z/) && text.to_f.positive? && text.to_f <= TIMEOUT_MAX * 1_000
      return text.to_f.fdiv(1_000) if fits

      unfit = "not above 0 and up to #{TIMEOUT_MAX}000: the timeout is 20 ms"
      log("TIDEGATE_TIMEOUT_MS is \"#{text[0, 40]}\", #{unfit}") unless text.empty?
      TIMEOUT
    end

    # Allows a request of a disabled client.
    def pass
      log("TIDEGATE_DISABLE is \"#{@off[0, 40]}\": nothing is limited", once: true) if @off
      Decision.from([0], "disabled")
    end

    def observe(function)
      raise ArgumentError, "on_decision is a function of a decision and seconds" unless function.respond_to?(:call)

      require_relative "tidegate/observe"
      @on_decision = function
      extend Observed
    end

    # Starts a session of this process; a forked child uses no lock, count or socket of its parent.
    def begin_session
      Tidegate.locked(SESSIONS) do
        next if @pid == Process.pid # another thread has done it

        @open.each_key(&:close).clear
        @lock, @idle, @session, @numbers, @info = Monitor.new, [], Random.urandom(16).b, 0, nil
        @missed, @refused, @report, @breaker = Hash.new(0), Hash.new(0), {}, Breaker.new
        @failing, @shortage, @pid = nil, nil, Process.pid # the last logged state of the daemon; nil: none yet
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

    def refund_reference(of)
      return of if of.is_a?(Integer)

      named = of.is_a?(Decision) ? of.reference : Wire.idem(of)
      named || raise(Fault.new("`of` names no grant: the decision has neither lease nor idem", "invalid"))
    end

    def done?(operation)
      return false unless @enabled

      begin_session if @pid != $$
      exchange(operation, DONE, yield(+Wire::HEADS[operation])) == [true]
    rescue Fault => e
      log_refusal(e) || false
    rescue NoMethodError => e
      log_refusal(unreadable(e)) || false
    end

    # Returns the refusal of a request with a BasicObject, which lacks the methods of every Object; re-raises others.
    def unreadable(error)
      raise error if Wire.object?(error.receiver)

      Fault.new("a BasicObject is part of the request; help: send its id", "invalid")
    rescue ArgumentError # it names no receiver
      raise error
    end

    # Returns a Decision, the elements of a DONE, true for a frame without a reply, or a Fault.
    def exchange(operation, wanted, out, held = nil)
      if @breaker.open?
        deadline = wanted ? probe : PAUSED
        return deadline if deadline.instance_of?(Fault)
      end
      reply = attempt(operation, wanted, out, held, deadline, false)
      fault = reply.instance_of?(Fault)
      reply = retry_attempt(reply, operation, wanted, out, held, deadline) if fault
      settle(reply, wanted) if fault || @failing || @breaker.failing?
      reply
    end

    # Sends a PING on a new connection if the breaker's pause is over; returns the deadline of this call or a Fault.
    def probe
      started = now
      return PAUSED unless (probing = locked { @breaker.probe?(started, @timeout + Breaker::PAUSE_MAX) })

      settle(reply = attempt(PING, DONE, +Wire::HEADS[PING], nil, nil, true), DONE, true)
      reply.instance_of?(Fault) ? reply : started + @timeout
    ensure
      locked { @breaker.give_up_probe } if probing && (reply.nil? || (reply.instance_of?(Fault) && reply.flag?(:own)))
    end

    # Retries, within the deadline, a request that the daemon has not processed. If the daemon accepts no further
    # connection, waits for room or for a connection of another thread; without a free descriptor for the latter.
    def retry_attempt(reply, operation, wanted, out, held, deadline)
      fresh, started, pause = false, reply.started, BACKLOG_WAIT
      deadline ||= started + @timeout
      while reply.instance_of?(Fault)
        resend = reply.flag?(:resend) && !fresh
        full = reply.flag?(:full) || (reply.message == @shortage && !@open.empty?)
        break unless resend || (full && wanted && now < deadline)

        resend ? fresh = true : sleep(pause.clamp(0, [deadline - now, BACKLOG_WAIT].max)) && pause *= 2
        reply = attempt(operation, wanted, out, held, deadline, fresh)
      end
      reply.started = started if reply.instance_of?(Fault)
      reply
    end

    # Sends one request on one connection. Exceptions of other threads arrive only while it waits or after its end: then
    # it closes the connection and reports an undelivered grant as abandoned.
    def attempt(operation, wanted, out, held, deadline, fresh)
      connection = started = reply = kept = passed = nil
      Thread.handle_interrupt(NEVER) do
        connection = @idle.pop unless fresh
        connection ||= connect
        started = connection.write(wanted, out)
        reply = wanted ? connection.read(wanted) : true
        kept = keep(connection, reply, held) if reply # from here on another thread may use the connection
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

    # Cleans up after a fault or an exception of the application.
    def end_attempt(operation, connection, kept, passed, held)
      if kept
        report_later("abandoned" => [[connection.number, kept]]) if operation == ACQUIRE && held.nil?
      elsif passed.instance_of?(Fault) && passed.flag?(:keep)
        keep(connection)
      elsif connection
        drop(connection, operation == ACQUIRE)
      end
    end

    # Makes a connection idle, and closes one that was idle for long; returns the id of its last request.
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

    # Ruby collects all garbage before a socket fails for lack of descriptors or memory: then no call tries again during
    # a pause, which grows like that of the breaker.
    def connect
      raise Fault.new(@shortage, "unreachable", :own) if @shortage && now < @shortage_until

      connection = locked do
        slots = @slots.zero? && !@info && defined?(PumaSlots) ? PumaSlots.of(self, @pool) : @slots
        @info ||= { client: "ruby/#{VERSION}", session: @session, pid: @pid, pool: @pool, slots: slots }
        Connection.new(self, @numbers += 1)
      end
      own = "#{ENV.fetch('XDG_RUNTIME_DIR', '')}/tidegate/tidegate.sock"
      own = "/run/tidegate/tidegate.sock" if own.start_with?("/tidegate/") || !own.start_with?("/") || !File.exist?(own)
      connection.open(@path.empty? ? own : @path, @info.merge(connection: connection.number))
      @shortage = nil
      connection.tap { locked { @open[connection.socket] = true } }
    rescue Fault => e
      locked { pause_connecting(e.message) } if e.flag?(:own)
      raise
    end

    def pause_connecting(message)
      return if @shortage && now < @shortage_until

      @shortage_pause = @shortage ? [2 * @shortage_pause, Breaker::PAUSE_MAX].min : Breaker::PAUSE_MIN
      @shortage_until = now + @shortage_pause
      @shortage = message # last: other threads read it first
    end

    def drop(connection, abandoned = false)
      report_later("abandoned" => [[connection.number, connection.asked]]) if abandoned
      locked { @open.delete(connection.socket) }
      connection.close
    end

    def release_lease(lease, outcome, connection, id)
      begin_session if @pid != $$
      fault = exchange(RELEASE, nil, Wire.encode(outcome, Wire.encode(lease, +Wire::HEADS[RELEASE])))
      report_later("abandoned" => [[connection.number, id]]) if fault.instance_of?(Fault)
    end

    # Decides without the daemon: by the fallback, else by `on_failure`.
    def degrade(reason, on_failure = "allow", fallback = nil, *request)
      locked { @missed[reason] += 1 }
      report_later("missed" => { reason => 1 })
      elements = fallback&.decide(*request)
      return Decision.from(elements, "fallback") if elements

      on_failure.to_s != "refuse" ? Decision.from([0], reason) : Decision.from([2, *[nil] * 5, 1_000_000], reason)
    end

    def report_later(news)
      sum = ->(_, old, new) { old.is_a?(Hash) ? old.merge(new) { |_, a, b| a + b } : (new + old).first(ABANDONED_MAX) }
      locked { @report = @report.merge(news, &sum) }
    end

    # Counts a reply or a fault. Logs a fault before any reply immediately, later ones when the breaker opens.
    def settle(reply, wanted, probe = false)
      fault = reply if reply.instance_of?(Fault)
      return if fault.nil? && wanted.nil? # a frame without a reply
      return log_refusal(fault) if fault && !fault.counts? && !fault.flag?(:own)

      change = locked do
        if fault.nil? then @breaker.answered(probe: probe)
        elsif fault.counts? then @breaker.failed(fault.started, now, fault.flag?(:absent), probe)
        end
        failing = !fault.nil? && (@failing != false || @breaker.open?)
        (failing != (@failing || false)).tap { @failing = failing }
      end
      log_refusal(fault) if fault && fault.message == @shortage && !change && @failing == false
      return unless change

      missed = @missed.values.sum - @missed.fetch("callback", 0)
      again = "the daemon answers again; #{missed} request#{'s' if missed != 1} so far decided without it"
      log(fault ? "#{fault.message}; requests #{consequence}" : again)
    end

    # What happens to requests while the daemon does not answer.
    def consequence
      return "are limited by the fallback" if @fallback

      @refuses ? "with on_failure refuse get status 503, others are not limited" : "are not limited"
    end

    def log_unmatched(domain)
      log("the rules have no domain \"#{domain}\"; its requests are not limited", once: true)
    end

    # Logs, once for each domain, that none of its rules matched; names attributes, without values.
    def log_no_rule(domain, given)
      return if @logged[key = [domain]]

      names = Wire.pairs(given).flatten(1).filter_map { |name, value| name unless value.empty? }.uniq.join(", ")
      about = names.empty? ? "a request without attributes" : "a request with the attributes #{names}"
      why = "it is not limited; `tidegate why #{domain} …` says why"
      log("no rule of the domain \"#{domain}\" matches #{about}: #{why}", once: true, key: key)
    end

    def log_refusal(error)
      reason = error.is_a?(Fault) ? error.reason : "invalid"
      result = REFUSALS.include?(reason) ? "are refused (#{reason})" : consequence
      log("#{error.message}; such requests #{result}", once: true)
    end
  end

  # Sockets by the object_id of their client: a WeakMap of clients yields dead ones in Ruby 3.1.
  OPEN, FINALIZER, SESSIONS = {}, ->(id) { OPEN.delete(id) }, Monitor.new

  # A child closes inherited sockets. Its clients start a new session at their next call, when the process id differs.
  Process.singleton_class.prepend(Module.new do
    def _fork = super.tap { |pid| OPEN.each_value { |sockets| sockets.each_key(&:close) } if pid.zero? }
  end)
  require_relative "tidegate/puma_slots" if File.exist?("#{__dir__}/tidegate/puma_slots.rb") # not within a trap

  # Settings of the program's client, made by `configure` or, with the defaults, at its first use.
  Settings = Struct.new(:socket, :timeout, :pool, :slots, :enabled, :logger, :fallback, :on_decision)
  extend SingleForwardable
  def_delegators :client, :acquire, :hit, :peek, :limit, :charge, :signal, :check, :stats, :close
  singleton_class.attr_writer :client

  # Returns the program's client.
  def self.client = @client ||= Client.new

  def self.configure
    yield settings = Settings.new
    self.client = Client.new(**settings.to_h.compact)
  end
end
