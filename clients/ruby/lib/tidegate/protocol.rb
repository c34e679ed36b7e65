# frozen_string_literal: true

# The protocol: MessagePack within its limits, requests, decisions. Uses no socket.
require "digest/sha2"

module Tidegate
  VERSION = "0.1.0"

  # Raised by `limit` for a refused request; `decision` has the reason and the retry time.
  class Denied < StandardError
    attr_reader :decision

    def initialize(decision) = super((@decision = decision).message)
    # The status of the response, which Sinatra uses.
    def http_status = @decision.status
  end

  # Raised for a cost or amount that is negative where it must not be, or not an integer.
  class InvalidCost < ArgumentError; end

  # Raised for another `on_failure` than allow and refuse.
  class InvalidAction < ArgumentError; end

  # Raised for the result of a callback. Its message is the result's class and the wanted one, never a value.
  class WrongResult < TypeError; end

  # An unsendable request, a failed exchange or an invalid reply; internal. Flags: `:resend` (the daemon has not
  # processed it), `:keep` (the connection stays usable), `:absent` (no process listens), `:full` (the daemon accepts no
  # further connection), `:own` (not a failure of the daemon).
  class Fault < StandardError
    attr_reader :reason
    attr_accessor :started

    def initialize(text, reason = "protocol", *flags) = super(text).tap { @reason, @flags = reason, flags }
    def flag?(flag) = @flags.include?(flag)
    def refusal? = REFUSALS.include?(@reason)
    # True if the breaker counts it as a failure of the daemon.
    def counts? = !refusal? && (@flags & %i[keep own]).empty?
  end

  HELLO, ACQUIRE, RELEASE, HIT, PEEK, CHARGE, RENEW, SIGNAL, PING = *0..8
  WELCOME, DECISION, DONE, ERROR, GOODBYE = *0..4
  BUSY, FORBIDDEN, INTERNAL = 8, 9, 10 # ERROR codes; BUSY: no further connection
  KEEPING = [5, 6, 7, 10, 11].freeze # ERROR codes of one request: replies to others are not doubtful
  # ERROR codes that refuse the request; every other code is a failure of the daemon.
  REFUSING = { 6 => "invalid", 7 => "quota", 9 => "forbidden", 11 => "not_allowed" }.freeze
  REFUSALS = REFUSING.values.freeze
  VALUE_MAX, VALUE_KEPT, IDEM_MAX, IDEM_KEPT, NAME_MAX = 1_024, 960, 64, 30, 64
  PAIRS_MAX, DESCRIPTORS_MAX, NAMES_KEPT, DEPTH_MAX, FRAME_MAX = 16, 8, 1_024, 4, 16_384
  INTEGERS, COST_ABOVE_ALL = (-(1 << 63)..((1 << 64) - 1)), 1 << 32 # range in a frame; a cost above every limit
  BINARY, UTF_8 = Encoding::BINARY, Encoding::UTF_8
  NEVER = { Object => :never }.freeze # exceptions of other threads (Timeout, Thread#raise, Thread#kill) arrive later

  # Encodes and decodes frames.
  module Wire
    # Heads of values: first byte of the short form, sizes below this, first byte of longer forms, their formats.
    FORMS = {
      uint: [0x00, 128, 0xcc, %w[C n N Q>]], int: [0x100, 32, 0xd0, %w[c s> l> q>]], str: [0xa0, 32, 0xd9, %w[C n N]],
      bin: [0x00, 0, 0xc4, %w[C n N]], array: [0x90, 16, 0xdc, %w[n N]], map: [0x80, 16, 0xde, %w[n N]]
    }.freeze
    WIDTHS = { "C" => 1, "n" => 2, "N" => 4, "Q>" => 8, "c" => 1, "s>" => 2, "l>" => 4, "q>" => 8 }.freeze
    ACTIONS = ["allow", "refuse", :allow, :refuse, nil].freeze
    CONSTANTS = { nil => 0xc0, false => 0xc2, true => 0xc3 }.freeze
    STARTS = FORMS.each_with_object(CONSTANTS.to_h { |value, byte| [byte, [nil, value, 0]] }) do |(kind, form), starts|
      short, below, code, forms = form
      (kind == :int ? -below...0 : 0...below).each { |size| starts[short + size] = [kind, size, 0] }
      forms.each_with_index { |packed, i| starts[code + i] = [kind, packed, WIDTHS[packed]] }
    end.freeze
    NAME, NAMES = %r{\A[^\x00-\x1f\x7f-\u009f:/]+\z}, {} # cache of encoded names
    rule = lambda do |low, high| # a text of `low` to `high` printable characters, by bisection
      middle = (low + high) / 2
      next "\\x#{(0xa0 | low).to_s(16)}[ -~]{#{low}}" if low == high

      "(?:(?=[\\xa0-\\x#{(0xa0 | middle).to_s(16)}])#{rule[low, middle]}|#{rule[middle + 1, high]})"
    end
    rated = "(?:\\x82|(?<blocked>\\x83))\\xa4rate#{rule[3, 15]}(?(<blocked>)\\xa7blocked\\xc3)"
    extra = "(?:\\xc0|(?:\\x81|#{rated})\\xa6digest\\xd9\\x20[0-9a-f]{32})"
    # Matches the most common decision (every field, a short ASCII name, no notes, an id of two bytes; of a refusal also
    # rate, blocked and digest), which is decoded only when a field is read.
    plain = "\\A\0\0\0.\\x9d\\x01\\xcd..[\0-\\x04](?:#{rule[1, 31]}|\\xc0)" \
            "#{'(?:\xce....|[\0-\x7f\xc0]|\xcc.|\xcd..|\xcf.{8})' * 6}\\xc0\\xc0#{extra}\\z"
    PLAIN = Regexp.new(plain.b, Regexp::MULTILINE | Regexp::NOENCODING)
    # Start of a frame: room for its size, number of elements, operation, room for its id (nil: no reply).
    HEADS = [0, 5, 4, 5, 5, 5, 3, 5, 2].each_with_index.map do |count, operation|
      id = [RELEASE, SIGNAL].include?(operation) ? [0xc0] : [0xcd, 0, 0]
      [0, 0x90 | count, operation, *id].pack("NC*").freeze
    end.freeze

    module_function

    # Appends the shortest MessagePack of nil, a bool, an Integer, a String (binary ones as bin), an Array or a Hash.
    def encode(value, out = String.new)
      case value
      when nil, true, false then out << CONSTANTS[value]
      when Integer then head(value.negative? ? :int : :uint, value, out)
      when String
        binary = value.encoding == BINARY
        head(binary ? :bin : :str, (value = binary ? value : utf8(value)).bytesize, out) << value.b
      when Array then value.each_with_object(head(:array, value.size, out)) { |part, to| encode(part, to) }
      when Hash then value.each_with_object(head(:map, value.size, out)) { |(k, v), to| encode(v, encode(k.to_s, to)) }
      else raise Fault.new("a #{value.class} cannot be part of a frame", "invalid")
      end
    end

    def head(kind, size, out)
      short, below, code, forms = FORMS[kind]
      least = size.negative? ? ~size : size
      return out << ((short + size) & 0xff) if least < below

      i = forms.index { |packed| least < 1 << ((8 * WIDTHS[packed]) - (size.negative? ? 1 : 0)) }
      i ? out << (code + i) << [size].pack(forms[i]) : raise(Fault.new("a number too large for a frame", "invalid"))
    end

    # Decodes `data`, exactly one array. Raises a Fault for bytes that the protocol forbids.
    def decode(data)
      message, stop = value(data, 0, DEPTH_MAX)
      raise IndexError unless message.instance_of?(Array) && stop == data.bytesize

      message
    rescue IndexError
      raise Fault, "malformed frame: not exactly one array of valid values"
    end

    # Returns the value at `at` and the offset after it; `depth`: levels left for nesting.
    def value(data, at, depth)
      kind, size, width = STARTS.fetch(data.getbyte(at)) # raises for nil, after the end
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

    # Encodes a request or charge without its size and id. `given`: a Hash or pairs (one descriptor), an Array of Hashes
    # (several), or nil. Raises a Fault `invalid` for names, counts and sizes that the protocol forbids.
    def request(operation, domain, given, cost, priority = nil, options = nil)
      out = +HEADS[operation]
      out << (NAMES[domain] || name(domain))
      if given.instance_of?(Array) && given.first.is_a?(Hash)
        raise Fault.new("more than #{DESCRIPTORS_MAX} descriptors", "invalid") if given.size > DESCRIPTORS_MAX

        (many = given).each_with_object(out << (0x90 | given.size)) { |one, to| descriptor(one, to) }
      else
        descriptor(given, out << 0x91)
      end
      cost.equal?(1) ? out << 1 : encode(cost(cost, operation == CHARGE), out)
      named = priority && priority_name(priority)
      count = 5
      (count += 1) && out << (named || 0xc0) if (named || options) && operation != CHARGE
      (count += 1) && encode(options, out) if options
      out.setbyte(4, 0x90 | count)
      return out if (over = out.bytesize - 4 - FRAME_MAX) <= 0

      request(operation, domain, shortened(many || [given], over), cost, priority, options)
    end

    # Validates a cost and clamps it to the numbers that a frame holds. Raises InvalidCost.
    def cost(cost, negative)
      if cost.is_a?(Hash)
        sent = cost.to_h { |unit, count| [name(unit) && unit.to_s, number(count, negative)] }
        sent.size == cost.size ? sent : raise(InvalidCost, "a cost names each unit once")
      else
        number(cost, negative)
      end
    end

    def number(count, negative)
      fits = count.is_a?(Integer) && (negative || !count.negative?)
      shown = count.is_a?(Numeric) ? count : "a #{count.class}"
      raise InvalidCost, "a cost is an integer#{', 0 or more' unless negative}, not #{shown}" unless fits

      return count if INTEGERS.cover?(count)

      count.negative? ? -COST_ABOVE_ALL : COST_ABOVE_ALL
    end

    # Returns the encoded name of a priority; nil for an invalid name: the rules decide.
    def priority_name(priority)
      NAMES[priority] || name(priority)
    rescue Fault
      nil
    end

    # Returns attributes as a Hash or an Array of pairs. Raises a Fault for others.
    def fields(given)
      return given || {} if given.nil? || given.is_a?(Hash)

      each = %i[each_pair each].find { |method| given.respond_to?(method) }
      pairs = given.to_enum(each).to_a if each
      fits = pairs&.all? { |pair| pair.instance_of?(Array) && pair.size == 2 }
      fits ? pairs : raise(Fault.new("attributes are a Hash or pairs, not #{given.class}", "invalid"))
    end

    def descriptor(given, out)
      at, count = (out << 0x90).bytesize - 1, 0
      fields(given).each do |key, value|
        name = NAMES[key] || name(key)
        unless String === value && (size = value.bytesize) < 32 && value.ascii_only?
          size = (value = text(value, name: key).b).bytesize
        end
        next if size == 0

        out << name
        size < 32 ? out << (0xa0 | size) << value : head(:str, size, out) << value
        count += 1
        raise Fault.new("more than #{PAIRS_MAX} attributes", "invalid") if count > PAIRS_MAX
      end
      count < 8 ? out.setbyte(at, 0x90 | (2 * count)) : out[at, 1] = [0xdc, 2 * count].pack("Cn")
    end

    # Returns the text of an attribute, the end of a long one replaced by a digest; empty for nil.
    def text(value, most = VALUE_MAX, kept = VALUE_KEPT, name: "idem")
      text = utf8(string(value, name))
      text.bytesize > most ? "#{text.byteslice(0, kept).scrub('')}~#{digest(text)}" : text
    end

    def object?(value) = Object === value # not a BasicObject
    def digest(text) = Digest::SHA256.hexdigest(text)[0, 32]

    # Returns an idempotency key as text or bytes, shortened by a digest above 64 bytes; nil if empty.
    def idem(key)
      text = string(key)
      key = key.equal?(text) && text.encoding == BINARY ? text : utf8(text)
      return key.empty? ? nil : key if key.bytesize <= IDEM_MAX

      kept = key.byteslice(0, IDEM_KEPT)
      (kept.encoding == BINARY ? kept : kept.scrub("")) << "~#{digest(key)}"
    end

    # Converts a value, deferring exceptions of other threads, so that only those of its `to_s` are rescued.
    def string(value, name = "idem")
      case value # also a BasicObject
      when String then return value
      when Symbol then return value.name
      when Integer then return value.to_s
      end

      text = Thread.handle_interrupt(NEVER) do
        "#{value}" # rubocop:disable Style/RedundantInterpolation -- a String whatever `to_s` returns
      rescue StandardError => e
        raise Fault.new("a value has no text: #{e.class}", "invalid")
      end
      # The text of an object without its own, #<User:0x…>: each object would be another caller.
      return text if !text.b.match?(/:0x\h{8}/) || !text.b.include?("#<")

      raise Fault.new("the attribute #{name} has no text; help: send its id", "invalid")
    end

    def utf8(text)
      text = text.dup.force_encoding(UTF_8) if text.encoding == BINARY
      text.encode(UTF_8, invalid: :replace, undef: :replace).scrub("\ufffd")
    rescue EncodingError # no conversion exists: keep the bytes
      text.b.force_encoding(UTF_8).scrub("\ufffd")
    end

    # Returns descriptors as pairs of names and texts, without empty ones.
    def pairs(given)
      given = [given] unless given.instance_of?(Array) && given.first.is_a?(Hash)
      texts = given.map { |one| fields(one).map { |name, value| [utf8(name.to_s), text(value)] } }
      texts.map { |pairs| pairs.reject { |_, text| text.empty? } }
    end

    # Replaces the longest values of the descriptors by digests until they are `over` bytes shorter.
    def shortened(given, over)
      given = given.map { |pairs| fields(pairs).map { |name, value| [name, text(value)] }.uniq(&:first) }
      while over.positive?
        longest = given.flatten(1).max_by { |_, text| text.bytesize } || [nil, ""]
        raise Fault.new("it does not fit into a frame", "invalid") if longest[1].bytesize <= 33

        over -= longest[1].bytesize - 33 + (longest[1].bytesize > 0xff ? 1 : 0)
        longest[1] = text(longest[1], 33, 0)
      end
      given.map(&:to_h)
    end

    # Returns the encoded name. Raises a Fault for an invalid name.
    def name(name)
      text = name.is_a?(Symbol) ? name.name : name
      fits = text.is_a?(String) && text.valid_encoding? && (text = utf8(text)).bytesize <= NAME_MAX && NAME.match?(text)
      raise Fault.new("a name is text of 1 to 64 bytes without control characters, ':' and '/'", "invalid") unless fits

      NAMES.size < NAMES_KEPT ? NAMES[name] = encode(text).freeze : encode(text)
    end

    # Validates a name in the configuration of a program. Raises ArgumentError.
    def check_name(name, option)
      name(name)
    rescue Fault => e
      raise ArgumentError, "#{option}: #{e.message}, not #{name.inspect}"
    end

    # Validates an `on_failure`, and returns it as text. nil: allow. Raises InvalidAction.
    def action(given)
      return given.to_s if ACTIONS.include?(given)

      raise InvalidAction, "on_failure is allow or refuse, not #{given.inspect[0, 99]}"
    end

    def check_cost(cost)
      cost(cost, false) unless cost.respond_to?(:call)
    rescue Fault => e
      raise ArgumentError, "cost: #{e.message}"
    end
  end

  # The answer to a request. `rule`, `limit`, `window`, `remaining` and `reset_after` describe the binding rule;
  # `retry_after` (nil: never), `wait` (sleep before the start) and the other times are in seconds; `notes` are
  # [kind, rule].
  class Decision
    VERDICTS, STATUSES = %w[allow limit shed wait deny].freeze, [200, 429, 503, 200, 403].freeze
    KINDS = [Integer, String, *[Integer] * 6, Array, Array, Hash].freeze
    OUTCOMES = { "ok" => 0, "error" => 1, "dropped" => 2 }.freeze
    # @return [String, nil] `unreachable`, `timeout`, `invalid` and so on; nil of a decision by the daemon
    attr_reader :reason
    # @return [String, nil] of a refusal by the daemon, for `tidegate why`
    attr_accessor :domain
    attr_writer :idem

    # `given`: the elements after the id, or a whole frame that is `PLAIN`.
    def initialize(given, verdict, connection, reason = nil)
      @given, @verdict, @connection = given, verdict, connection # a fourth would cost an allocation
      @reason = reason if reason
    end

    def self.from(elements, reason = nil, connection = nil, id = nil)
      given = (elements + ([nil] * 11)).first(11)
      fits = KINDS.zip(given).all? { |kind, value| value.nil? || value.instance_of?(kind) }
      fits &&= given[0]&.between?(0, 4) && given[2, 6].compact.none?(&:negative?) && !given[1]&.encoding.equal?(BINARY)
      fits &&= given[8].nil? || (given[8].size.even? && given[8].all? { |note| note && text?(note) })
      fits &&= given[10].nil? || EXTRA.all? { |name, fit| fit.call(given[10][name]) }
      raise Fault, "malformed decision: #{elements.inspect[0, 200]}" unless fits

      new(given << id, given[0], connection, reason)
    end

    def self.text?(value) = value.nil? || (value.instance_of?(String) && !value.encoding.equal?(BINARY))
    private_class_method :text?
    EXTRA = { %w[help unit rate digest] => method(:text?), %w[hide blocked] => [nil, true, false].method(:include?) }
            .flat_map { |names, fits| names.map { |name| [name, fits] } }.freeze
    private_constant :EXTRA

    # @return [Boolean] true if the work may start
    def allowed? = @verdict.zero? || @verdict == 3
    # True if it was made without the daemon.
    def degraded? = !@reason.nil? && !REFUSALS.include?(@reason)
    # @return [String] allow, limit, shed, wait or deny
    def verdict = VERDICTS[@verdict]
    def status = STATUSES[@verdict]
    # @!attribute [r] rule
    #   @return [String, nil]
    # @!attribute [r] retry_after
    #   @return [Float, nil] seconds
    { rule: 1, limit: 2, remaining: 4, lease: 7 }.each { |name, at| define_method(name) { given[at] } }
    { window: 3, reset_after: 5, retry_after: 6 }.each { |name, at| define_method(name) { given[at]&.fdiv(1_000_000) } }
    def wait = @verdict == 3 ? retry_after || 0.0 : 0.0
    def notes = (given[8] || []).each_slice(2).to_a
    # True if the domain does not exist. A plain reply has no notes.
    def unmatched? = note?("domain")
    # True if no rule of the domain matched.
    def no_rule? = note?("rule")
    def help = extra["help"]&.to_s
    def unit = extra["unit"]&.to_s || "requests"
    # The caller's key of the rule that refuses, for `tidegate why DOMAIN --digest HEX`; nil if the rule is hidden.
    def digest = extra["digest"]&.to_s
    def hidden? = extra["hide"] == true
    # True if an operator or the rule itself blocks the caller for a time.
    def blocked? = extra["blocked"] == true && verdict == "limit"
    # True if the response names the rule and its limit.
    def named? = !rule.nil? && !limit.nil? && !hidden?

    # Returns RateLimit (ratelimit-headers-11), X-Ratelimit and, of a refusal, Retry-After headers.
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

    # One sentence for people: the rule, its limit, and the time of a retry.
    def message
      return allowed? ? "Allowed." : "This request is not allowed." if allowed? || verdict == "deny"

      over = named? ? "Over the limit #{rule} of #{quota}." : "Too many requests."
      over = "This caller is blocked." if blocked?
      full = reason ? "The request could not be judged." : "The service is at its capacity."
      again = given[6] ? "Try again in #{try_again} s." : "It asks for more than the limit holds: it can never pass."
      "#{verdict == 'limit' ? over : full} #{again}"
    end

    # Returns the quota as the rule writes it, if the daemon sends that, else the limit and its window.
    def quota
      count, periods, period = RATE.match(extra["rate"].to_s)&.captures
      return "#{limit} #{(given[3] || 0).zero? ? 'at once' : "#{unit} in #{Decision.number(given[3])} s"}" unless count

      amount, noun = "#{count} #{count == '1' && unit == 'requests' ? 'request' : unit}", PERIODS.fetch(period, period)
      ["", "1"].include?(periods) ? "#{amount} a#{'n' if noun == 'hour'} #{noun}" : "#{amount} in #{periods} #{noun}s"
    end

    RATE = %r{\A([0-9]{1,10})/([0-9]{0,10})(ms|s|min|h|day|week|month)\z}
    PERIODS = { "ms" => "millisecond", "s" => "second", "min" => "minute", "h" => "hour" }.freeze
    private_constant :RATE, :PERIODS

    # Ends the lease with the outcome ok, error or dropped; does nothing without a lease or the second time.
    # @param outcome [String, Symbol]
    def release(outcome = "ok")
      Thread.handle_interrupt(NEVER) do
        outcome = Wire.object?(outcome) ? OUTCOMES.fetch(outcome.to_s, 1) : 1
        lease, given[7] = given[7], nil
        @reference ||= lease
        @connection&.client&.__send__(:release_lease, lease, outcome, @connection, given[-1]) if lease
      end && nil
    end

    # Restarts the lease's time; false if the lease has expired or the daemon does not answer.
    def renew = lease && @connection ? @connection.client.__send__(:done?, RENEW) { Wire.encode(lease, _1) } : false
    # The reference for a refund: the lease, ended or not, else the idempotency key.
    def reference = lease || @reference || @idem
    # Converts microseconds to seconds, rounded up to milliseconds.
    def self.number(time) = (up = -(-time / 1_000)).modulo(1_000).zero? ? up / 1_000 : up.fdiv(1_000)
    # Without the lease, a secret.
    def inspect = "#<#{self.class} #{[verdict, *domain, *rule, *digest, *reason].join(' ')}>"
    # A copy has all fields but the connection: only the original can release the lease.
    def marshal_dump = [given, @verdict, @reason, @idem, @domain]
    def marshal_load(dumped) = (@given, @verdict, @reason, @idem, @domain = dumped)

    private

    def note?(reason) = @given.instance_of?(Array) && !@given[8].nil? && notes.include?(["unmatched", reason])
    def given = @given.instance_of?(Array) ? @given : @given = Wire.decode(@given.byteslice(4..)).rotate(2) # id last
    def extra = given[10] || {}
    def whole(microseconds) = -(-microseconds / 1_000_000)
    def try_again = [1, whole(given[6])].max.to_s
    def quoted(text) = %("#{text.gsub(/[^ -~]/, '?').gsub(/["\\]/) { "\\#{_1}" }}") # a String of RFC 8941
  end
end
