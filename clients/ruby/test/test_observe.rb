# frozen_string_literal: true

# `on_decision`, and its events of ActiveSupport.
require "active_support"
require "active_support/notifications"
require "timeout"
require_relative "support"
require_relative "../lib/tidegate/notifications"
require_relative "../lib/tidegate/testing"

class TestObserve < Support::Case
  GRANT = ->(_, message) { [1, message[1], *Support::ALLOW, 77] }

  def observed(**options, &function)
    @calls = []
    function ||= ->(decision, seconds) { @calls << [decision, seconds] }
    make_client(socket: played.path, timeout: Support::PATIENT, on_decision: function, **options)
  end

  def test_reports_each_decision
    played.script = GRANT
    client = observed
    decision = client.acquire("api", { user: "u1" }, cost: 2)
    client.hit("api")
    client.limit("api") { nil }
    assert_same decision, @calls[0][0]
    assert_equal [3, true], [@calls.size, @calls.all? { |_, seconds| seconds.between?(0, Support::PATIENT) }]
    assert_equal 2, played.requests[0][4]
    assert_equal 77, decision.lease
  end

  def test_reports_refusals_before_they_raise
    played.script = ->(_, message) { [1, message[1], *Support::LIMIT] }
    client = observed
    denied = assert_raises(Tidegate::Denied) { client.limit("api") { flunk } }
    assert_equal [denied.decision], @calls.map(&:first)
  end

  def test_reports_neither_peek_nor_check
    client = observed
    assert client.peek("api").allowed? && client.check
    assert_empty @calls
  end

  def test_reports_decisions_without_the_daemon
    client = observed(socket: "/nonexistent", logger: log = Support::Log.new, timeout: 0.02)
    client.hit("api")
    client.hit("api", on_failure: "refuse")
    client.hit("a:b")
    assert_equal %w[unreachable breaker invalid], (@calls.map { |decision, _| decision.reason })
    assert_equal 2, log.lines.size
  end

  def test_a_raising_function_is_logged_once
    client = observed(logger: log = Support::Log.new) { raise "u1@example.com" }
    assert_equal %w[per-user per-user], [client.hit("api").rule, client.acquire("api").rule]
    assert_equal 1, log.lines.size
    assert_match(/on_decision raised RuntimeError at .*test_observe.rb:\d+: the decision is not affected/, log.lines[0])
  end

  def test_an_exception_of_another_thread_passes_and_the_grant_is_released
    played.script = GRANT
    reached, gate = Queue.new, Queue.new
    client = observed { reached.push(true) && gate.pop }
    thread = Thread.new { client.acquire("api") }
    thread.report_on_exception = false
    reached.pop
    thread.raise(Timeout::Error)
    gate.push(true)
    assert_raises(Timeout::Error) { thread.value }
    assert_equal [[77, 2]], played.releases
  end

  def test_raises_for_a_value_in_place_of_a_function
    assert_raises(ArgumentError) { make_client(on_decision: "puts") }
  end

  def test_a_client_without_a_function_loads_nothing
    program = "require 'tidegate'; Tidegate::Client.new(socket: '/x'); abort if defined?(Tidegate::Observed)"
    assert system(RbConfig.ruby, "-w", "--disable-gems", "-I", Support::LIBRARY, "-e", program)
  end

  def test_the_fake_reports
    calls = []
    fake = Tidegate::Testing::Client.new(on_decision: ->(decision, _) { calls << decision.verdict })
    fake.force("per-user", "limit", domain: "full")
    fake.hit("api")
    fake.acquire("full")
    assert_equal %w[allow limit], calls
  end

  def test_publishes_events
    events = []
    subscriber = ActiveSupport::Notifications.subscribe("decision.tidegate") { |*given| events << given }
    Tidegate.configure do |settings|
      settings.socket = played.path
      settings.timeout = Support::PATIENT
      settings.on_decision = Tidegate::Notifications
    end
    decision = Tidegate.hit("api")
    payload = events[0].last
    assert_equal ["decision.tidegate", decision, "allow", "per-user", nil],
                 [events[0][0], *payload.values_at(:decision, :verdict, :rule, :reason)]
    assert_operator payload[:seconds], :>, 0
  ensure
    ActiveSupport::Notifications.unsubscribe(subscriber)
    Tidegate.client = nil
  end

  def test_a_raising_subscriber_is_logged_and_not_raised
    subscriber = ActiveSupport::Notifications.subscribe("decision.tidegate") { raise "broken" }
    client = make_client(socket: played.path, timeout: Support::PATIENT, logger: log = Support::Log.new,
                         on_decision: Tidegate::Notifications)
    assert_equal "per-user", client.hit("api").rule
    assert_equal 1, log.lines.size
  ensure
    ActiveSupport::Notifications.unsubscribe(subscriber)
  end

  def test_requiring_the_events_requires_no_active_support
    program = "require 'tidegate/notifications'; abort if defined?(ActiveSupport)"
    assert system(RbConfig.ruby, "-w", "-I", Support::LIBRARY, "-e", program)
  end
end
