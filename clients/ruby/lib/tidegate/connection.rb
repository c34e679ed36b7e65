# frozen_string_literal: true

# A connection to the daemon; the breaker that stops asking a daemon that fails; the fallback that limits meanwhile.
%w[digest/sha2 etc io/wait monitor socket].each { |library| require library }
require_relative "protocol"

module Tidegate
  ID_MIN, ID_MAX = 0x100, 0xffff # then another connection: a held lease keeps its id
  SMALL, CHUNK, SKB_BYTES, QUIET = 256, 4_096, 1_440, Socket::MSG_NOSIGNAL | Socket::MSG_DONTWAIT
  OVERSLEPT, GRACE = 0.002, 0.005 # seconds past the deadline after which the daemon gets so many more

  # Runs the block under the lock; without it in a trap handler, where no lock can be had.
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

  # One stream with one request at a time; closed after any doubt. Its methods but `wait` run without exceptions of
  # other threads and never wait.
  class Connection
    attr_reader :client, :number, :asked, :socket, :spent, :used # the last: when a request was written

    def initialize(client, number) = (@client, @number, @asked, @unread, @in = client, number, ID_MIN - 1, 0, "".b)

    # HELLO with `info` goes out with the first request.
    def open(path, info)
      @socket = Socket.new(:UNIX, :STREAM)
      @socket.connect_nonblock(Socket.sockaddr_un(path))
      @room = (@socket.getsockopt(:SOCKET, :SNDBUF).int / 2) - (2 * FRAME_MAX)
      @greeting = [(hello = Wire.encode([HELLO, 0, 1, info])).bytesize].pack("N") << hello
    rescue SystemCallError, ArgumentError => e
      raise unless own?(e)

      close
      raise Fault.new(why(path, e), "unreachable", *CONNECTING[e.class])
    end

    # Writes a request: when; a Fault if the socket does not take it whole.
    def write(wanted, out)
      id = @asked += 1
      @spent ||= id >= ID_MAX
      @late = nil
      size = out.bytesize - 4
      out.setbyte(2, size >> 8) if out.setbyte(3, size & 0xff) < size
      out.setbyte(7, id >> 8) && out.setbyte(8, id & 0xff) if wanted
      @fresh = !@greeting.nil?
      out, @greeting = @greeting + out, nil if @fresh
      quick = (@unread += wanted ? 0 : SKB_BYTES) < @room # else `send`, which is quicker, could wait for room
      sent = quick ? @socket.send(out, QUIET) : @socket.sendmsg_nonblock(out, QUIET, exception: false)
      raise Fault.new("the daemon did not read in time", "timeout") if sent != out.bytesize

      @used = Process.clock_gettime(Process::CLOCK_MONOTONIC)
    rescue SystemCallError, IOError => e
      raise unless own?(e)

      read(wanted) if wanted && @fresh # an ERROR may say why: a Fault
      raise Fault.new("the daemon hung up", "unreachable", *(:resend unless @fresh))
    end

    # The reply to the request if it is there: a Decision, or elements. A Fault for any other message.
    def read(wanted)
      room = SMALL
      while (got = @socket.read_nonblock(room, exception: false)) != :wait_readable
        raise EOFError if got.nil?

        @unread = 0 # an answer shows that it and everything before it was read
        if wanted == DECISION && Wire::PLAIN.match?(got) && got.getbyte(3) == got.bytesize - 4 &&
           got.getbyte(8) == @asked & 0xff && got.getbyte(7) == @asked >> 8 && @in.empty?
          return Decision.new(got, got.getbyte(9), self)
        end

        @in << got
        room, reply = CHUNK, next_reply(wanted)
        return reply if reply
      end
    rescue SystemCallError, IOError => e
      raise unless own?(e)

      # After a GOODBYE the daemon has judged only what it answered.
      raise Fault.new("the daemon hung up", "unreachable", *(:own if @leaving), *(:resend if @leaving && !@fresh))
    end

    # Waits for bytes until the deadline, and a moment more if the process woke up late; then a Fault.
    def wait(deadline)
      left = deadline - Process.clock_gettime(Process::CLOCK_MONOTONIC)
      if left <= 0
        raise Fault.new("the daemon did not answer in time", "timeout") if @late

        @late = true
        left = left < -OVERSLEPT ? GRACE : 0
      end
      @socket.wait_readable(left)
    end

    def close = @socket&.close # no `shutdown`, which would reach the process this one was forked from
    def inspect = "#<#{self.class} #{@number}>"

    private

    CONNECTING = { Errno::ENOENT => :absent, Errno::ECONNREFUSED => :absent, Errno::EAGAIN => :full,
                   Errno::EMFILE => :own, Errno::ENFILE => :own, Errno::ENOBUFS => :own, Errno::ENOMEM => :own }.freeze
    private_constant :CONNECTING

    LIBRARY = Socket.instance_method(:sendmsg_nonblock).source_location.first
    private_constant :LIBRARY

    # Whether the socket raised it, not a signal handler of the application in this code or the library's.
    def own?(error)
      places = error.backtrace_locations&.map(&:path) or return false
      places.find_index { |path| path != LIBRARY && !path.start_with?("<internal:") } == places.index(__FILE__)
    end

    def next_reply(wanted)
      while @in.bytesize >= 4 && @in.bytesize >= (stop = 4 + @in.unpack1("N"))
        kind, about, *said = Wire.decode(@in.byteslice(4, stop - 4))
        @in = @in.byteslice(stop..)
        mine = about == @asked
        @spent ||= kind == GOODBYE || (mine && !@in.empty?)
        return kind == DECISION ? Decision.from(said, nil, self, about) : said if kind == wanted && mine

        refuse(about, said) if kind == ERROR
        unless kind == GOODBYE || [kind, about, said[0]] == [WELCOME, 0, 1]
          raise Fault, "the daemon answered #{kind}: #{said.inspect[0, 200]}"
        end

        @leaving ||= kind == GOODBYE
      end
      raise Fault, "doubtful bytes: a frame of #{stop - 4} bytes" if stop && stop > 4 + FRAME_MAX
    end

    # An ERROR about this request, about HELLO (0) or about the connection (nil).
    def refuse(about, said)
      text = "the daemon answered #{ERROR}: #{said.inspect[0, 200]}"
      raise Fault, text unless [@asked, 0, nil].include?(about)

      flags = [(:keep if about == @asked && KEEPING.include?(said[0])), (:full if said[0] == BUSY)].compact
      raise Fault.new(text, REFUSING[said[0]] || "protocol", *flags)
    end

    def why(path, error)
      return "the daemon at #{path} takes no connections: it is stopped or overloaded" if error.is_a?(Errno::EAGAIN)

      said = "no daemon at #{path} (#{error.message}): start it with `tidegate serve`, or set TIDEGATE_SOCKET"
      return said unless error.is_a?(Errno::EACCES)

      user, group = Etc.getpwuid(Process.euid).name, Etc.getgrgid(File.stat(path).gid).name
      "permission denied on #{path}: user #{user} is not in group #{group}"
    rescue SystemCallError, ArgumentError
      said
    end
  end

  # Stops asking a daemon that fails: at once when nothing listens, else after FAILURES_MAX failures whose waits do not
  # overlap. After each pause one thread probes. Used under the client's lock.
  class Breaker
    FAILURES_MAX, PAUSE_MIN, PAUSE_MAX = 3, 0.1, 2.0 # a pause is 0.5 to 1 times as long

    def initialize = answered

    def open? = !@until.nil?
    def troubled? = @failures > 0 || !@pause.nil?

    # A reply came. One to a probe ends the pause; until a request is answered, the next failure begins a longer one.
    def answered(probe: false)
      @failures, @pause, @window, @until = probe ? FAILURES_MAX - 1 : 0, probe ? @pause : nil, -Float::INFINITY, nil
    end

    # Whether this caller may probe. Another may after `limit` seconds, should this one never report.
    def probe?(now, limit) = open? && now >= @until && (@until = now + limit)

    # Lets another caller probe at once: this probe ended without a verdict on the daemon.
    def give_up_probe = open? && (@until = 0.0)

    # A failure of a request, or of the probe, that waited from `started` to `now`.
    def failed(started, now, absent, probe)
      return if open? && !probe
      return if !open? && !absent && started < @window # its wait overlaps that of a failure that counts

      @failures += 1
      @window = now
      return unless absent || open? || @failures >= FAILURES_MAX

      @pause = [2 * (@pause || (PAUSE_MIN / 2)), PAUSE_MAX].min
      @until = now + (@pause * rand(0.5..1.0))
    end
  end

  # Limits in this process while the daemon cannot be asked: a token bucket for each domain and set of attributes.
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

    # Remembers which rule bound such a request last.
    def learn(domain, given, rule)
      return unless @by_rule && rule

      key = kind(domain, given)
      Tidegate.locked(@lock) do
        @learned.delete(key)
        @learned[key] = rule
        @learned.shift if @learned.size > LEARNED_MAX
      end
    end

    # The elements of a decision; nil if no rate is configured for such a request.
    def judge(operation, domain, given, cost)
      learned = @by_rule && Tidegate.locked(@lock) { @learned[kind(domain, given)] }
      rate = (learned && (@rates[learned] || @rates["#{domain}/#{learned}"])) || @rates["*"]
      cost = cost["requests"] || cost[:requests] || 1 if cost.is_a?(Hash)
      rate && take(rate, key(domain, given), cost, operation != PEEK)
    end

    private

    def kind(domain, given) = [domain.to_s, Wire.pairs(given).flatten(1).map(&:first).uniq.sort]

    # A digest, so that long values take no memory.
    def key(domain, given)
      Digest::SHA256.digest(Wire.encode([domain.to_s, Wire.pairs(given).map(&:sort)])).byteslice(0, 16)
    end

    # Levels are tokens times the period in nanoseconds: whole numbers, so that a retry time is exact.
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

      raise ArgumentError, "fallback: #{text.inspect} is no rate; help: write it like \"20/s\" or \"20/s burst 40\""
    end
  end
end
