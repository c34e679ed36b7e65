# frozen_string_literal: true

# Exceptions of the application inside a call pass unchanged, and leave no lease or connection.
require "timeout"
require_relative "support"
require_relative "../lib/tidegate/jobs"
require_relative "../lib/tidegate/rack"

class TestInterrupts < Support::Case
  CLASSES = [RuntimeError, Timeout::Error, ArgumentError, IOError, EOFError, Errno::ETIMEDOUT, Errno::ECONNRESET, Errno::EPIPE,
             ThreadError, FloatDomainError, Interrupt].freeze

  # Runs the block in a thread, and returns the exception that ended it.
  def interrupted(error)
    started = Queue.new
    thread = Thread.new do
      Thread.current.report_on_exception = false
      started << true
      yield
      nil
    rescue Exception => e # rubocop:disable Lint/RescueException
      e
    end
    started.pop
    yield_until = Support.now + 5
    sleep(0.001) until thread.status == "sleep" || Support.now > yield_until
    thread.raise(error)
    thread.value
  end

  CLASSES.each do |kind|
    define_method("test_#{kind}_passes_through_a_call_that_waits") do
      played.script = ->(_, message) { message[2] == "slow" ? nil : [1, message[1], *Support::ALLOW] }
      hits(client)
      error = kind.new("of the application")
      assert_same error, interrupted(error) { client.acquire("slow") }
      assert_equal [0, {}, false], client.stats.values_at(:connections, :missed, :breaker_open)
      assert_equal [nil], reasons(hits(client))
      assert_equal({ "abandoned" => [[1, Support::FIRST + 1]] }, played.last_report)
    end

    define_method("test_#{kind}_passes_through_timeout") do
      played.script = ->(_, _) {}
      raised = assert_raises(kind) { Timeout.timeout(0.05, kind) { client.acquire("slow") } }
      assert_instance_of kind, raised
      assert_equal [0, {}], client.stats.values_at(:connections, :missed)
    end
  end

  def test_a_report_of_an_interrupted_call_is_sent_again
    played.script = ->(_, message) { message[2] == "slow" ? nil : [1, message[1], *Support::ALLOW] }
    client
    2.times { interrupted(RuntimeError.new) { client.acquire("slow") } }
    hits(client)
    assert_equal [[1, Support::FIRST], [2, Support::FIRST]], played.last_report["abandoned"].sort
  end

  # In the main thread of another process: handlers run only there.
  [RuntimeError, Timeout::Error, IOError, Errno::ETIMEDOUT].each do |kind|
    define_method("test_#{kind}_of_a_signal_handler_passes_through") do
      # The daemon raises the signal instead of a reply to the request.
      played.script = ->(_, _) { Process.kill(:USR1, played.seen.first.last["pid"]) && nil }
      client
      passed = in_child do
        errors = Array.new(20) { |i| kind.new("number #{i}") }
        left = errors.dup
        trap(:USR1) { raise left.shift }
        seen = errors.map do
          client.acquire("slow")
        rescue kind => e
          e
        end
        seen.zip(errors).all? { |one, other| one.equal?(other) } && client.stats.values_at(:missed, :connections) == [{}, 0]
      end
      assert passed
    end
  end

  RULES = "domain: api\nlimits:\n  - {name: per-user, key: [user], rate: 1000000/s, burst: 2000000}\n" \
          "concurrency:\n  - {name: at-once, key: [user], max: 1000}\n"

  # At random times of fast calls, under the real daemon: each exception arrives, and no lease remains.
  CALLS = {
    limit: ->(client) { -> { client.limit("api", { user: "u1" }) { nil } } },
    jobs: lambda do |client|
      job = Tidegate::Jobs::Limit.new({ domain: "api", client: client })
      -> { job.call({}, { "user" => "u1" }, nil) { nil } }
    end,
    rack: lambda do |client|
      app = Tidegate::Rack::Middleware.new(->(_) { [200, {}, []] }, domain: "api", client: client)
      -> { app.call({ "REQUEST_METHOD" => "GET", "PATH_INFO" => "/", "REMOTE_ADDR" => "1.2.3.4" })[2].then { |body| body.close if body.respond_to?(:close) } }
    end
  }.freeze

  CALLS.each do |name, made|
    define_method("test_no_exception_and_no_lease_is_lost_at_any_moment_of_#{name}") do
      daemon.rules(RULES)
      daemon.start
      client = make_client(socket: daemon.socket)
      call = made.call(client)
      call.call
      random = Random.new(Minitest.seed)
      lost = Array.new(300) do
        error = [RuntimeError, IOError, Errno::ECONNRESET, ArgumentError].sample(random: random).new("of the application")
        pause = random.rand(0.002)
        started = Queue.new
        thread = Thread.new do
          started << true
          loop(&call)
        rescue StandardError => e
          e
        end
        started.pop
        sleep(pause)
        thread.raise(error)
        thread.join(5)&.value.equal?(error)
      end.count(false)
      assert_equal 0, lost
      client.hit("api") # carries the reports
      assert(Support.eventually { daemon.status["leases"]["held"].zero? }, -> { daemon.status["leases"].inspect })
      assert_operator client.stats[:connections], :<=, 3
      assert_equal [{}, false], client.stats.values_at(:missed, :breaker_open)
    end
  end

  def test_a_thread_that_is_killed_while_it_waits_leaves_no_connection
    played.script = ->(_, _) {}
    client
    thread = Thread.new { client.acquire("slow") }
    assert(Support.eventually { played.requests.any? && thread.status == "sleep" })
    thread.kill
    thread.join
    assert_equal 0, client.stats[:connections]
  end

  # The application's own Thread.handle_interrupt holds inside a call.
  def test_keeps_the_applications_interrupt_mask
    played.script = ->(_, _) {}
    client = make_client(timeout: 0.2)
    reached = nil
    error = interrupted(RuntimeError.new("late")) do
      Thread.handle_interrupt(RuntimeError => :never) do
        client.acquire("slow")
        reached = true
      end
    end
    assert_equal ["late", true], [error.message, reached]
  end

  def test_decisions_are_dumped_copied_and_shown
    granting
    decision = client.acquire("api", idem: "order-7")
    copies = [Marshal.load(Marshal.dump(decision)), decision.dup]
    copies.each do |copy|
      assert_equal [decision.verdict, decision.rule, decision.lease, decision.retry_after, decision.headers],
                   [copy.verdict, copy.rule, copy.lease, copy.retry_after, copy.headers]
      assert_equal decision.inspect, copy.inspect
    end
    copies[0].release # of another process: releases no lease
    assert_empty granting.releases(0)
    denied = Tidegate::Denied.new(Tidegate::Decision.from(Support::LIMIT))
    assert_equal "per-user", Marshal.load(Marshal.dump(denied)).decision.rule
    refute_match(/session|\\x/, client.inspect)
  end
end
