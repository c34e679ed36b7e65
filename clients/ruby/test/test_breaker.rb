# frozen_string_literal: true

# Failures that the breaker counts, and connections: the daemon is paused, closes connections, or is full.
require "open3"
require_relative "support"

class TestBreaker < Support::Case
  RULES = "domain: api\nlimits: [{name: per-user, key: [user], rate: 1000000/s, burst: 2000000}]\n"

  def real(timeout)
    daemon.rules(RULES)
    daemon.start
    make_client(socket: daemon.socket, timeout: timeout)
  end

  # A pause of 1.5 deadlines: each of 8 threads may lose two calls, and continues.
  def test_a_pause_of_the_daemon_costs_few_decisions
    client = real(0.4)
    stop = false
    threads = Array.new(8) do |i|
      Thread.new do
        made = []
        made << client.hit("api", { user: "u#{i}" }).reason until stop
        made
      end
    end
    sleep(0.1)
    daemon.signal(:STOP)
    sleep(0.6)
    daemon.signal(:CONT)
    sleep(0.8)
    stop = true
    made = threads.flat_map(&:value)
    assert_operator made.compact.size, :<=, 40, made.tally.inspect
    assert_includes made, "timeout" # else no call met the pause
    refute client.stats[:breaker_open]
  end

  # Twenty concurrent calls that fail count once.
  def test_failures_that_overlap_count_once
    client.tap { played }
    malformed = Support.frame("\xC1".b)
    2.times do
      asked, ended = Queue.new, Queue.new
      played.script = ->(_, _) { (asked << true) && ended.pop }
      threads = Array.new(20) { Thread.new { hits(client).first.reason } }
      20.times { asked.pop } # all have begun before the first fails
      20.times { ended << malformed }
      assert_equal ["protocol"], threads.map(&:value).uniq
      refute client.stats[:breaker_open]
    end
    played.script = ->(_, _) { malformed }
    long_pause(client)
    assert_equal %w[protocol breaker], reasons(hits(client, 2))
    assert client.stats[:breaker_open]
  end

  def test_the_first_pause_is_short
    made = Support::Played.new("#{@directory}/s")
    made.stop
    pauses = Array.new(20) do
      client = make_client
      opened = Support.now
      assert_equal "unreachable", hits(client).first.reason
      client.instance_variable_get(:@breaker).instance_variable_get(:@until) - opened
    end
    assert_operator pauses.min, :>=, 0.05
    assert_operator pauses.uniq.size, :>, 1
    assert_operator pauses.min, :<=, 0.1
  end

  # The application ended the calls, not the daemon.
  def test_calls_that_the_application_ends_are_no_failures
    require "timeout"
    played.script = ->(_, _) {}
    4.times { assert_raises(Timeout::Error) { Timeout.timeout(0.02) { client.hit("api") } } }
    assert_equal [{}, false], client.stats.values_at(:missed, :breaker_open)
  end

  # The process slept past the deadline, and so did the daemon.
  def test_a_late_process_gives_the_daemon_a_grace_time
    pid = nil
    played.script = lambda do |_, message|
      Thread.pass until pid
      Process.kill(:STOP, pid)
      sleep(2.2)
      Process.kill(:CONT, pid)
      sleep(0.05)
      [1, message[1], *Support::ALLOW]
    end
    pid = fork do
      constant(:GRACE, 5.0)
      # Long enough to be stopped within it on a busy machine.
      exit!(make_client(timeout: 2.0).hit("api").reason.nil?)
    end
    assert Process.wait2(pid).last.success?
  end

  # Tasks that compute for 0.2 to 1.2 deadlines each share one thread with the calls.
  def test_a_late_event_loop_gets_its_replies
    skip "async is missing: fibers are not tested" unless system(RbConfig.ruby, "-e", "require 'async'", err: File::NULL)
    real(1.0)
    program = <<~RUBY
      require "async"
      require "tidegate"
      client = Tidegate::Client.new(socket: ARGV[0], timeout: 0.3)
      reasons = []
      Async do |task|
        12.times.map do |i|
          task.async do
            reasons << client.hit("api", { user: "u\#{i}" }).reason
            till = Process.clock_gettime(Process::CLOCK_MONOTONIC) + 0.06 + i * 0.028
            nil until Process.clock_gettime(Process::CLOCK_MONOTONIC) > till
          end
        end.each(&:wait)
      end
      print reasons.compact.size, " of ", reasons.size
    RUBY
    out, = Open3.capture2e(RbConfig.ruby, "-W0", "-I", Support::LIBRARY, "-e", program, daemon.socket)
    assert_match(/\A[01] of 12\z/, out)
  end

  # -- connections ---------------------------------------------------------------------------------------------------

  # Makes `count` calls that wait at the same time.
  def burst(client, count)
    answer, waiting, go = played.script, Queue.new, Queue.new
    played.script = lambda do |_, message|
      waiting << true
      go.pop
      [1, message[1], *Support::ALLOW]
    end
    threads = Array.new(count) { Thread.new { hits(client).first.reason } }
    count.times { waiting.pop }
    count.times { go << true }
    assert_equal [nil] * count, threads.map(&:value)
    played.script = answer
  end

  def test_idle_connections_are_closed_down_to_two
    burst(client, 12)
    assert_equal 12, client.stats[:connections]
    hits(client, 20)
    assert_equal 12, client.stats[:connections] # not idle for long
    constant(:IDLE_SECONDS, 0.2)
    sleep(0.3)
    hits(client, 20)
    assert_equal 2, client.stats[:connections]
    sleep(0.3)
    hits(client, 5)
    assert_equal [2, {}], client.stats.values_at(:connections, :missed)
  end

  %i[acquire hit peek].each do |name|
    define_method("test_a_#{name}_that_a_goodbye_left_unread_is_sent_once_more") do
      burst(client, 3)
      left = 1
      played.script = lambda do |connection, message|
        next [1, message[1], *Support::ALLOW] if (left -= 1).negative?

        connection.write(Support.frame([4, nil, "surplus"]))
        connection.shutdown && nil
      end
      assert_equal [nil, "per-user"], client.public_send(name, "api", { user: "u1" }).then { |one| [one.reason, one.rule] }
      left = 2 # the second connection gets the same error
      assert_equal "unreachable", client.public_send(name, "api", { user: "u1" }).reason
      assert_equal [false, 0], [client.stats[:breaker_open], client.instance_variable_get(:@breaker).instance_variable_get(:@failures)]
      assert_equal 3 + 2 + 2, played.requests.size
    end
  end

  # Frames without end keep no call.
  def test_a_reply_is_read_at_most_twice_before_the_deadline_counts
    reads = 0
    socket = Object.new
    socket.define_singleton_method(:read_nonblock) { |*, **| (reads += 1) == 1 ? "\0\0\x40\0".b : "x" }
    connection = Tidegate::Connection.new(client, 1)
    connection.instance_variable_set(:@socket, socket)
    assert_nil connection.read(Tidegate::DECISION)
    assert_equal 2, reads
  end

  def test_goodbyes_never_open_the_breaker
    played.script = lambda do |connection, _|
      connection.write(Support.frame([4, nil, "draining"]))
      connection.shutdown && nil
    end
    assert_equal ["unreachable"] * 6, reasons(hits(client, 6))
    played.script = ->(_, message) { [1, message[1], *Support::ALLOW] }
    assert_equal [nil], reasons(hits(client))
  end

  def test_an_end_without_a_goodbye_is_a_failure
    hits(client.tap { played })
    played.script = ->(connection, _) { connection.shutdown && nil }
    long_pause(client)
    assert_equal ["unreachable"] * 3 + ["breaker"], reasons(hits(client, 4))
    assert_equal 1 + 3, played.requests.size
  end

  # An immediate reply makes its connection idle, and another thread may take it before this one continues.
  def test_a_connection_that_another_thread_takes_and_finds_closed_fails_no_call
    played.script = ->(connection, message) { connection.write(Support.frame([1, message[1], *Support::ALLOW])) && connection.shutdown && nil }
    client.define_singleton_method(:connect) do
      super().tap { |made| made.define_singleton_method(:write) { |*given| super(*given).tap { sleep(0.1) } } }
    end
    first = Thread.current
    others = []
    client.define_singleton_method(:keep) do |*given|
      super(*given).tap { others << Thread.new { hit("api").reason }.value if Thread.current == first }
    end
    assert_equal [nil], reasons(hits(client))
    assert_equal [nil], others
  end

  def test_calls_share_the_connections_that_the_daemon_has_room_for
    client
    played.most = 2
    threads = Array.new(8) { Thread.new { reasons(hits(client, 10)) } }
    assert_equal({ nil => 80 }, threads.flat_map(&:value).tally)
    assert_equal [2, {}], client.stats.values_at(:connections, :missed)
  end

  def test_waits_for_a_full_backlog
    client
    listener = Socket.new(:UNIX, :STREAM)
    listener.bind(Socket.sockaddr_un("#{@directory}/s"))
    listener.listen(0)
    first = Socket.new(:UNIX, :STREAM)
    first.connect(Socket.sockaddr_un("#{@directory}/s"))
    calls = Array.new(2) { Thread.new { hits(client).first.reason } }
    sleep(0.1)
    serving = Thread.new do
      3.times do
        connection = listener.accept.first
        Thread.new do # both calls may use one connection, or none
          Thread.current.report_on_exception = false
          2.times { |i| connection.readpartial(4_096) && connection.write(Support.frame([1, Support::FIRST + i, *Support::ALLOW])) }
        end
      end
    end
    assert_equal [nil, nil], calls.map(&:value)
  ensure
    serving&.kill
    [first, listener].each(&:close)
  end
end
