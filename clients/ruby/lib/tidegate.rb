# frozen_string_literal: true
# tidegate: asks the daemon of this host whether a piece of work may start.
#
#     decision = Tidegate::Client.new.hit("api", { user: user_id })
#
# No call raises because of the daemon or outlasts its deadline (20 ms); without an answer the decision is *allow* and
# says so (`degraded?`, `reason`). This file is all of the client, to be copied: codec, decision, connection, client.
%w[digest/sha2 etc forwardable io/wait monitor socket].each { |library| require library }

module Tidegate
  VERSION = "0.1.0"
  # Raised by `limit` when the work may not start; `decision` says why and until when.
  class Denied < StandardError
    attr_reader :decision
    def initialize(decision) = super((@decision = decision).message)
  end
  # What cannot be written or trusted. `after` it: :again (the daemon has had nothing), :kept (the connection), or nil.
  class Fault < ArgumentError
    attr_reader :reason, :after
    def initialize(text, reason = "protocol", after = nil) = super(text).tap { @reason, @after = reason, after }
  end
  # -- codec: MessagePack within the bounds of the protocol, and the request of a judgement ----------------------------
  HELLO, ACQUIRE, RELEASE, HIT, PEEK, CHARGE, RENEW, SIGNAL, PING = *0..8
  WELCOME, DECISION, DONE, ERROR, GOODBYE = *0..4
  KEEPING = [5, 6, 7, 10, 11].freeze # the errors that close nothing
  VALUE_MAX, VALUE_KEPT, NAME_MAX, PAIRS_MAX, DESCRIPTORS_MAX, NAMES_KEPT = 1_024, 960, 64, 16, 8, 1_024
  DEPTH_MAX, FRAME_MAX, COST_MAX, BINARY, UTF_8 = 4, 16_384, (1 << 32) - 1, Encoding::BINARY, Encoding::UTF_8
  # Bytes and what they say; knows no socket.
  module Wire
    # How a value begins: first byte of the short form, sizes below this have it, first byte of the others, their forms.
    FORMS = {
      uint: [0x00, 128, 0xcc, %w[C n N Q>]], int: [0x100, 32, 0xd0, %w[c s> l> q>]], str: [0xa0, 32, 0xd9, %w[C n N]],
      bin: [0x00, 0, 0xc4, %w[C n N]], array: [0x90, 16, 0xdc, %w[n N]], map: [0x80, 16, 0xde, %w[n N]]
    }.freeze
    WIDTHS = { "C" => 1, "n" => 2, "N" => 4, "Q>" => 8, "c" => 1, "s>" => 2, "l>" => 4, "q>" => 8 }.freeze
    CONSTANTS = { nil => 0xc0, false => 0xc2, true => 0xc3 }.freeze
    STARTS = FORMS.each_with_object(CONSTANTS.to_h { |value, byte| [byte, [nil, value, 0]] }) do |(kind, form), starts|
      short, below, code, forms = form
      (kind == :int ? -below...0 : 0...below).each { |size| starts[short + size] = [kind, size, 0] }
      forms.each_with_index { |packed, i| starts[code + i] = [kind, packed, WIDTHS[packed]] }
    end.freeze
    NAME, NAMES = %r{\A[^\x00-\x1f\x7f-\u009f:/]+\z}, {} # as they are written; a program has few
    rule = lambda do |low, high| # by halves: a text of `low` to `high` printable characters
      middle = (low + high) / 2
      next "\\x#{(0xa0 | low).to_s(16)}[ -~]{#{low}}" if low == high
      "(?:(?=[\\xa0-\\x#{(0xa0 | middle).to_s(16)}])#{rule[low, middle]}|#{rule[middle + 1, high]})"
    end
    # A decision as nearly all are: every field, a short ASCII name, no notes. It is held against this whole, and read
    # where somebody asks. Its id is as in the request, two bytes.
    plain = "\\A\0\0\0.\\x9d\\x01\\xcd..[\0-\\x04](?:#{rule[1, 31]}|\\xc0)" \
            "#{'(?:\xce....|[\0-\x7f\xc0]|\xcc.|\xcd..|\xcf.{8})' * 6}\\xc0\\xc0\\xc0\\z"
    PLAIN = Regexp.new(plain.b, Regexp::MULTILINE | Regexp::NOENCODING)
    # How a request begins: room for its size, how many elements, operation, room for its id (nil: no reply is wanted).
    HEADS = [0, 5, 4, 5, 5, 5, 3, 5, 2].each_with_index.map do |count, operation|
      id = [RELEASE, SIGNAL].include?(operation) ? [0xc0] : [0xcd, 0, 0]
      [0, 0x90 | count, operation, *id].pack("NC*").freeze
    end.freeze
    module_function
    # Adds the shortest MessagePack of nil, a bool, an Integer, a String (binary ones as bin), an Array or a Hash.
    def encode(value, out = String.new)
      case value
      when nil, true, false then out << CONSTANTS[value]
      when Integer then head(value.negative? ? :int : :uint, value, out)
      when String
        binary = value.encoding == BINARY
        head(binary ? :bin : :str, (value = binary ? value : utf8(value)).bytesize, out) << value.b
      when Array then value.each_with_object(head(:array, value.size, out)) { |part, to| encode(part, to) }
      when Hash then value.each_with_object(head(:map, value.size, out)) { |(k, v), to| encode(v, encode(k.to_s, to)) }
      else raise Fault, "a #{value.class} has no place in a frame"
      end
    end
    def head(kind, size, out)
      short, below, code, forms = FORMS[kind]
      least = size.negative? ? ~size : size
      return out << ((short + size) & 0xff) if least < below
      i = forms.index { |packed| least < 1 << ((8 * WIDTHS[packed]) - (size.negative? ? 1 : 0)) }
      i ? out << (code + i) << [size].pack(forms[i]) : raise(Fault, "a number too large for a frame")
    end
    # The one array that `data` holds; a Fault for whatever the protocol forbids.
    def decode(data)
      message, stop = value(data, 0, DEPTH_MAX)
      message.instance_of?(Array) && stop == data.bytesize ? message : raise(IndexError)
    rescue IndexError
      raise Fault, "doubtful bytes: not one array of what has a place in a frame, and nothing after it"
    end
    # The value at `at`, and where it ends; `depth` is what may still nest.
    def value(data, at, depth)
      kind, size, width = STARTS.fetch(data.getbyte(at)) # nil, behind the end, starts nothing
      at += 1 + width
      raise IndexError if at > data.bytesize
      size = data.unpack1(size, offset: at - width) if width.positive?
      return [size, at] unless (nests = { str: false, bin: false, array: true, map: true }[kind]) || nests == false
      raise IndexError if size > data.bytesize - at || (nests && depth.zero?) # an element takes one byte at least
      text = data.byteslice(at, size).force_encoding(kind == :str ? UTF_8 : BINARY) unless nests
      return text.valid_encoding? ? [text, at + size] : raise(IndexError) if text
      parts = Array.new(kind == :map ? 2 * size : size) { (part, at = value(data, at, depth - 1)) && part }
      return [parts, at] if kind == :array
      map = parts.each_slice(2).to_h.select { |key, _| key.instance_of?(String) && key.encoding == UTF_8 }
      map.size == size ? [map, at] : raise(IndexError)
    end
    # A judgement but for its size and id; a Fault where the daemon would say `invalid`. `given`: a descriptor, pairs of
    # names and values, or an Array of Hashes, several.
    def judgement(operation, domain, given, cost, priority = nil, options = nil, least = 0)
      out = +HEADS[operation]
      out << (NAMES[domain] || name(domain))
      if given.instance_of?(Array) && given.first.is_a?(Hash)
        raise Fault, "more than #{DESCRIPTORS_MAX} descriptors" if given.size > DESCRIPTORS_MAX
        (many = given).each_with_object(out << (0x90 | given.size)) { |one, to| descriptor(one, to) }
      else
        descriptor(given, out << 0x91)
      end
      cost.equal?(1) ? out << 1 : amount(cost, least, out)
      if priority || options
        out << (priority.nil? ? 0xc0 : NAMES[priority] || name(priority))
        encode(options, out) if options
        out.setbyte(4, options ? 0x97 : 0x96)
      end
      return out if (over = out.bytesize - 4 - FRAME_MAX) <= 0
      judgement(operation, domain, shortened(many || [given], over), cost, priority, options, least)
    end
    def amount(cost, least, out)
      fits = (cost.is_a?(Hash) ? cost.values : [cost]).all? { |n| n.is_a?(Integer) && n.between?(least, COST_MAX) }
      fits ? encode(cost, out) : raise(Fault, "a cost is an integer from #{least} to #{COST_MAX}, or units to such")
    end
    def descriptor(given, out)
      place, count = (out << 0x90).bytesize - 1, 0
      given&.each do |name, value|
        unless value.instance_of?(String) && (size = value.bytesize) < 32 && value.ascii_only?
          size = (value = text(value).b).bytesize
        end
        next if size == 0
        out << (NAMES[name] || name(name))
        size < 32 ? out << (0xa0 | size) << value : head(:str, size, out) << value
        count += 1
      end
      raise Fault, "more than #{PAIRS_MAX} attributes" if count > PAIRS_MAX
      count < 8 ? out.setbyte(place, 0x90 | (2 * count)) : out[place, 1] = [0xdc, 2 * count].pack("Cn")
    end
    # An attribute as it is sent, the end of a long one as its digest; of nil, nothing.
    def text(value, most = VALUE_MAX, kept = VALUE_KEPT)
      text = utf8(value.to_s)
      text.bytesize > most ? "#{text.byteslice(0, kept).scrub('')}~#{Digest::SHA256.hexdigest(text)[0, 32]}" : text
    end
    def utf8(text)
      text = text.dup.force_encoding(UTF_8) if text.encoding == BINARY
      text.encode(UTF_8, invalid: :replace, undef: :replace).scrub("\ufffd")
    end
    # The descriptors with the longest values as digests, until they are `over` bytes shorter.
    def shortened(given, over)
      given = given.map { |pairs| (pairs || {}).map { |name, value| [name, text(value)] }.uniq(&:first) }
      while over.positive?
        longest = given.flatten(1).max_by { |_, text| text.bytesize } || [nil, ""]
        raise Fault, "it does not fit into a frame" if longest[1].bytesize <= 33
        over -= longest[1].bytesize - 33 + (longest[1].bytesize > 0xff ? 1 : 0)
        longest[1] = text(longest[1], 33, 0)
      end
      given.map(&:to_h)
    end
    def name(name)
      text = name.is_a?(Symbol) ? name.name : name
      fits = text.is_a?(String) && text.valid_encoding? && (text = utf8(text)).bytesize <= NAME_MAX && NAME.match?(text)
      raise Fault, "a name is text of 1 to 64 bytes without control characters, ':' and '/'" unless fits
      NAMES.size < NAMES_KEPT ? NAMES[name] = encode(text).freeze : encode(text)
    end
  end
  # -- decision: the answer to a request. `rule`, `limit`, `window`, `remaining`, `reset_after` are of the binding
  # rule. `retry_after` (nil: never), `wait` (start after it), `notes` as [kind, rule]. Times are in seconds.
  class Decision
    VERDICTS, STATUSES = %w[allow limit shed wait deny].freeze, [200, 429, 503, 200, 403].freeze
    KINDS = [Integer, String, *[Integer] * 6, Array, Array, Hash].freeze
    OUTCOMES = { "ok" => 0, "error" => 1, "dropped" => 2 }.freeze
    attr_reader :reason
    # `given`: the elements after the id, or a whole frame that is `PLAIN`. Then who has it from the daemon, or why not.
    def initialize(given, verdict, connection, reason = nil)
      @given, @verdict, @connection = given, verdict, connection # a fourth would cost an allocation
      @reason = reason if reason
    end
    def self.from(elements, reason = nil, connection = nil, id = nil)
      given = (elements + ([nil] * 11)).first(11)
      fits = KINDS.zip(given).all? { |kind, value| value.nil? || value.instance_of?(kind) }
      fits &&= given[0]&.between?(0, 4) && given[2, 6].compact.none?(&:negative?) && !given[1]&.encoding.equal?(BINARY)
      raise Fault, "doubtful: #{elements.inspect[0, 200]} as a decision" unless fits
      new(given << id, given[0], connection, reason)
    end
    def allowed? = @verdict.zero? || @verdict == 3
    def degraded? = !@reason.nil?
    def verdict = VERDICTS[@verdict]
    def status = STATUSES[@verdict]
    { rule: 1, limit: 2, remaining: 4, lease: 7 }.each { |name, place| define_method(name) { given[place] } }
    { window: 3, reset_after: 5, retry_after: 6 }.each { |name, at| define_method(name) { given[at]&.fdiv(1_000_000) } }
    def wait = @verdict == 3 ? retry_after || 0.0 : 0.0
    def notes = (given[8] || []).each_slice(2).to_a
    def help = extra["help"]&.to_s
    def unit = extra["unit"]&.to_s || "requests"
    def hidden? = extra["hide"] == true
    def named? = !rule.nil? && !limit.nil? && !hidden? # to whoever is refused
    # The limit of allowed answers too, as ratelimit-headers-11 has it and as X-Ratelimit; when to try again.
    def headers
      names = allowed? || given[6].nil? ? [] : %w[Retry-After X-Ratelimit-Retry-After].first(hidden? ? 1 : 2)
      again = names.to_h { |name| [name, try_again] }
      return again unless named?
      most, left = [limit, remaining || 0].map { |number| [number, (10**15) - 1].min.to_s } # of 15 digits
      rate, name = (given[3] || 0).positive?, quoted(rule)
      unit = ";qu=#{quoted(rate ? self.unit : 'concurrent-requests')}" unless rate && self.unit == "requests"
      { "RateLimit" => "#{name};r=#{left}#{";t=#{whole(given[5] || 0)}" if rate}",
        "RateLimit-Policy" => "#{name};q=#{most}#{unit}#{";w=#{whole(given[3])}" if rate}",
        "X-Ratelimit-Limit" => most, "X-Ratelimit-Remaining" => left }.merge(again)
    end
    # For people: which limit, how much, and when to try again.
    def message
      return allowed? ? "Allowed." : "This request is not allowed." if allowed? || verdict == "deny"
      amount = (given[3] || 0).zero? ? "at once" : "#{unit} in #{Decision.number(given[3])} s"
      what = named? ? "Over the limit #{rule} of #{limit} #{amount}." : "Too many requests."
      full = degraded? ? "The request could not be judged." : "The service is at its capacity."
      again = given[6] ? "Try again in #{try_again} s." : "It asks for more than the limit holds: it can never pass."
      "#{verdict == 'limit' ? what : full} #{again}"
    end
    # Ends the work: ok, error or dropped. Without a lease, or the second time, nothing happens.
    def release(outcome = "ok")
      lease, given[7] = given[7], nil
      @connection&.client&.__send__(:give_back, lease, OUTCOMES.fetch(outcome.to_s, 1), @connection, given[-1]) if lease
    end
    # Starts the lease's time again, for long work; false if it has ended, or the daemon does not answer.
    def renew = lease && @connection ? @connection.client.__send__(:done?, RENEW) { Wire.encode(lease, _1) } : false
    # Microseconds as seconds for people: up to the next millisecond.
    def self.number(time) = (up = -(-time / 1_000)).modulo(1_000).zero? ? up / 1_000 : up.fdiv(1_000)
    def inspect = "#<#{self.class} #{[verdict, *rule, *reason].join(' ')}>" # no lease, no session
    private
    def given = @given.instance_of?(Array) ? @given : @given = Wire.decode(@given.byteslice(4..)).rotate(2) # id last
    def extra = given[10] || {}
    def whole(microseconds) = -(-microseconds / 1_000_000)
    def try_again = [1, whole(given[6])].max.to_s
    def quoted(text) = %("#{text.gsub(/[^ -~]/, '?').gsub(/["\\]/) { "\\#{_1}" }}") # a String of RFC 8941
  end
  # -- connection: one stream, one request at a time; after any doubt it is closed, never used again -------------------
  class Connection
    attr_reader :client, :number, :asked, :socket, :spent
    def initialize(client, number) = (@client, @number, @asked, @unread, @in = client, number, ID_MIN - 1, 0, "".b)
    # `info` goes out with the first request: no round trip more.
    def open(path, info)
      @socket = Socket.new(:UNIX, :STREAM)
      @socket.connect_nonblock(Socket.sockaddr_un(path))
      @room = (@socket.getsockopt(:SOCKET, :SNDBUF).int / 2) - (2 * FRAME_MAX)
      @greeting = [(hello = Wire.encode([HELLO, 0, 1, info])).bytesize].pack("N") << hello
    rescue SystemCallError, ArgumentError => e
      close
      raise Fault.new(why(path, e), "unreachable")
    end
    # Writes a request and reads its reply, of the kind `wanted` (or nil): a Decision, or elements.
    def ask(wanted, out, deadline)
      id = @asked += 1
      @spent ||= id >= ID_MAX
      size = out.bytesize - 4
      out.setbyte(2, size >> 8) if out.setbyte(3, size & 0xff) < size
      out.setbyte(7, id >> 8) && out.setbyte(8, id & 0xff) if wanted
      out, greeted, @greeting = @greeting << out, true, nil if @greeting
      quick = (@unread += wanted ? 0 : SKB_BYTES) < @room # else `send`, which is quicker, could wait for room
      sent = quick ? @socket.send(out, QUIET) : @socket.sendmsg_nonblock(out, QUIET, exception: false)
      raise Fault.new("the daemon did not read in time", "timeout") if sent != out.bytesize
      # Reads before it waits: on a busy CPU the daemon has answered already. A reply there after the deadline counts.
      room, left = SMALL, 1
      while wanted
        got = @socket.read_nonblock(room, exception: false)
        raise EOFError if got.nil?
        if got != :wait_readable
          @unread = 0 # what it answers it has read, and all before it
          if wanted == DECISION && Wire::PLAIN.match?(got) && got.getbyte(3) == got.bytesize - 4 &&
             got.getbyte(8) == id & 0xff && got.getbyte(7) == id >> 8 && @in.empty?
            return Decision.new(got, got.getbyte(9), self)
          end
          @in << got
          room, reply = CHUNK, next_reply(wanted)
          return reply if reply
        end
        raise Fault.new("the daemon did not answer in time", "timeout") unless left > 0
        left = deadline - Process.clock_gettime(Process::CLOCK_MONOTONIC)
        @socket.wait_readable(left > 0 ? left : 0)
      end
    rescue SystemCallError, IOError # after a goodbye it has answered what it received: this request was not
      raise Fault.new("the daemon hung up", "unreachable", !greeted && (@leaving || !sent) ? :again : nil)
    end
    def close = @socket&.close # no `shutdown`, which would reach through to the process this one was forked from
    private
    def next_reply(wanted)
      while @in.bytesize >= 4 && @in.bytesize >= (stop = 4 + @in.unpack1("N"))
        kind, about, *said = Wire.decode(@in.byteslice(4, stop - 4))
        @in = @in.byteslice(stop..)
        mine = about == @asked
        @spent ||= kind == GOODBYE || (mine && !@in.empty?)
        return kind == DECISION ? Decision.from(said, nil, self, about) : said if kind == wanted && mine
        text = "the daemon answered #{kind}: #{said.inspect[0, 200]}"
        raise Fault.new(text, "protocol", :kept) if kind == ERROR && mine && KEEPING.include?(said[0])
        raise Fault, text unless kind == GOODBYE || [kind, about, said[0]] == [WELCOME, 0, 1]
        @leaving ||= kind == GOODBYE
      end
      raise Fault, "doubtful bytes: a frame of #{stop - 4} bytes" if stop && stop > 4 + FRAME_MAX
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
  # -- client: safe in threads, fibers and over forks; opens nothing before the first question. `socket`: the path, else
  # TIDEGATE_SOCKET, else the usual places. `timeout`: seconds for a call. `slots`: requests at once (0: as Puma says).
  class Client
    def initialize(socket: nil, timeout: nil, pool: "default", slots: 0, enabled: true, logger: nil)
      @timeout = timeout || ENV.fetch("TIDEGATE_TIMEOUT_MS", "")[/\A\d+([.]\d+)?\z/]&.to_f&.fdiv(1_000) || TIMEOUT
      fits = (1e-6..TIMEOUT_MAX).cover?(@timeout) && slots >= 0
      raise ArgumentError, "timeout is in seconds, above 0 and at most #{TIMEOUT_MAX}; slots are 0 or more" unless fits
      Wire.name(@pool = pool.to_s)
      @path, @slots, @logger, @logged = (socket || ENV.fetch("TIDEGATE_SOCKET", "")).to_s, slots, logger, {}
      @enabled = enabled && ["", "0"].include?(ENV.fetch("TIDEGATE_DISABLE", ""))
      @open = OPEN[object_id] = {}.compare_by_identity
      begin_anew
      ObjectSpace.define_finalizer(self, FORGOTTEN)
    end
    # May this work start? It ends with `release`. `hit` is for what has no end; `peek` charges nothing.
    { acquire: ACQUIRE, hit: HIT, peek: PEEK }.each do |name, operation| # written out, which saves a Hash and a call
      class_eval <<~RUBY, __FILE__, __LINE__ + 1
        def #{name}(domain, given = nil, cost: 1, priority: nil, idem: nil, queued: nil, max_wait: nil, on_failure: "")
          return Decision.from([0], "disabled") unless @enabled
          begin_anew if @pid != $$
          options = options(idem, queued, max_wait) if idem || queued || max_wait
          out = Wire.judgement(#{operation}, domain, given, cost, priority, options)
          if !@report.empty? && out.bytesize < FRAME_MAX / 2 # where it cannot cost an attribute its text
            report = locked { @report.tap { @report = {} } }
            out = Wire.judgement(#{operation}, domain, given, cost, priority, (options || {}).merge(report))
          end
          answer = exchange(#{operation}, DECISION, out)
          answer.instance_of?(Decision) ? answer : without(answer, on_failure, report)
        rescue StandardError, SystemStackError => e
          without(unwritable(e), on_failure, report)
        end
      RUBY
    end
    # For a block: sleeps off a WAIT, releases at the end; raises Denied if the work may not start.
    def limit(domain, attributes = nil, **more)
      decision = acquire(domain, attributes, **more)
      raise Denied, decision unless decision.allowed?
      sleep(decision.wait) if decision.wait.positive?
      yield decision
    rescue Exception # whatever it is goes on
      decision&.release("dropped")
      raise
    ensure
      decision&.release # the second time nothing happens
    end
    # After the fact: takes from all rates that match, into debt; below 0 gives back. False: from none.
    def charge(domain, attributes = nil, amount = 1)
      done?(CHARGE) { Wire.judgement(CHARGE, domain, attributes, amount, nil, nil, -COST_MAX) }
    end
    # Says how loaded this process is by a measure of its own, from 0 to 1; the daemon forgets it after 3 s.
    def signal(name, value)
      exchange(SIGNAL, nil) do |out|
        Wire.encode((value.clamp(0, 1) * 1_000).round, out << Wire.name(@pool) << Wire.name(name))
      end && nil
    end
    # Whether the daemon answers; false, without asking, if the breaker is open or the client disabled.
    def check = done?(PING, &:itself)
    # How many decisions were made without the daemon, by reason; connections; whether the breaker is open.
    def stats = { missed: @missed.dup, connections: @open.size, breaker_open: !@until.nil? }
    def close = @idle.shift(IDLE_MAX).each { |connection| drop(connection) } && nil # what is idle; it opens again
    # Allows what an application's function left unjudged by raising; for middlewares.
    def callback_failed(what, error) # whose message may have a user's data
      log("#{what} raised #{error.class}: such requests are not limited", once: true) || without("callback")
    end
    # A line about the limiter itself.
    def log(text, once: false)
      return if once && (@logged[text] || @logged.size >= LOGGED_MAX)
      @logged[text] = true if once
      (@logger || Kernel).warn("tidegate: #{text}") && nil
    rescue StandardError
      nil
    end
    private
    # This process' own session: after a fork no lock, count or socket of the parent is used.
    def begin_anew
      locked(ANEW) do
        next if @pid == Process.pid # another thread has
        @open.each_key(&:close).clear
        @lock, @idle, @session, @numbers, @info = Monitor.new, [], Random.urandom(16).b, 0, nil
        @missed, @report, @failures, @until, @pause = Hash.new(0), {}, 0, nil, 0.0
        @told, @pid = nil, Process.pid # of the trouble there is; nil: of none ever
      end
      true
    end
    # Where no lock can be had, within a trap and a finalizer, it goes without.
    def locked(lock = @lock, &block)
      lock.synchronize(&block)
    rescue ThreadError
      yield
    end
    def options(idem, queued, wait) = { idem: idem, queued_us: micro(queued), max_wait_us: micro(wait) }.compact
    def micro(seconds) = seconds && [0, (Float(seconds) * 1e6).round(3).ceil].max # 0.07 * 1e6 is above 70 000
    def done?(operation, &write) = exchange(operation, DONE, &write) == [true]
    # A Decision, DONE's elements, nil where no reply is wanted, or the reason why there is no answer in time that is to
    # be trusted. Never raises. `out`, or what the block adds to how it begins, is the request.
    def exchange(operation, wanted, out = nil)
      return "disabled" unless @enabled
      out ||= (@pid == $$ || begin_anew) && yield(+Wire::HEADS[operation])
      return "breaker" if @until && !(probe = probe?(wanted))
      deadline = Process.clock_gettime(Process::CLOCK_MONOTONIC) + @timeout
      begin
        doubtful = true # until it is known: whatever cuts this short, the connection is not used again
        reply = (connection = @idle.pop || connect).ask(wanted, out, deadline)
        doubtful = false
      rescue Fault => e
        (connection = drop(connection, operation == ACQUIRE)) || retry if e.after == :again
        doubtful = (reply = fault = e).after != :kept
      ensure
        keep = !doubtful && !connection.spent && @idle.size < IDLE_MAX
        keep ? @idle.push(connection) : (connection && drop(connection, doubtful && operation == ACQUIRE))
      end
      fault || probe || @failures != 0 ? settle(reply, wanted, probe) : reply
    rescue StandardError, SystemStackError => e
      unwritable(e)
    end
    def unwritable(error)
      why = error.is_a?(Fault) ? error.message : error.class
      log("a request cannot be written, so the daemon is not asked: #{why}", once: true) || "protocol"
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
      unwritten = exchange(RELEASE, nil) { |out| Wire.encode(outcome, Wire.encode(lease, out)) }
      tell_later("abandoned" => [[connection.number, id]]) if unwritten # the daemon hears of it next
    end
    def without(reason, on_failure = "allow", report = nil)
      locked { @missed[reason] += 1 }
      [report, { "missed" => { reason => 1 } }].compact.each { |news| tell_later(news) } # it did not reach the daemon
      on_failure.to_s != "refuse" ? Decision.from([0], reason) : Decision.from([2, *[nil] * 5, 1_000_000], reason)
    end
    def tell_later(news)
      sum = ->(_, old, new) { old.is_a?(Hash) ? old.merge(new) { |_, a, b| a + b } : (new + old).first(ABANDONED_MAX) }
      locked { @report = @report.merge(news, &sum) }
    end
    # The breaker is open: may this one find out whether it still must be? One at a time; should it die, another may.
    def probe?(wanted, now = Process.clock_gettime(Process::CLOCK_MONOTONIC))
      !wanted.nil? && now >= (@until || 0) && locked { now >= (@until || 0) && (@until = now + PAUSE_MAX) }
    end
    # What came of it is counted. A first failure is told at once, others as a state.
    def settle(reply, wanted, probe)
      return reply if wanted.nil? && !reply.instance_of?(Fault) # nobody has answered
      fault = reply if reply.instance_of?(Fault) && reply.after != :kept
      change = locked do
        @failures = fault ? @failures + 1 : 0
        if fault.nil? then @until, @pause = nil, 0.0
        elsif probe || @failures == FAILURES_MAX
          @pause = (2 * @pause).clamp(PAUSE_MIN, PAUSE_MAX)
          @until = Process.clock_gettime(Process::CLOCK_MONOTONIC) + (@pause * rand(0.8..1.2))
        end
        trouble = !fault.nil? && (@told != false || @failures >= FAILURES_MAX)
        (trouble != (@told || false)).tap { @told = trouble }
      end
      again = "the daemon answers again; #{@missed.values.sum} requests so far were not limited"
      log(fault ? "#{fault.message}; requests are not limited" : again) if change
      log("#{reply.message}; such requests are not limited", once: true) if reply.instance_of?(Fault) && !fault
      reply.instance_of?(Fault) ? reply.reason : reply
    end
  end
  TIMEOUT, TIMEOUT_MAX, ID_MIN, ID_MAX = 0.020, 10, 0x100, 0xffff # then another connection: a held lease keeps its id
  SMALL, CHUNK, SKB_BYTES, QUIET = 256, 4_096, 1_440, Socket::MSG_NOSIGNAL | Socket::MSG_DONTWAIT
  ABANDONED_MAX, IDLE_MAX, LOGGED_MAX, FAILURES_MAX, PAUSE_MIN, PAUSE_MAX = 512, 64, 100, 3, 1.0, 5.0
  # Each client's sockets, by its object_id: a WeakMap of clients yields dead ones in Ruby 3.1.
  OPEN, FORGOTTEN, ANEW = {}, ->(id) { OPEN.delete(id) }, Monitor.new
  # A child closes what it has inherited. Its clients begin anew where they are asked, by the process's id.
  Process.singleton_class.prepend(Module.new do
    def _fork = super.tap { |pid| OPEN.each_value { |sockets| sockets.each_key(&:close) } if pid.zero? }
  end)
  require_relative "tidegate/puma_slots" if File.exist?("#{__dir__}/tidegate/puma_slots.rb") # not within a trap
  # The client of the program, made by `configure` or, with the defaults, where it is first asked.
  Settings = Struct.new(:socket, :timeout, :pool, :slots, :enabled, :logger)
  extend SingleForwardable
  def_delegators :client, :acquire, :hit, :peek, :limit, :charge, :signal, :check, :stats, :close
  singleton_class.attr_writer :client
  def self.client = @client ||= Client.new
  def self.configure
    yield settings = Settings.new
    self.client = Client.new(**settings.to_h.compact)
  end
end
