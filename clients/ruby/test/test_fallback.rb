# frozen_string_literal: true

# The fallback: it limits in the process only while the daemon is unreachable.
require_relative "support"
require_relative "../lib/tidegate/jobs"
require_relative "../lib/tidegate/rack"

class TestFallback < Support::Case
  def offline(fallback, **more) = make_client(socket: "#{@directory}/none", fallback: fallback, **more)

  def test_limits_when_nothing_listens
    clock = still_clock
    client = offline("2/s burst 3")
    decisions = hits(client, 5)
    assert_equal %w[allow allow allow limit limit], decisions.map(&:verdict)
    assert_equal ["fallback"] * 5, reasons(decisions)
    assert decisions.all?(&:degraded?)
    assert_equal [[3, 2, nil], [3, 0, nil]], [decisions[0], decisions[3]].map { |one| [one.limit, one.remaining, one.rule] }
    assert_equal [429, 0.5, 1.5, "1"], [decisions[3].status, decisions[3].retry_after, decisions[3].window, decisions[3].headers["Retry-After"]]
    clock.now += 0.499
    assert_equal ["limit"], hits(client).map(&:verdict)
    clock.now += 0.002
    assert_equal %w[allow limit], hits(client, 2).map(&:verdict)
    clock.now += 60
    assert_equal (["allow"] * 3) + ["limit"], hits(client, 4).map(&:verdict) # at most the burst
    assert_equal 12, client.stats[:missed].values.sum
    refute_includes client.stats[:missed].keys, "fallback" # the report to the daemon
  end

  def test_a_retry_after_the_retry_time_passes
    clock = still_clock
    ["7/s", "3/7s burst 2", "1000000/s burst 10", "11/13min", "1/day"].each do |rate|
      client = offline(rate)
      decision = hits(client, 1_000).find { |one| !one.allowed? } || hits(client).first
      clock.now += decision.retry_after + 1e-6
      assert hits(client).first.allowed?, rate
    end
  end

  def test_costs
    still_clock
    client = offline("10/s")
    verdict = ->(cost, name = :hit) { client.public_send(name, "api", nil, cost: cost).then { |one| [one.verdict, one.retry_after] } }
    assert_equal ["limit", nil], verdict[11]
    assert_equal ["limit", nil], verdict[1 << 40]
    assert_equal ["allow", 0.0], verdict[{ tokens: 800 }] # one request
    assert_equal ["allow", 0.0], verdict[{ requests: 4 }, :peek]
    assert_equal ["allow", 0.0], verdict[{ "requests" => 9 }, :acquire]
    assert_equal ["limit", 0.1], verdict[1]
    assert_equal ["limit", 0.1], verdict[1, :peek]
    assert_equal ["allow", 0.0], verdict[0]
    assert_raises(ArgumentError) { verdict[-1] }
  end

  def test_each_domain_and_set_of_attributes_has_its_own_bucket
    still_clock
    client = offline("1/min")
    asked = [["api", { user: "u1" }], ["api", { user: "u2" }], ["web", { user: "u1" }], ["api", { user: "u1", ip: "a" }], ["api", nil],
             ["api", [{ user: "u1" }, { to: 1 }]], ["api", { user: "x" * 2_000 }], ["api", { user: "#{'x' * 1_999}y" }]]
    asked.each { |domain, given| assert client.hit(domain, given).allowed?, given.inspect[0, 50] }
    asked << ["api", { ip: "a", user: "u1" }] << ["api", { "user" => :u1, plan: nil, org: "" }] << [:api, [%w[user u2]]]
    asked.each { |domain, given| refute client.hit(domain, given).allowed?, given.inspect[0, 50] }
  end

  def test_no_more_buckets_than_the_most
    still_clock
    client = offline("1/min")
    client.hit("api", { user: "first" })
    9_999.times { |i| client.hit("api", { user: i }) }
    refute client.hit("api", { user: "first" }).allowed? # it exists, and is now the most recently used
    client.hit("api", { user: "one more" })
    refute client.hit("api", { user: "first" }).allowed?
    assert client.hit("api", { user: 0 }).allowed? # the least recently used was dropped
    assert_equal 10_000, client.instance_variable_get(:@fallback).instance_variable_get(:@buckets).size
  end

  def test_by_the_last_binding_rule
    played.script = ->(_, message) { [1, message[1], 0, message[3][0][0] == "user" ? "per-user" : "other", 40, 1, 39, 0, 0] }
    client = make_client(fallback: { "api/per-user" => "1/min", "*" => "3/min" })
    client.hit("api", { user: "u1" })
    client.hit("api", { ip: "a" })
    client.hit("web", { user: "u1" })
    played.stop
    allowed = ->(domain, given) { Array.new(5) { client.hit(domain, given) }.count(&:allowed?) }
    assert_equal 1, allowed["api", { user: "u2" }]
    assert_equal [3, 3, 3], [allowed["api", { ip: "b" }], allowed["web", { user: "u1" }], allowed["api", { org: "o" }]]
  end

  def test_without_an_entry_on_failure_decides
    client = offline({ "per-user" => "1/min" })
    assert_equal %w[allow allow], hits(client, 2).map(&:verdict)
    refute client.hit("api", on_failure: "refuse").allowed?
    assert_equal %w[breaker unreachable], client.stats[:missed].keys.sort
    256.times { |i| client.instance_variable_get(:@fallback).learn("api#{i}", nil, "per-user") }
    fallback = client.instance_variable_get(:@fallback)
    fallback.learn("last", nil, "per-user")
    assert_equal 256, fallback.instance_variable_get(:@learned).size
  end

  def test_the_daemon_decides_while_it_answers
    played
    client = make_client(fallback: "1/min")
    assert_equal [nil] * 5, reasons(hits(client, 5))
    played.stop
    assert_equal %w[allow limit], hits(client, 2).map(&:verdict)
    assert(@log.lines.any? { |line| line.include?("requests are limited by the fallback") })
    assert_equal "disabled", make_client(fallback: "1/min", enabled: false).hit("api").reason
  end

  ["20", "20/", "/s", "x/s", "0/s", "20/0s", "20/year", "20 / s", "20/s burst", "20/s burst 0", "-1/s", "1.5/s", "20/s burst 5 6",
   "20/400day", "99999999999/s", "", 20, [], {}, { "*" => "20" }, { "*" => nil }].each do |text|
    define_method("test_no_fallback_#{text.inspect}") do
      [-> { offline(text) }, -> { Tidegate::Rack::Middleware.new(nil, fallback: text) },
       -> { Tidegate::Jobs::Limit.new({ domain: "jobs", fallback: text }) }].each do |made|
        assert_includes assert_raises(ArgumentError, &made).message, "help: write"
      end
    end
  end

  def test_in_middlewares
    plain = offline("1/min")
    rack = ->(**options) { Tidegate::Rack::Middleware.new(->(_) { [200, {}, []] }, **options) }
    get = ->(app) { Array.new(3) { app.call({ "REQUEST_METHOD" => "GET", "PATH_INFO" => "/", "REMOTE_ADDR" => "1.2.3.4" })[0] } }
    assert_equal [200, 429, 429], get[rack.call(client: plain)]
    assert_equal [200, 200, 429], get[rack.call(client: plain, fallback: "2/min")]
    jobs = ->(**options) { Tidegate::Jobs::Limit.new({ domain: "jobs", client: plain, **options }) }
    done = ->(limit) { Array.new(3) { limit.call({}, {}, ->(_) { :back }) { :done } } }
    assert_equal %i[done back back], done[jobs.call]
    assert_equal %i[done done back], done[jobs.call(fallback: "2/min")]
  end

  def test_threads_share_a_bucket
    client = offline("50/h")
    threads = Array.new(8) { Thread.new { hits(client, 50).count(&:allowed?) } }
    assert_equal 50, threads.sum(&:value)
  end

  # A real daemon, killed and started again.
  def test_limits_while_the_daemon_is_away
    daemon.rules("domain: api\nlimits: [{name: per-user, key: [user], rate: 1/day, burst: 20}]\n")
    daemon.start
    client = make_client(socket: daemon.socket, timeout: 1.0, fallback: { "per-user" => "2/day", "*" => "1000/s" })
    assert_equal [nil] * 10, reasons(hits(client, 10))
    daemon.stop
    assert_equal [true, true, false, false], hits(client, 4).map(&:allowed?)
    daemon.start
    assert(Support.eventually { reasons(hits(client)) == [nil] })
  end
end
