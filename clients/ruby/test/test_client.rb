# frozen_string_literal: true

# The promises of a client, against a scripted daemon.
require "open3"
require_relative "support"

class TestClient < Support::Case
  include Support

  # -- a request and its reply -----------------------------------------------------------------------------------------

  def test_sends_hello_with_the_first_request
    played
    assert_equal "per-user", client.acquire("api", { user: "u1" }).rule
    assert client.hit("api", { "user" => "u1" }, cost: 3, priority: :post).allowed?
    assert client.peek("api", [%w[user u1]], idem: "x", queued: 0.5, max_wait: 0).allowed?
    hello, acquire, hit, peek = played.seen
    session = hello[3].delete("session")
    assert_equal [0, 0, 1], hello[0, 3]
    assert_equal [16, Encoding::BINARY], [session.bytesize, session.encoding]
    assert_equal({ "client" => "ruby/0.1.0", "pid" => Process.pid, "pool" => "default", "slots" => 0, "connection" => 1 },
                 hello[3])
    assert_equal [1, FIRST, "api", [%w[user u1]], 1], acquire
    assert_equal [3, FIRST + 1, "api", [%w[user u1]], 3, "post"], hit
    assert_equal [4, FIRST + 2, "api", [%w[user u1]], 1, nil, { "idem" => "x", "queued_us" => 500_000, "max_wait_us" => 0 }], peek
  end

  def test_several_descriptors
    played
    client.hit("api", [{ user: "u1" }, { message_type: "marketing", to: 7 }])
    assert_equal [%w[user u1], %w[message_type marketing to 7]], played.seen.last[3]
  end

  def test_sends_pool_and_slots
    played
    assert make_client(pool: "web", slots: 8).check
    assert_equal ["web", 8], played.seen[0][3].values_at("pool", "slots")
  end

  def test_invalid_options_of_a_client_raise
    slots = [-1, 2.0, 2.5, 1 << 32, 10**30, nil, "4", true].map { |number| { slots: number } }
    [{ timeout: 0 }, { timeout: -1 }, { pool: "a/b" }, { pool: "" }, *slots].each do |options|
      assert_raises(ArgumentError, options.inspect) { Tidegate::Client.new(**options) }
    end
  end

  def test_a_large_reply
    entries = Array.new(150) { ["rule" * 20, 1, 2, 3, 4] }
    played.script = ->(_, message) { [1, message[1], *ALLOW, nil, nil, entries] }
    assert_equal [nil, nil], reasons(hits(client, 2))
    assert_equal 1, client.stats[:connections]
  end

  def test_ids_are_read_in_every_form
    [0x100, 0x1ff, 0x200, 0xfffe].each do |id|
      played.script = ->(_, message) { [1, message[1], *LIMIT, nil, nil, nil, nil] }
      hits(client)
      connection = client.instance_variable_get(:@idle).last
      connection.instance_variable_set(:@asked, id - 1)
      assert_equal ["limit", "per-user", 40, 0.05], hits(client).first.then { |d| [d.verdict, d.rule, d.limit, d.retry_after] }
      assert_equal id, played.seen.last[1]
      connection.instance_variable_set(:@asked, id - 1)
      played.script = lambda do |_, message| # the widest encoding of the same value
        Support.frame("\x9d\x01\xcf".b << [message[1]].pack("Q>") << Support.frame(LIMIT).byteslice(5..) << ("\xc0".b * 4))
      end
      assert_equal "limit", hits(client).first.verdict
    end
    assert_equal 1, client.stats[:connections]
  end

  # A repeated id on one connection could end the lease of the first request.
  def test_after_the_last_id_comes_another_connection
    played
    hits(client)
    client.instance_variable_get(:@idle).last.instance_variable_set(:@asked, 0xfffd)
    assert_equal [nil] * 4, reasons(hits(client, 4))
    assert_equal [FIRST, 0xfffe, 0xffff, FIRST, FIRST + 1], played.requests.map { |message| message[1] }
    assert_equal 1, client.stats[:connections]
  end

  def test_connects_with_the_first_request
    make_client
    assert_equal({ missed: {}, refused: {}, connections: 0, breaker_open: false }, Tidegate::Client.new(socket: "relative").stats)
    assert_empty Dir.children(@directory)
  end

  def test_connections_are_used_again_and_closed
    played
    hits(client, 50)
    assert_equal 1, client.stats[:connections]
    2.times { client.close }
    assert_equal 0, client.stats[:connections]
    assert_equal [nil], reasons(hits(client)) # the client may be used again
    assert_equal [1, 2], played.seen.select { |m| m[0].zero? }.map { |m| m[3]["connection"] }
  end

  def test_check
    played
    assert client.check
    played.stop
    refute client.check
  end

  # -- 1, 2: the deadline, and malformed replies -----------------------------------------------------------------------

  def test_an_arrived_reply_counts_after_the_deadline
    hits(client.tap { played })
    arrived = Queue.new
    played.script = lambda do |connection, message|
      connection.write(Support.frame([1, message[1], *LIMIT]))
      arrived << true && nil
    end
    real, times = Process.method(:clock_gettime), 0
    replace(Process, :clock_gettime) do |*given|
      next real.call(*given) unless Thread.current == Thread.main # minitest reads the clock, too: only the two readings count

      times += 1
      if times == 2 # the process sleeps after the write of the request
        arrived.pop
        sleep(0.05)
      end
      times == 1 ? 0.0 : 100.0
    end
    decision = hits(client).first
    @undone.pop.call
    assert_equal "limit", decision.verdict
  end

  # -- input ----------------------------------------------------------------------------------------------------------

  def assert_refused(reason, decision)
    assert_equal ["shed", 503, reason, false, false], [decision.verdict, decision.status, decision.reason, decision.degraded?, decision.allowed?]
    assert_includes decision.message, "could not be judged"
  end

  odd = Class.new { def to_s = raise(ZeroDivisionError) }
  INVALID = [
    ["a/b", nil, {}], ["", nil, {}], [nil, nil, {}], [["x"], nil, {}], [7, nil, {}],
    ["api", (1..17).to_h { |i| ["k#{i}", "v"] }, {}], ["api", { "a:b" => "c" }, {}], ["api", "text", {}], ["api", 5, {}],
    ["api", [[1, 2]], {}], ["api", { 1 => "a" }, {}], ["api", { 1 => nil }, {}], ["api", { x: odd.new }, {}], ["api", [{ a: 1 }] * 9, {}],
    ["api", [{ a: 1 }, ["b", 2]], {}], ["api", nil, { cost: { "a/b" => 1 } }],
    ["api", nil, { cost: (1..2_000).to_h { |i| ["unit-number-#{i}", 1] } }], ["api", nil, { queued: Float::NAN }],
    ["api", nil, { queued: "soon" }], ["api", nil, { queued: [] }], ["api", nil, { max_wait: Float::INFINITY }]
  ].freeze

  INVALID.each_with_index do |(domain, given, options), index|
    define_method("test_refuses_an_invalid_request_#{index}") do
      client = make_client(fallback: "100/s")
      decisions = Array.new(3) { client.acquire(domain, given, **options) }
      decisions.each { |decision| assert_refused("invalid", decision) }
      assert_equal 1, @log.lines.size
      assert_equal [{ "invalid" => 3 }, {}, false], client.stats.values_at(:refused, :missed, :breaker_open)
      assert_empty played.seen
    end
  end

  # A BasicObject has not even the methods by which others are refused.
  def test_refuses_a_basic_object_in_any_place
    odd = BasicObject.new
    asked = { domain: [odd], attributes: ["api", odd], descriptor: ["api", [odd]], name: ["api", [[odd, 1]]] }.transform_values { |given| [given, {}] }
    asked[:value] = [["api", { user: odd }], {}]
    %i[cost priority idem queued max_wait on_failure fallback].each { |name| asked[name] = [["api"], { name => odd }] }
    asked[:unit] = [["api"], { cost: { tokens: odd } }]
    asked.each { |name, (given, options)| assert_equal "invalid", client.hit(*given, **options).reason, name }
    assert_raises(Tidegate::Denied) { client.limit(odd) { flunk } }
    refute client.charge("api", odd)
    refute client.charge("api", nil, odd)
    [[odd, 1], ["lag", odd]].each { |name, value| assert_nil client.signal(name, value) }
    assert_empty played.seen
    others = Class.new { def each_pair = nil.odd }
    assert_equal :odd, assert_raises(NoMethodError) { client.hit("api", others.new) }.name # passes
  end

  def test_names_in_another_encoding
    played.script = ->(_, message) { [1, message[1], 0, *[nil] * 5, 0, nil, %w[unmatched rule]] }
    assert client.hit("grün".encode("UTF-16LE"), { "é".encode("UTF-16LE") => "1", "ü" => "2" }).allowed?
    assert_includes @log.lines[0], 'no rule of the domain "grün" matches a request with the attributes é, ü'
  end

  def test_a_release_with_an_odd_outcome_ends_the_lease
    played.script = method(:grant)
    client.acquire("api").release(BasicObject.new)
    assert_equal 1, Support.eventually { played.seen.find { |message| message[0] == 2 } }[3]
  end

  [-1, 1.5, 1.0, Float::NAN, "1", nil, true, { tokens: -1 }, { tokens: 1.5 }, { tokens: nil }, { tokens: 1, "tokens" => 2 }].each do |cost|
    define_method("test_raises_for_the_cost_#{cost.inspect}") do
      %i[acquire hit peek].each { |name| assert_raises(ArgumentError) { client.public_send(name, "api", nil, cost: cost) } }
      assert_raises(ArgumentError) { client.limit("api", nil, cost: cost) { flunk } }
      assert_equal [[], [], {}], [played.seen, @log.lines, client.stats[:missed]]
      assert make_client(enabled: false).hit("api", cost: cost).allowed?
    end
  end

  def test_sends_a_large_cost_and_leaves_it_to_the_daemon
    played
    largest = (1 << 64) - 1
    { 1 << 32 => 1 << 32, largest => largest, largest + 1 => 1 << 32, 10**30 => 1 << 32 }.each do |cost, sent|
      assert_nil client.hit("api", nil, cost: cost).reason
      assert_equal sent, played.seen.last[4]
      assert_nil client.hit("api", nil, cost: { tokens: cost }).reason
      assert_equal({ "tokens" => sent }, played.seen.last[4])
    end
  end

  def test_an_invalid_priority_counts_as_none
    played
    ["a/b", "", 7, 1.5, "x" * 65, "a\nb", "\xff", false, [], Object.new].each do |priority|
      assert_nil client.hit("api", nil, priority: priority).reason, priority.inspect
      assert_equal 5, played.seen.last.size
    end
    assert_nil client.hit("api", nil, priority: "a/b", max_wait: 0).reason
    assert_equal [nil, { "max_wait_us" => 0 }], played.seen.last[5, 2]
  end

  def test_a_long_idem_ends_in_its_digest
    played
    wide, bytes = "é" * 40, ("\xff" * 65).b
    { "x" * 64 => "x" * 64, "x" * 65 => "#{'x' * 30}~#{sha('x' * 65)}", wide => "#{'é' * 15}~#{sha(wide)}",
      "x#{wide}" => "x#{'é' * 14}~#{sha("x#{wide}")}", bytes => ("\xff" * 30).b + "~#{sha(bytes)}", 7 => "7",
      order: "order" }.each do |idem, sent|
      assert_nil client.hit("api", idem: idem).reason
      assert_equal({ "idem" => sent }, played.seen.last[6])
      assert_equal sent.encoding, played.seen.last[6]["idem"].encoding
    end
    client.hit("api", idem: "")
    assert_equal({}, played.seen.last[6] || {})
  end

  def sha(text) = Digest::SHA256.hexdigest(text)[0, 32]

  def test_any_value_is_sent
    played
    values = [nil, "", "\xff", "\xff".b, "🌊" * 400, "x" * 1_000_000, "x".dup.force_encoding("UTF-7"), "é".encode("UTF-16LE"), "é".encode("ISO-8859-1"), 1.5,
              Object, {}, [], true, -(10**30), "a\0b", :sym, 1..2, "\xe3\x81".dup.force_encoding("EUC-JP")]
    values.each { |value| assert_nil client.hit("api", { v: value }).reason, value.inspect[0, 40] }
    assert_empty client.stats[:missed]
  end

  def test_a_release_does_not_wait_for_a_daemon_that_does_not_read
    listener = UNIXServer.new("#{@directory}/s")
    serving = Thread.new do
      connection = listener.accept
      connection.readpartial(4_096)
      connection.write(Support.frame([1, FIRST, *ALLOW, 77]))
      connection
    end
    decision = client.acquire("api")
    assert_equal 77, decision.lease
    started = Support.now
    while client.stats[:connections] == 1 && Support.now - started < 4
      decision.instance_variable_get(:@given)[7] = 77
      decision.release
    end
    assert_equal 0, client.stats[:connections]
    assert_operator Support.now - started, :<, 4
    serving.value.close
    listener.close
  end

  # -- an orderly restart ----------------------------------------------------------------------------------------------

  def test_retries_once
    made = Played.new("#{@directory}/s")
    hits(client)
    made.stop
    assert_equal ["unreachable"], reasons(hits(client))
    back = Played.new("#{@directory}/s")
    assert(Support.eventually { reasons(hits(client)) == [nil] }) # the breaker was open
    back.stop
  end

  def test_does_not_retry_after_a_reset
    played
    hits(client)
    played.script = ->(connection, _) { connection.close }
    assert_equal ["unreachable"], reasons(hits(client))
    assert_equal 2, played.requests.size
  end

  # -- 3: the breaker --------------------------------------------------------------------------------------------------

  def test_the_breaker_opens_immediately_without_a_listener
    clock = still_clock
    assert_equal ["unreachable"] + (["breaker"] * 4), reasons(hits(client, 5))
    [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0].each do |pause| # doubles to 2 s; each 0.5 to 1 times as long, here the longest
      clock.now += pause - 0.01
      assert_equal ["breaker"], reasons(hits(client))
      clock.now += 0.02
      assert_equal %w[unreachable breaker], reasons(hits(client, 2))
    end
    clock.now += 2.1
    made = Played.new("#{@directory}/s")
    assert_equal [nil, nil], reasons(hits(client, 2))
    assert_equal({ "missed" => { "unreachable" => 8, "breaker" => 18 } }, made.requests[1][6])
    assert_equal [8, 3, 3], made.requests.map(&:first) # a PING ended the pause
    made.stop
    assert_equal %w[unreachable breaker], reasons(hits(client, 2)) # starts again
    clock.now += 0.11
    assert_equal ["unreachable"], reasons(hits(client))
  end

  def test_the_breaker_opens_after_three_failures_that_do_not_overlap
    clock = still_clock
    played.script = ->(_, _) { Support.frame("\xc1") }
    assert_equal ["protocol"] * 3 + ["breaker"] * 2, reasons(hits(client, 5))
    clock.now += 0.11
    assert_equal %w[protocol breaker], reasons(hits(client, 2)) # the PING had a reply, the request not
    played.script = ->(_, message) { [1, message[1], *ALLOW] }
    clock.now += 0.21
    assert_equal [nil], reasons(hits(client))
    played.script = ->(_, _) { Support.frame("\xc1") }
    assert_equal ["protocol"] * 3 + ["breaker"], reasons(hits(client, 4)) # starts again
  end

  def test_a_success_between_failures_closes_the_count
    answer = played.script
    5.times do
      played.script = ->(_, _) { Support.frame("\xc1") }
      assert_equal ["protocol"] * 2, reasons(hits(client, 2))
      played.script = answer
      assert_equal [nil], reasons(hits(client))
    end
  end

  def test_an_open_breaker_does_no_io_and_is_fast
    assert_equal ["unreachable"], reasons(hits(client))
    client.instance_variable_get(:@breaker).instance_variable_set(:@until, Float::INFINITY)
    replace(Socket, :new) { |*| raise "touched" }
    took = Array.new(100) do
      started = Support.now
      assert_equal "breaker", client.acquire("api", { user: "u1" }).reason
      Support.now - started
    end
    assert_operator took.min(50).max, :<, 100e-6 # the promise: the median of calls takes less than 100 µs
    refute client.check
  end

  def test_an_invalid_request_is_no_probe
    clock = still_clock
    hits(client, 3)
    played
    clock.now += 1.3
    assert_equal "invalid", client.hit("a/b").reason
    assert_equal [nil], reasons(hits(client))
  end

  def test_one_probe_at_a_time
    clock = still_clock
    played.script = ->(_, _) { Support.frame("\xc1") }
    hits(client, 3)
    clock.now += 0.11
    probing, go = Queue.new, Queue.new
    played.pong = lambda do
      probing << true
      go.pop
    end
    played.script = ->(_, message) { [1, message[1], *ALLOW] }
    probe = Thread.new { hits(client) }
    probing.pop
    assert_equal ["breaker"] * 20, reasons(hits(client, 20))
    go << true
    assert_equal [nil], reasons(probe.value)
    assert_equal [nil] * 2, reasons(hits(client, 2))
    assert_equal 1, played.requests.count { |message| message[0] == 8 }
  end

  def test_another_caller_probes_when_the_application_ends_a_probe
    clock = still_clock
    hits(client)
    clock.now += 0.11
    replace(Tidegate::Connection, :new) { |*| raise Interrupt }
    assert_raises(Interrupt) { hits(client) }
    @undone.pop.call
    assert_equal %w[unreachable breaker], reasons(hits(client, 2))
  end

  def test_an_interrupt_closes_the_connection
    played
    hits(client)
    replace(client.instance_variable_get(:@idle).last.socket, :read_nonblock) { |*| raise Interrupt }
    assert_raises(Interrupt) { client.acquire("api") }
    assert_equal 0, client.stats[:connections]
    assert_equal [nil], reasons(hits(client))
    assert_equal({ "abandoned" => [[1, FIRST + 1]] }, played.last_report)
  end

  def test_an_application_timeout_closes_the_connection
    require "timeout"
    played.script = ->(_, message) { message[2] == "slow" ? nil : [1, message[1], *ALLOW] }
    hits(client)
    assert_raises(Timeout::Error) { Timeout.timeout(0.1) { client.acquire("slow") } }
    assert_equal [0, [nil]], [client.stats[:connections], reasons(hits(client))]
  end

  def test_needs_no_lock_in_a_trap
    played
    answers = []
    old = trap(:USR2) { answers << client.acquire("api") << make_client(socket: "/nowhere").hit("api") }
    Process.kill(:USR2, Process.pid)
    assert(Support.eventually { answers.size == 2 })
    assert_equal [nil, "unreachable"], reasons(answers)
  ensure
    trap(:USR2, old)
  end

  # A signal handler cannot load files: all that it may need is loaded before.
  def test_the_first_call_of_a_process_may_be_in_a_trap
    program = 'require "tidegate"; client = Tidegate::Client.new(socket: "/nowhere"); reason = nil
      trap(:USR2) { reason = client.hit("api").reason }; Process.kill(:USR2, $$); sleep 0.01 until reason; print reason'
    out, = Open3.capture3(RbConfig.ruby, "-I", "#{__dir__}/../lib", "-e", program)
    assert_equal "unreachable", out
  end

  # -- 5, 6: socket paths ----------------------------------------------------------------------------------------------

  def test_paths_of_the_socket
    find = lambda do |**options|
      @log.lines.clear
      hits(make_client(**options))
      @log.lines.join[%r{/\S+}]
    end
    assert_equal "/run/tidegate/tidegate.sock", find.call(socket: "")
    ENV["XDG_RUNTIME_DIR"] = @directory
    assert_equal "/run/tidegate/tidegate.sock", find.call(socket: nil)
    Dir.mkdir("#{@directory}/tidegate")
    File.write("#{@directory}/tidegate/tidegate.sock", "")
    assert_equal "#{@directory}/tidegate/tidegate.sock", find.call(socket: nil)
    ENV["TIDEGATE_SOCKET"] = "/elsewhere"
    assert_equal "/elsewhere", find.call(socket: nil)
    assert_equal "#{@directory}/s", find.call(socket: Struct.new(:to_s).new("#{@directory}/s"))
  end

  def test_a_timeout_in_milliseconds_raises
    [20, "20ms", "0.02", 0, -1, Float::NAN, Float::INFINITY].each do |timeout|
      error = assert_raises(ArgumentError) { Tidegate::Client.new(timeout: timeout) }
      assert_includes error.message, "in seconds"
    end
  end

  # `inspect` shows neither a lease's number nor a session.
  def test_a_decision_has_a_repr
    granting = ->(_, message) { [1, message[1], *ALLOW, 77] }
    played.script = granting
    assert_equal "#<Tidegate::Decision allow per-user>", client.acquire("api").inspect
    assert_nil client.acquire("api").domain
    assert_equal "#<Tidegate::Decision allow unreachable>", make_client(socket: "#{@directory}/none").acquire("api").inspect
  end

  def test_another_on_failure_raises
    calls = %i[acquire hit peek].map { |name| ->(word) { client.public_send(name, "api", on_failure: word) } }
    calls << ->(word) { client.limit("api", on_failure: word) { flunk } }
    ["deny", :deny, true].product(calls) do |word, call|
      assert_equal "on_failure is allow or refuse, not #{word.inspect}", assert_raises(ArgumentError) { call.call(word) }.message
    end
    assert_equal 503, make_client(socket: "#{@directory}/none").hit("api", on_failure: :refuse).status
  end

  def test_an_object_without_a_text_is_refused
    played
    [Object.new, [Object.new], -> {}, SimpleDelegator.new(Object.new)].each do |value|
      assert_equal "invalid", client.hit("api", { user: value }).reason
    end
    assert_equal ["tidegate: the attribute user has no text; help: send its id; such requests are refused (invalid)"], @log.lines
    [1.5, [1, "a"], Struct.new(:id).new(7), "#<Object:0x000012345678>", :ann].each do |value|
      refute_equal "invalid", client.hit("api", { user: value }).reason
      assert_equal ["user", value.to_s], played.requests.last[3][0]
    end
  end

  def test_another_fallback_of_a_call_raises_before_the_request
    calls = %i[acquire hit peek].map { |name| ->(given) { client.public_send(name, "api", fallback: given) } }
    calls << ->(given) { client.limit("api", fallback: given) { flunk } }
    calls.product(["20/s", false, {}]).each do |call, given|
      error = assert_raises(ArgumentError) { call.call(given) }
      assert_match(/the fallback of a call is made once: FALLBACK = Tidegate::Fallback.new.*; not #{given.inspect}/, error.message)
    end
    assert_empty granting.requests
    assert client.hit("api", fallback: Tidegate::Fallback.new("20/s")).allowed? && client.hit("api", fallback: nil).allowed?
  end

  def test_the_timeout_of_the_environment
    timeout = ->(**given) { Tidegate::Client.new(**given).instance_variable_get(:@timeout) }
    ENV["TIDEGATE_TIMEOUT_MS"] = "250"
    assert_equal [0.25, 0.5], [timeout.call, timeout.call(timeout: 0.5)]
    ["", "soon", "-1", "nan", "0", "10001", "1e3"].each do |bad|
      ENV["TIDEGATE_TIMEOUT_MS"] = bad
      @log.lines.clear
      assert_equal 0.020, timeout.call(logger: @log)
      said = "tidegate: TIDEGATE_TIMEOUT_MS is \"#{bad}\", not above 0 and up to 10000: the timeout is 20 ms"
      assert_equal bad.empty? ? [] : [said], @log.lines
    end
  end

  { "1" => false, "true" => false, "0" => true, "" => true }.each do |value, enabled|
    define_method("test_disabled_by_the_environment_#{value}") do
      played
      ENV["TIDEGATE_DISABLE"] = value
      assert client.hit("api", on_failure: "refuse").allowed?
      2.times { client.hit("api") }
      assert_equal enabled ? [] : ["tidegate: TIDEGATE_DISABLE is \"#{value}\": nothing is limited"], @log.lines
      assert_equal enabled, client.check
      assert_equal enabled, !played.seen.empty?
    end
  end

  def test_disabled_by_the_argument
    played
    client = make_client(enabled: false)
    decision = client.acquire("api", { user: "u1" }, on_failure: "refuse")
    assert_equal [true, "disabled", {}], [decision.allowed?, decision.reason, decision.headers]
    refute client.check
    assert_equal [[], {}], [played.seen, client.stats[:missed]]
  end

  def test_a_long_path_is_reported
    client = make_client(socket: "/tmp/#{'x' * 120}")
    long_pause(client)
    assert_equal ["unreachable"] * 3 + ["breaker"] * 2, reasons(hits(client, 5))
    assert_equal 1, @log.lines.size
    assert_includes @log.lines.first, "too long"
  end

  # -- 7: the log ------------------------------------------------------------------------------------------------------

  def test_logs_a_failure_and_its_end_once
    clock = still_clock
    hits(client, 10)
    assert_equal 1, @log.lines.size
    assert_match(/no daemon at .* requests are not limited/, @log.lines[0])
    clock.now += 2
    hits(client, 10)
    assert_equal 1, @log.lines.size
    clock.now += 5
    made = Played.new("#{@directory}/s")
    hits(client, 10)
    assert_equal 2, @log.lines.size
    assert_includes @log.lines[1], "answers again; 20 requests"
    answer = made.script
    3.times do # later single failures change no state
      made.script = ->(_, _) { Support.frame("\xc1") }
      hits(client)
      made.script = answer
      hits(client)
    end
    assert_equal 2, @log.lines.size
    made.stop
    hits(client, 10)
    assert_equal 3, @log.lines.size
    refute_match(/u1|user/, @log.lines.join)
  end

  def test_permission_denied_names_the_group
    played
    File.chmod(0o755, @directory)
    File.chmod(0o600, played.path)
    reported = in_child do
      Process::UID.change_privilege(65_534) if Process.uid.zero?
      skip_it = File.writable?(played.path) # the user of the test owns it
      hits(client)
      skip_it || @log.lines.first&.match?(/permission denied on .*: \S+ has mode 0600, without access for its group; see/)
    end
    assert reported
  end

  def test_ignores_exceptions_of_the_logger
    logger = Object.new
    def logger.warn(_) = raise("broken")
    assert hits(make_client(logger: logger)).first.allowed?
  end

  def test_logs_to_standard_error_by_default
    _, text = capture_io { make_client(logger: nil).hit("api") }
    assert_includes text, "no daemon at"
  end

  def test_the_client_of_the_program
    played
    Tidegate.configure do |settings|
      settings.socket = "#{@directory}/s"
      settings.timeout = PATIENT
      settings.logger = @log
    end
    assert_equal "per-user", Tidegate.hit("api", { user: "u1" }, cost: 2).rule
    assert_equal(7, Tidegate.limit("api", { user: "u1" }) { 7 })
    assert Tidegate.check
    assert_equal 1, Tidegate.stats[:connections]
  ensure
    Tidegate.close
    Tidegate.client = nil
  end

  def test_an_unreferenced_client_is_collected
    played
    made = lambda do
      client = Tidegate::Client.new(socket: played.path, timeout: PATIENT)
      hits(client)
      client.close
      client.object_id
    end
    ids = Array.new(20) { made.call }
    GC.start
    assert_operator (Tidegate::OPEN.keys & ids).size, :<, 20
  end
end
