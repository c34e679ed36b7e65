# frozen_string_literal: true

# Leases: their end in every case, and renewal; charges and signals.
require_relative "support"

class TestLeases < Support::Case
  def limited = played.tap { |daemon| daemon.script = ->(_, message) { [1, message[1], *Support::LIMIT] } }

  def test_limit_holds_the_lease_for_the_block
    granting
    value = client.limit("export", { org: "o1" }) do |decision|
      assert_equal 77, decision.lease
      assert_empty granting.releases(0)
      decision
    end
    assert_equal [[77, 0]], granting.releases
    value.release
    assert client.check
    assert_equal [[77, 0]], granting.releases
  end

  [RuntimeError, Interrupt, SystemExit, NoMemoryError].each do |error|
    define_method("test_limit_releases_when_the_block_raises_#{error}") do
      granting
      assert_raises(error) { client.limit("export") { raise error } }
      assert_equal [[77, 2]], granting.releases
    end
  end

  def leave_by_return = client.limit("export") { return 7 }
  def leave_by_break = client.limit("export") { break 7 }
  def leave_by_next = client.limit("export") { next 7 }
  def leave_by_throw = catch(:out) { client.limit("export") { throw :out, 7 } }

  %i[return break next throw].each do |way|
    define_method("test_leaving_the_block_by_#{way}_is_an_end_like_others") do
      granting
      assert_equal 7, send("leave_by_#{way}")
      assert_equal [[77, 0]], granting.releases
    end
  end

  def test_an_outcome_set_by_the_work_remains
    granting
    client.limit("export") { |decision| decision.release("error") }
    assert client.check
    assert_equal [[77, 1]], granting.releases
  end

  def test_a_thread_that_is_killed_ends_its_lease
    granting
    held = Queue.new
    thread = Thread.new do
      client.limit("export") do
        held << true
        sleep
      end
    end
    held.pop
    thread.kill
    thread.join
    assert_equal 1, granting.releases.size
  end

  def test_limit_raises_denied
    limited
    error = assert_raises(Tidegate::Denied) { client.limit("export", cost: 3, priority: "post") { flunk } }
    assert_equal ["per-user", error.decision.message], [error.decision.rule, error.message]
    assert_equal [3, "post"], played.seen.last[4..]
  end

  def waiting
    played.script = ->(_, message) { message[0] == 1 ? [1, message[1], 3, "hooks", 21, 1, 20, 1, 250_000, 77] : nil }
  end

  def test_limit_sleeps_off_a_wait
    waiting
    slept = []
    replace(client, :sleep) { |seconds| slept << seconds }
    assert_equal([0.25], client.limit("hooks") { slept })
  end

  def test_an_interrupt_while_waiting_ends_the_lease
    waiting
    replace(client, :sleep) { |_| raise Interrupt }
    assert_raises(Interrupt) { client.limit("hooks") { flunk } }
    assert_equal [[77, 2]], played.releases
  end

  def test_acquire_leaves_a_wait_to_the_caller
    waiting
    decision = client.acquire("hooks")
    assert_equal [true, "wait", 0.25], [decision.allowed?, decision.verdict, decision.wait]
  end

  def test_nested_leases_are_separate
    granting
    client.limit("export") { client.limit("export") { assert_empty granting.releases(0) } }
    assert_equal [[78, 0], [77, 0]], granting.releases(2)
  end

  { "ok" => 0, :error => 1, "dropped" => 2, "what" => 1 }.each do |outcome, number|
    define_method("test_release_reports_the_outcome_#{outcome}") do
      granting
      assert_nil client.acquire("export").release(outcome)
      assert_equal [[77, number]], granting.releases
    end
  end

  def test_a_refusal_has_nothing_to_release
    limited
    assert_raises(Tidegate::Denied) { client.limit("export") { flunk } }
    decision = client.acquire("export")
    decision.release
    refute decision.renew
    assert client.check
    assert_equal [0, 1, 8], played.seen.map(&:first).uniq.sort
  end

  def test_an_unwritten_release_is_reported_with_the_next_request
    clock = still_clock
    granting
    first, second = Array.new(2) { client.acquire("export") }
    granting.script = ->(_, _) { Support.frame("\xc1") }
    hits(client, 3) # the breaker opens
    [first, second].each(&:release)
    @undone.shift.call # the test waits itself
    replace(Process, :clock_gettime) { |*| clock.now }
    granting.script = method(:grant)
    clock.now += 10
    assert client.acquire("export").lease
    report = granting.last_report
    assert_equal [[[1, Support::FIRST], [1, Support::FIRST + 1]], { "protocol" => 3 }], [report["abandoned"].sort, report["missed"]]
    assert_equal 0, granting.seen.count { |message| message[0] == 2 }
  end

  def test_a_lost_report_is_sent_again
    granting
    decision = client.acquire("export")
    breaker = client.instance_variable_get(:@breaker)
    breaker.instance_variable_set(:@until, Float::INFINITY) # simulates an open breaker
    decision.release
    breaker.answered
    granting.script = ->(_, _) { Support.frame("\xc1") }
    client.hit("export")
    granting.script = method(:grant)
    client.acquire("export")
    assert_equal({ "missed" => { "protocol" => 1 }, "abandoned" => [[1, Support::FIRST]] }, granting.last_report)
  end

  def test_reports_are_bounded_and_stay_out_of_large_requests
    constant(:ABANDONED_MAX, 3)
    replace(client.instance_variable_get(:@breaker), :failed) { |*| nil }
    answer = played.script
    played.script = ->(_, _) { Support.frame("\xc1") }
    5.times { client.acquire("api") }
    played.script = answer
    client.hit("api", (1..9).to_h { |i| ["k#{i}", "x" * 1_000] }) # no room for a report
    assert_equal 5, played.seen.last.size
    client.hit("api")
    assert_equal [{ "protocol" => 5 }, 3], played.last_report.then { |report| [report["missed"], report["abandoned"].size] }
  end

  def test_a_release_after_a_close_takes_another_connection
    granting
    decision = client.acquire("export")
    granting.hang_up
    decision.release
    assert_equal [[77, 0]], granting.releases
    first, second = granting.seen.select { |message| message[0].zero? }.map { |message| message[3] }
    assert_equal first["session"], second["session"]
    assert_equal [1, 2], [first["connection"], second["connection"]]
  end

  def test_a_child_that_leaves_the_block_ends_nothing_of_its_parent
    granting
    client.limit("export") { |decision| assert(in_child { decision.release || client.check }) }
    assert_equal 2, granting.releases(2).size
    sessions = granting.seen.select { |message| message[0].zero? }.map { |message| message[3]["session"] }
    assert_equal 2, sessions.uniq.size # the daemon knows the session of the lease
  end

  # -- renewals, charges, signals --------------------------------------------------------------------------------------

  def test_renew
    granting
    decision = client.acquire("export")
    assert_equal [true, [6, Support::FIRST + 1, 77]], [decision.renew, granting.seen.last]
    granting.script = ->(_, message) { [2, message[1], false] }
    assert_equal [false, 77], [decision.renew, decision.lease]
    granting.script = ->(_, _) { Support.frame("\xc1") }
    refute decision.renew
    decision.release
    refute decision.renew
  end

  [1, 812, { "tokens" => 812 }, -5, { "tokens" => -3 }].each do |amount|
    define_method("test_charge_#{amount}") do
      granting
      assert_equal true, client.charge("api", { user: "u1" }, amount)
      assert_equal [5, Support::FIRST, "api", [%w[user u1]], amount], granting.seen.last
      granting.script = ->(_, message) { [2, message[1], false] }
      assert_equal false, client.charge("api", { user: "u1" })
      granting.script = ->(_, message) { [3, message[1], 11, "not yours"] }
      assert_equal false, client.charge("api")
      assert_equal 1, client.stats[:connections]
    end
  end

  [1.5, true, nil, "1", { "tokens" => 0.5 }, { "tokens" => nil }].each do |amount|
    define_method("test_raises_for_the_amount_#{amount.inspect}") do
      granting
      assert_raises(ArgumentError) { client.charge("api", nil, amount) }
      assert_equal [[], []], [granting.seen, @log.lines]
    end
  end

  def test_a_large_amount_is_sent
    granting
    { 1 << 32 => 1 << 32, 10**30 => 1 << 32, -(10**30) => -(1 << 32), -(1 << 63) => -(1 << 63) }.each do |amount, sent|
      assert client.charge("api", nil, amount)
      assert_equal sent, granting.seen.last[4]
    end
  end

  def test_a_refund_names_a_grant
    granting
    lease = client.acquire("api")
    ended = client.acquire("api").tap(&:release)
    played.script = ->(_, message) { message[0] == 3 ? [1, message[1], *Support::ALLOW] : [2, message[1], true] }
    { lease => 77, ended => 78, 5 => 5, "order-8" => "order-8", "x" * 65 => Tidegate::Wire.idem("x" * 65) }.each do |of, sent|
      assert client.charge("api", { user: "u1" }, -1, of: of)
      assert_equal [-1, { "of" => sent }], played.seen.last[4, 2]
    end
    named = client.hit("api", idem: "order-7")
    assert client.charge("api", nil, -1, of: named, idem: "refund-7")
    assert_equal [-1, { "idem" => "refund-7", "of" => "order-7" }], played.seen.last[4, 2]
  end

  def test_a_refund_of_a_decision_that_charged_nothing_is_not_sent
    granting
    refute client.charge("api", nil, -1, of: make_client(socket: "/nowhere").acquire("api"))
    assert_equal [[], 1], [granting.seen, @log.lines.grep(/`of` names no grant/).size]
  end

  { 0 => 0, 0.4 => 400, 1 => 1_000, 7 => 1_000, -0.2 => 0, 0.0004 => 0, Float::INFINITY => 1_000 }.each do |value, permille|
    define_method("test_signal_#{value}") do
      granting
      client = make_client(pool: "web")
      assert_nil client.signal("loop_lag", value)
      assert client.check
      assert_equal [7, nil, "web", "loop_lag", permille], granting.requests[0]
    end
  end

  [["a/b", 0.5], ["lag", Float::NAN], ["lag", nil], %w[lag much]].each do |name, value|
    define_method("test_an_invalid_signal_is_logged_#{name}_#{value.inspect}") do
      granting
      assert_nil client.signal(name, value)
      assert_equal [0, 1], [granting.seen.size, @log.lines.size]
    end
  end

  def test_all_of_it_without_a_daemon
    client = make_client(socket: "/nowhere")
    decision = client.acquire("export")
    assert decision.allowed?
    refute decision.renew
    decision.release
    client.signal("lag", 0.5)
    refute client.charge("api", nil, 3)
    assert_equal({ "unreachable" => 1 }, client.stats[:missed])
    client.limit("export") { |one| assert one.degraded? }
    error = assert_raises(Tidegate::Denied) { client.limit("export", on_failure: :refuse) { flunk } }
    assert_equal 503, error.decision.status
  end

  def test_all_of_it_disabled
    granting
    client = make_client(enabled: false)
    client.limit("export") { |decision| refute decision.renew }
    client.signal("lag", 0.5)
    refute client.charge("api")
    assert_empty granting.seen
  end
end
