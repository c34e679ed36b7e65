# frozen_string_literal: true

# A connection to the daemon, the circuit breaker, and the fallback limits while the daemon is unreachable.
%w[digest/sha2 etc io/wait monitor socket].each { |library| require library }
require_relative "protocol"

module Tidegate
  ID_MIN, ID_MAX = 0x100, 0xffff # then another connection: ids are never reused, since leases refer to them
  SMALL, SKB_BYTES, QUIET = 256, 1_440, Socket::MSG_NOSIGNAL | Socket::MSG_DONTWAIT
  OVERSLEPT, GRACE = 0.002, 0.005 # seconds: after waking up OVERSLEPT late, the daemon gets GRACE more

  # Runs the block under the lock; in a trap handler, which cannot lock, without it.
  def self.locked(lock)
    entered = false
    lock.synchronize do
      entered = true
      yield
    end
  rescue ThreadError
    raise if entered

    yield
  end

  # One stream with one request at a time; closed after any error. All methods but `wait` run without exceptions of
  # other threads and do not block.
  class Connection
    attr_reader :client, :number, :asked, :socket, :spent, :used # the last: when a request was written

    def initialize(client, number) = (@client, @number, @asked, @unread, @in = client, number, ID_MIN - 1, 0, "".b)

    # Connects. The first request also sends HELLO with `info`.
    def open(path, info)
      @socket = Socket.new(:UNIX, :STREAM)
      @socket.connect_nonblock(Socket.sockaddr_un(path))
      @room = (@socket.getsockopt(:SOCKET, :SNDBUF).int / 2) - (2 * FRAME_MAX)
      @greeting = [(hello = Wire.encode([HELLO, 0, 1, info])).bytesize].pack("N") << hello
    rescue SystemCallError, ArgumentError => e
      raise unless raised_here?(e)

      close
      raise Fault.new(explain(path, e), "unreachable", *CONNECTING[e.class])
    end

    # Writes a request; returns the time. Raises a Fault unless the socket accepts all of it.
    def write(wanted, out)
      id = @asked += 1
      @spent ||= id >= ID_MAX
      @late = nil
      size = out.bytesize - 4
      out.setbyte(2, size >> 8) if out.setbyte(3, size & 0xff) < size
      out.setbyte(7, id >> 8) && out.setbyte(8, id & 0xff) if wanted
      @fresh = !@greeting.nil?
      out, @greeting = @greeting + out, nil if @fresh
      quick = (@unread += wanted ? 0 : SKB_BYTES) < @room # else the faster `send` could block
      sent = quick ? @socket.send(out, QUIET) : @socket.sendmsg_nonblock(out, QUIET, exception: false)
      raise Fault.new("the daemon did not read in time", "timeout") if sent != out.bytesize

      @used = Process.clock_gettime(Process::CLOCK_MONOTONIC)
    rescue SystemCallError, IOError => e
      raise unless raised_here?(e)

      read(wanted) if wanted && @fresh # raises a Fault with the daemon's ERROR, if there is one
      raise Fault.new("the daemon hung up", "unreachable", *(:resend unless @fresh))
    end

    # Returns the reply, a Decision or elements, or nil if it has not arrived. Raises a Fault for any other message.
    # Reads twice at most, whatever the daemon sends.
    def read(wanted)
      room = SMALL
      while room && (got = @socket.read_nonblock(room, exception: false)) != :wait_readable
        raise EOFError if got.nil?

        @unread = 0 # a reply proves that the daemon read everything before
        if wanted == DECISION && Wire::PLAIN.match?(got) && got.getbyte(3) == got.bytesize - 4 &&
           got.getbyte(8) == @asked & 0xff && got.getbyte(7) == @asked >> 8 && @in.empty?
          return Decision.new(got, got.getbyte(9), self)
        end

        @in << got
        room, reply = (FRAME_MAX if room == SMALL), next_reply(wanted)
        return reply if reply
      end
    rescue SystemCallError, IOError => e
      raise unless raised_here?(e)

      # After a GOODBYE the daemon has processed only requests that it answered.
      raise Fault.new("the daemon hung up", "unreachable", *(:own if @leaving), *(:resend if @leaving && !@fresh))
    end

    # Waits for bytes until the deadline, then reads once more, after GRACE if the process woke up late; then a Fault.
    def wait(deadline)
      left = deadline - Process.clock_gettime(Process::CLOCK_MONOTONIC)
      if left <= 0
        raise Fault.new("the daemon did not answer in time", "timeout") if @late

        @late = true
        left = left < -OVERSLEPT ? GRACE : 0
      end
      @socket.wait_readable(left)
    end

    def close = @socket&.close # no `shutdown`, which would also end the parent's connection after a fork
    def inspect = "#<#{self.class} #{@number}>"

    private

    CONNECTING = { Errno::ENOENT => :absent, Errno::ECONNREFUSED => :absent, Errno::EAGAIN => :full,
                   Errno::EMFILE => :own, Errno::ENFILE => :own, Errno::ENOBUFS => :own, Errno::ENOMEM => :own }.freeze
    private_constant :CONNECTING

    LIBRARY = Socket.instance_method(:sendmsg_nonblock).source_location.first
    private_constant :LIBRARY

    # True if the socket raised `error`, not a signal handler that interrupted this code or the library's.
    def raised_here?(error)
      paths = error.backtrace_locations&.map(&:path) or return false
      paths.find_index { |path| path != LIBRARY && !path.start_with?("<internal:") } == paths.index(__FILE__)
    end

    def next_reply(wanted)
      while @in.bytesize >= 4 && @in.bytesize >= (stop = 4 + @in.unpack1("N"))
        kind, about, *fields = Wire.decode(@in.byteslice(4, stop - 4))
        @in = @in.byteslice(stop..)
        mine = about == @asked
        @spent ||= kind == GOODBYE || (mine && !@in.empty?)
        return kind == DECISION ? Decision.from(fields, nil, self, about) : fields if kind == wanted && mine

        refuse(about, fields) if kind == ERROR
        unless kind == GOODBYE || (!@welcome && [kind, about, fields[0]] == [WELCOME, 0, 1])
          raise Fault, "the daemon answered #{kind}: #{fields.inspect[0, 200]}"
        end

        @leaving ||= kind == GOODBYE
        @welcome ||= kind == WELCOME
      end
      raise Fault, oversized(stop) if stop && stop > 4 + FRAME_MAX
    end

    def oversized(stop)
      return "malformed frame of #{stop - 4} bytes" unless @in.start_with?("HTTP")

      "the daemon answered in HTTP: that is the admin socket; set TIDEGATE_SOCKET to the one beside it"
    end

    # Raises the Fault of an ERROR about this request, HELLO (0) or the connection (nil); another ERROR is doubtful.
    def refuse(about, fields)
      text = "the daemon answered #{ERROR}: #{fields.inspect[0, 200]}"
      mine = about == @asked || (about == 0 && !@welcome)
      raise Fault, text unless mine || (about.nil? && (fields[0] == FORBIDDEN || !REFUSING.key?(fields[0])))

      @spent ||= fields[0] == INTERNAL # the daemon closes after it
      flags = [(:keep if about == @asked && KEEPING.include?(fields[0])), (:full if fields[0] == BUSY)].compact
      raise Fault.new(text, REFUSING[fields[0]] || "protocol", *flags)
    end

    def explain(path, error)
      return "the daemon at #{path} takes no connections: it is stopped or overloaded" if error.is_a?(Errno::EAGAIN)

      text = "no daemon at #{path} (#{error.message}): start it with `tidegate serve`, or set TIDEGATE_SOCKET"
      return "permission denied on #{path}: #{denial(path)}" if error.is_a?(Errno::EACCES) || error.is_a?(Errno::EPERM)
      return text unless error.is_a?(Errno::ECONNREFUSED) && !File.socket?(path) && File.exist?(path)

      "#{path} is no socket: set TIDEGATE_SOCKET to that of the daemon"
    rescue SystemCallError, ArgumentError
      text
    end

    # Returns which directory or socket this process may not use, and why.
    def denial(path)
      begin
        found = File.stat(path)
      rescue Errno::EACCES
        path = File.dirname(path) # up to the directory that this process may not enter
        retry
      end
      user = name_of(Process.euid) { |uid| Etc.getpwuid(uid) }
      open = found.mode.anybits?(found.directory? ? 0o010 : 0o020)
      mode = (found.mode & 0o7777).to_s(8).rjust(4, "0")
      cause = "#{path} has mode #{mode}, without access for its group"
      cause = "user #{user} is not in group #{name_of(found.gid) { |gid| Etc.getgrgid(gid) }}" if open
      "#{cause}; see `tidegate doctor --as #{user}`"
    end

    def name_of(number)
      yield(number).name
    rescue ArgumentError # the system does not know it
      number.to_s
    end
  end

  # Opens immediately if no process listens, else after FAILURES_MAX failures whose waits do not overlap. After each
  # pause one thread probes. Used under the client's lock.
  class Breaker
    FAILURES_MAX, PAUSE_MIN, PAUSE_MAX = 3, 0.1, 2.0 # a pause is 0.5 to 1 times as long

    def initialize = answered

    def open? = !@until.nil?
    def failing? = @failures > 0 || !@pause.nil?

    # Records a reply. A reply to a PING ends the pause, but until one to a request, a failure starts a longer pause.
    def answered(probe: false)
      @failures, @pause, @window, @until = probe ? FAILURES_MAX - 1 : 0, probe ? @pause : nil, -Float::INFINITY, nil
    end

    # True if this thread may probe. Another one may after `limit` seconds if this one never reports.
    def probe?(now, limit) = open? && now >= @until && (@until = now + limit)

    # Lets another thread probe immediately, after a probe without a result.
    def give_up_probe = open? && (@until = 0.0)

    # Records a failure of a request, or of the probe, that waited from `started` to `now`.
    def failed(started, now, absent, probe)
      return if open? && !probe
      return if !open? && !absent && started < @window # overlaps a counted failure

      @failures += 1
      @window = now
      return unless absent || open? || @failures >= FAILURES_MAX

      @pause = [2 * (@pause || (PAUSE_MIN / 2)), PAUSE_MAX].min
      @until = now + (@pause * rand(0.5..1.0))
    end
  end

  # Limits in this process while the daemon is unreachable: a token bucket for each domain and set of attributes.
  # `given`: a rate such as "20/s" or "20/s burst 40", or a Hash of rule names (`rule`, `domain/rule`, "*") to rates.
  class Fallback
    BUCKETS_MAX, LEARNED_MAX, COUNT_MAX = 10_000, 256, (1 << 32) - 1
    UNITS = { "ms" => 10**6, "s" => 10**9, "min" => 60 * (10**9), "h" => 3_600 * (10**9), "day" => 86_400 * (10**9),
              "week" => 604_800 * (10**9), "month" => 2_592_000 * (10**9) }.freeze # nanoseconds
    TEXT = %r{\A\s*(\d{1,10})/(\d{0,10})(#{UNITS.keys.join('|')})(?:\s+burst\s+(\d{1,10}))?\s*\z}
    Rate = Struct.new(:tokens, :period, :burst)

    def self.from(given) = given.nil? || given.is_a?(Fallback) ? given : new(given)

    def initialize(given)
      @by_rule = given.is_a?(Hash)
      @rates = (@by_rule ? given : { "*" => given }).to_h { |rule, text| [rule.to_s, rate(text)] }
      raise ArgumentError, "fallback: a Hash without rates; help: write \"20/s\"" if @rates.empty?

      @lock, @buckets, @learned = Monitor.new, {}, {}
    end

    # Validates the fallback of a call.
    def self.check(given)
      return if given.nil? || given.is_a?(Fallback)

      raise ArgumentError, "the fallback of a call is made once: FALLBACK = Tidegate::Fallback.new(\"20/s\"); " \
                           "not #{given.inspect[0, 99]}"
    end

    # Remembers the binding rule of requests with this domain and attribute names.
    def learn(domain, given, rule)
      return unless @by_rule && rule

      key = kind(domain, given)
      Tidegate.locked(@lock) do
        @learned.delete(key)
        @learned[key] = rule
        @learned.shift if @learned.size > LEARNED_MAX
      end
    end

    # Returns the elements of a decision; nil if no rate applies.
    def decide(operation, domain, given, cost)
      learned = @by_rule && Tidegate.locked(@lock) { @learned[kind(domain, given)] }
      rate = (learned && (@rates[learned] || @rates["#{domain}/#{learned}"])) || @rates["*"]
      cost = cost["requests"] || cost[:requests] || 1 if cost.is_a?(Hash)
      rate && take(rate, key(domain, given), cost, operation != PEEK)
    end

    private

    def kind(domain, given) = [domain.to_s, Wire.pairs(given).flatten(1).map(&:first).uniq.sort]

    # Returns the digest of domain and attributes: long values take no memory.
    def key(domain, given)
      Digest::SHA256.digest(Wire.encode([domain.to_s, Wire.pairs(given).map(&:sort)])).byteslice(0, 16)
    end

    # Charges a bucket. Levels are tokens times the period in nanoseconds: integers, so that retry times are exact.
    def take(rate, key, cost, charges)
      now = Process.clock_gettime(Process::CLOCK_MONOTONIC, :nanosecond)
      full, wanted = rate.burst * rate.period, cost * rate.period
      level, allowed = Tidegate.locked(@lock) do
        old, at = @buckets[key] || [full, now]
        level = [full, old + ([now - at, 0].max * rate.tokens)].min
        allowed = wanted <= level
        level -= wanted if allowed && charges
        keep(key, level, now) if charges
        [level, allowed]
      end
      decision(rate, level, full, allowed, wanted)
    end

    def keep(key, level, now)
      @buckets.delete(key)
      @buckets[key] = [level, now]
      @buckets.shift if @buckets.size > BUCKETS_MAX
    end

    def decision(rate, level, full, allowed, wanted)
      whole = level / rate.period
      more = level >= full ? 0 : ((whole + 1) * rate.period) - level
      again = allowed ? 0 : wanted - level
      times = [full, more, again].map { |units| -(-units / (rate.tokens * 1_000)) } # microseconds, rounded up
      [allowed ? 0 : 1, nil, rate.burst, times[0], whole, times[1], wanted > full ? nil : times[2]]
    end

    def rate(text)
      count, periods, unit, burst = text.is_a?(String) ? TEXT.match(text)&.captures : nil
      period = (periods.to_s.empty? ? 1 : periods.to_i) * UNITS.fetch(unit, 0)
      numbers = [count.to_i, (burst || count).to_i]
      fits = count && numbers.all? { |number| number.between?(1, COUNT_MAX) } && period.between?(1, 366 * UNITS["day"])
      return Rate.new(numbers[0], period, numbers[1]) if fits

      raise ArgumentError, "fallback: #{text.inspect} is not a rate; help: write it like \"20/s\" or \"20/s burst 40\""
    end
  end
end
