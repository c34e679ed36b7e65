# frozen_string_literal: true

# Forks, threads and fibers: no reply reaches a wrong request, no lock or socket a wrong process.
require "open3"
require_relative "support"

class TestProcesses < Support::Case
  %w[hook pid_check].each do |how|
    define_method("test_a_child_has_its_own_connection_and_session_by_#{how}") do
      played
      hits(client, 2)
      inherited = client.instance_variable_get(:@idle).first.socket
      number = inherited.fileno
      constant(:OPEN, {}) if how == "pid_check" # like a fork outside of Ruby

      own = in_child do
        next false if how == "hook" && !inherited.closed? # before the first request

        decisions = hits(client, 2)
        reasons(decisions) == [nil, nil] && inherited.closed? && client.stats == { missed: {}, refused: {}, connections: 1, breaker_open: false }
      end
      assert own
      assert_equal number, inherited.fileno
      assert_equal [nil, nil], reasons(hits(client, 2)) # the parent's client works
      first, second = played.seen.select { |message| message[0].zero? }.map { |message| message[3] }
      refute_equal first["session"], second["session"]
      refute_equal first["pid"], second["pid"]
      assert_equal [1, 1], [first["connection"], second["connection"]]
      assert_equal [0, 1, 0, 1, 2, 3], played.requests.map { |message| message[1] - Support::FIRST } # the child wrote no byte to the parent's connection
    end
  end

  def test_a_daemonized_process_starts_a_new_session
    played
    program = <<~RUBY
      require "tidegate"
      client = Tidegate::Client.new(socket: ARGV[0], timeout: 5.0)
      client.hit("api")
      Process.daemon(true, true)
      client.hit("api")
    RUBY
    assert system(RbConfig.ruby, "-I", Support::LIBRARY, "-e", program, played.path)
    assert(Support.eventually { played.requests.size == 2 })
    hellos = played.seen.select { |message| message[0].zero? }.map { |message| message[3] }
    assert_equal [2, 2], [hellos.map { |info| info["session"] }.uniq.size, hellos.map { |info| info["pid"] }.uniq.size]
  end

  def test_a_fork_during_requests_of_other_threads
    played
    client
    stop = false
    threads = Array.new(3) { Thread.new { hits(client) until stop } }
    10.times { assert(in_child { reasons(hits(client, 3)) == [nil] * 3 && client.stats[:connections] == 1 }) }
    stop = true
    threads.each(&:join)
    assert_empty client.stats[:missed]
  end

  # Each process and thread sends requests of another user, whose name the daemon returns.
  def echo
    client
    played.script = ->(_, message) { [1, message[1], 0, message[3][0][1], 40, 2, message[4], 0, 0, nil, nil, nil, nil] }
  end

  def asked_as(user, times)
    times.times.all? do |i|
      decision = client.hit("api", { user: user }, cost: i)
      [decision.rule, decision.remaining, decision.reason] == [user, i, nil]
    end
  end

  def test_forked_children_get_only_their_own_replies
    daemon.rules((0..4).map { |i| rule("u#{i}") }.unshift("domain: api\nlimits:\n").join)
    daemon.start
    @client = make_client(socket: daemon.socket)
    assert(ask_real("u4", 50))
    children = Array.new(4) { |i| fork { exit!(ask_real("u#{i}", 2_000)) } }
    assert ask_real("u4", 500)
    assert(children.all? { |pid| Process.wait2(pid).last.success? })
  end

  def rule(user) = "  - {name: of-#{user}, match: {user: #{user}}, key: [user], rate: 1000000/s, burst: 2000000}\n"
  def ask_real(user, times) = times.times.all? { client.hit("api", { user: user }).then { |d| [d.rule, d.reason] == ["of-#{user}", nil] } }

  def test_threads_do_not_share_a_reply
    echo
    threads = Array.new(8) { |i| Thread.new { asked_as("u#{i}", 300) } }
    assert threads.all?(&:value)
    assert_operator client.stats[:connections], :<=, 8
  end

  def test_the_pool_is_bounded_and_takes_the_last_used_first
    constant(:IDLE_MAX, 2)
    client
    waiting, go = Queue.new, Queue.new
    played.script = lambda do |_, message|
      waiting << true
      go.pop
      [1, message[1], *Support::ALLOW]
    end
    threads = Array.new(6) { Thread.new { hits(client) } }
    6.times { waiting.pop }
    6.times { go << true }
    threads.each(&:join)
    assert_equal({ missed: {}, refused: {}, connections: 2, breaker_open: false }, client.stats)
    last = client.instance_variable_get(:@idle).last
    go << true
    hits(client)
    assert_same last, client.instance_variable_get(:@idle).last
  end

  # Each attempt without a descriptor collects all garbage.
  def test_no_descriptor_left_pauses_connecting_and_opens_no_breaker
    played
    client.acquire("api").release
    client.close
    clock = still_clock
    well = in_child do
      _, most = Process.getrlimit(:NOFILE)
      Process.setrlimit(:NOFILE, 3, most)
      pauses = Array.new(7) do
        missed = reasons(hits(client, 3)).uniq + [client.check, client.stats[:breaker_open]]
        clock.now += pause = client.instance_variable_get(:@shortage_pause)
        [pause, *missed]
      end
      Process.setrlimit(:NOFILE, 64, most)
      answered = [reasons(hits(client, 2)), client.stats[:connections]]
      client.close
      Process.setrlimit(:NOFILE, 3, most)
      hits(client, 3)
      logged = @log.lines.map { |line| line.scan(/Too many open files|answers again|(?:such )?requests are not limited/) }
      [pauses.transpose, answered, logged] == [[[0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0], ["unreachable"] * 7, *[[false] * 7] * 2],
                                               [[nil, nil], 1],
                                               [["Too many open files", "requests are not limited"], ["answers again"],
                                                ["Too many open files", "such requests are not limited"]]]
    end
    assert well
  end

  def test_without_a_free_descriptor_threads_share_the_open_connection
    played
    @client = make_client(timeout: Support::PATIENT)
    client.check
    held, go = Queue.new, Queue.new
    played.script = ->(_, message) { held << true && go.pop && [1, message[1], *Support::ALLOW] }
    usual = Process.getrlimit(:NOFILE)
    Process.setrlimit(:NOFILE, 3, usual.last)
    first = Thread.new { hits(client) }
    held.pop
    second = Thread.new { hits(client) }
    Thread.pass until client.instance_variable_get(:@shortage)
    2.times { go << true }
    assert_equal [nil, nil], reasons(first.value + second.value)
  ensure
    Process.setrlimit(:NOFILE, *usual)
  end

  # While one fiber waits for its reply, the others run: three rounds of 100 ms, far from 15 s even on a slow machine.
  def test_fibers_wait_concurrently
    program = <<~RUBY
      require "async"
      require "tidegate"
      client = Tidegate::Client.new(socket: ARGV[0], timeout: 5.0)
      wrong = 0
      started = Process.clock_gettime(Process::CLOCK_MONOTONIC)
      Async do |task|
        50.times.map do |i|
          task.async do
            3.times { |j| d = client.hit("api", {user: "u\#{i}"}, cost: j); wrong += 1 if [d.rule, d.remaining, d.reason] != ["u\#{i}", j, nil] }
          end
        end.each(&:wait)
      end
      puts wrong, Process.clock_gettime(Process::CLOCK_MONOTONIC) - started, client.stats.inspect
    RUBY
    skip "async is missing: fibers are not tested" unless system(RbConfig.ruby, "-e", "require 'async'", err: File::NULL)
    echo
    answer = played.script
    played.script = lambda do |connection, message|
      sleep(0.1)
      answer.call(connection, message)
    end
    out, = Open3.capture2e(RbConfig.ruby, "-W0", "-I", Support::LIBRARY, "-e", program, played.path)
    wrong, took, stats = out.lines
    assert_equal "0", wrong&.chomp, out
    assert_operator took.to_f, :<, 7.5, "one after the other it would be 15 s: #{out}"
    assert_includes stats, "missed=>{}"
  end

  # A stopped daemon replies late: those replies are dropped.
  def test_drops_late_replies_of_a_stopped_daemon
    daemon.rules("domain: api\nlimits:\n#{(0..9).map { |i| rule("u#{i}") }.join}")
    daemon.start
    @client = make_client(socket: daemon.socket, timeout: 0.002)
    replace(client.instance_variable_get(:@breaker), :failed) { |*| nil }
    rounds = (ENV["FLIPS"] || 300).to_i
    missed = rounds.times.sum do |i|
      daemon.signal(i.even? ? :STOP : :CONT)
      user = "u#{i % 10}"
      decision = client.hit("api", { user: user })
      assert_equal "of-#{user}", decision.rule unless decision.degraded?
      decision.degraded? ? 1 : 0
    end
    daemon.signal(:CONT)
    assert_operator missed, :>, rounds / 10 # else nothing was late
    assert_operator missed, :<, rounds
  end
end
