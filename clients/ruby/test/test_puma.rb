# frozen_string_literal: true

# A real application under a real Puma, alone and as a cluster that preloads, and under Unicorn, with the real daemon.
require "net/http"
require_relative "support"

class TestPuma < Support::Case
  APPLICATION = "#{Support::ROOT}/tests/clients/apps/ruby"
  RULES = <<~YAML
    domain: api
    limits:
      - {name: per-user, match: {user: limited}, key: [user], rate: 1/min, burst: 3}
      - {name: free, key: [ip], rate: 100000/s}
    concurrency:
      - {name: at-once, key: [user], max: 100}
  YAML

  def setup
    super
    skip "puma is missing: real servers are not tested" unless Support.command?("puma")
  end

  def start(*server, **environment)
    daemon.rules(RULES)
    daemon.start
    serve(*server, **environment)
  end

  def serve(*server, **environment)
    @port = Support.free_port
    server = ["puma", "--config", "#{APPLICATION}/puma.rb", "#{APPLICATION}/config.ru"] if server.empty?
    environment = { "TIDEGATE_SOCKET" => daemon.socket, "TIDEGATE_TIMEOUT_MS" => "2000", "PORT" => @port.to_s,
                    "POOL" => "web" }.merge(environment.transform_keys(&:to_s))
    @errors = "#{@directory}/errors"
    pid = spawn(environment, *server.map { |word| word.sub(/PORT\z/, "127.0.0.1:#{@port}") }, out: @errors, err: @errors)
    @undone << lambda {
      Process.kill(:TERM, pid)
      Process.wait(pid)
    }
    assert(Support.eventually(30) { answers?(pid) }, File.read(@errors))
    pid
  end

  def answers?(pid)
    raise File.read(@errors) if Process.waitpid(pid, Process::WNOHANG)

    get("/healthz").code == "200"
  rescue SystemCallError, EOFError
    false
  end

  def get(path, user = nil)
    Net::HTTP.start("127.0.0.1", @port, read_timeout: 10) { |http| http.get(path, user ? { "X-User" => user } : {}) }
  end

  def assert_nothing_is_held
    assert(Support.eventually { daemon.status["leases"]["held"].zero? }, -> { daemon.status["leases"].inspect })
  end

  def assert_limited
    answers = Array.new(6) { get("/a", "limited") }
    assert_equal %w[200 200 200 429 429 429], answers.map(&:code)
    assert_equal ["you asked for /a\n", "2"], [answers[0].body, answers[0]["x-ratelimit-remaining"]]
    assert_equal "application/problem+json", answers[3]["content-type"]
    assert_match(/\A"per-user";r=0;t=\d+\z/, answers[3]["ratelimit"])
    assert_operator answers[3]["retry-after"].to_i, :>, 1
    assert_nothing_is_held
  end

  def assert_everything_ends
    assert_equal %w[500 200 200], [get("/boom").code, get("/slow?ms=20").code, get("/stream").code]
    assert_equal "chunk 0\nchunk 1\nchunk 2\n", get("/stream").body
    hang_up("/stream")
    hang_up("/slow?ms=200")
    assert_nothing_is_held
    assert_operator daemon.status["leases"]["released"], :>, 5
  end

  def hang_up(path)
    TCPSocket.open("127.0.0.1", @port) { |socket| socket.write("GET #{path} HTTP/1.1\r\nHost: x\r\n\r\n") && sleep(0.02) }
  end

  def pool = daemon.status["pools"].find { |one| one["name"] == "web" || one["pool"] == "web" }

  def test_one_process
    start(THREADS: "3")
    assert_limited
    assert_everything_ends
    assert_equal 1, daemon.status["sessions"]
    assert_includes pool.inspect, '"slots"=>3'
  end

  # Two clients of one pool in one process do not double the slots; a worker's child has none.
  SLOTS = <<~RUBY
    require "tidegate"
    clients = Array.new(2) { Tidegate::Client.new(pool: "web", timeout: 2.0) }
    other = Tidegate::Client.new(pool: "other", timeout: 2.0)
    run(lambda do |env|
      next [200, {}, ["well"]] if env["PATH_INFO"] == "/healthz"

      (clients + [other]).each(&:check)
      Process.wait(fork { exit!(clients.each(&:check).all? { |one| one.instance_variable_get(:@info)[:slots].zero? }) })
      slots = (clients + [other]).map { |one| one.instance_variable_get(:@info)[:slots] }
      [200, {}, [(slots << $?.success?).inspect]]
    end)
  RUBY

  def test_slots_are_sent_once
    File.write("#{@directory}/config.ru", SLOTS)
    start("puma", "--config", "#{APPLICATION}/puma.rb", "#{@directory}/config.ru", RUBYLIB: Support::LIBRARY, THREADS: "3")
    assert_equal "[3, 0, 3, true]", get("/").body
  end

  def test_a_cluster_that_preloads
    master = start(WORKERS: "2", PRELOAD: "1", THREADS: "4")
    assert_limited
    assert_everything_ends
    assert(Support.eventually { 20.times { get("/a") } && daemon.status["sessions"] == 2 })
    assert_includes pool.inspect, '"slots"=>8'
    # A worker that dies leaves no lease, and the next one starts fresh.
    worker = File.read("/proc/#{master}/task/#{master}/children").split.first.to_i
    slow = Thread.new { Array.new(4) { Thread.new { get("/slow?ms=1000") rescue nil } }.each(&:join) } # rubocop:disable Style/RescueModifier
    assert(Support.eventually { daemon.status["leases"]["held"].positive? })
    Process.kill(:KILL, worker)
    assert_nothing_is_held
    slow.join
    assert(Support.eventually(20) { get("/a").code == "200" && daemon.status["sessions"] == 2 })
  end

  def bytes(path) = framed(path, "GET", "1.1")

  # Without the limit's own headers, a response is the same with and without the limiter.
  def test_the_bytes_are_the_same
    start
    with = %w[/a /stream /boom /slow?ms=1].to_h { |path| [path, bytes(path)] }
    serve(WITHOUT_LIMITER: "1")
    with.each { |path, answer| assert_equal bytes(path), answer, path }
    assert_nothing_is_held
  end

  # All kinds of bodies, with and without a length: Puma frames the response as without the limiter.
  FRAMING = <<~'RUBY'
    require "tidegate/rack"
    require "rack/body_proxy"
    Tidegate.configure { |settings| settings.pool = "web" }
    use Tidegate::Rack::Middleware, domain: "api" unless ENV["WITHOUT_LIMITER"] == "1"
    each = Class.new do
      def initialize(chunks) = @chunks = chunks
      def each(&block) = @chunks.each(&block)
    end
    file = Class.new(each) { def to_path = __FILE__ }
    listed = Class.new(each) { def to_ary = @chunks }
    bodies = { "none" => [], "one" => ["hello"], "three" => %w[a bc def], "each" => each.new(%w[a bc def]), "each1" => each.new(["hello"]),
               "listed" => listed.new(%w[a bc def]), "listed1" => listed.new(%w[a]), "file" => file.new([File.read(__FILE__)]),
               "proxy" => Rack::BodyProxy.new(["hello"]) {} }
    run(lambda do |env|
      next [200, {}, ["well"]] if env["PATH_INFO"] == "/healthz"

      _, status, body, name = env["PATH_INFO"].split("/")
      size = 0
      bodies.fetch(body).each { |chunk| size += chunk.bytesize }
      [status.to_i, { "no" => {}, "identity" => { "Transfer-Encoding" => "identity" } }.fetch(name) { { name => size.to_s } }, bodies.fetch(body)]
    end)
  RUBY
  FRAMED = %w[none one three each each1 listed listed1 file proxy].product(%w[no content-length Content-Length identity]).flat_map do |body, length|
    %w[GET HEAD].product(%w[1.0 1.1]).map { |how| ["/200/#{body}/#{length}", *how] } + [["/204/#{body}/#{length}", "GET", "1.1"], ["/304/#{body}/#{length}", "GET", "1.1"]]
  end - [["/304/one/no", "GET", "1.1"]] # a 304 with a body, which Rack forbids: Puma sends its length, the middleware must not

  def framed(path, method, version)
    answer = TCPSocket.open("127.0.0.1", @port) do |socket|
      socket.write("#{method} #{path} HTTP/#{version}\r\nHost: x\r\nConnection: close\r\n\r\n")
      socket.read
    end
    head, body = answer.split("\r\n\r\n", 2)
    kept = head.lines(chomp: true).grep_v(/\A(x-)?ratelimit|\Adate/i)
    [kept.map { |line| line.sub(/\A[\w-]+:/, &:downcase) }.sort, body]
  end

  def test_the_framing_is_the_servers_own
    File.write("#{@directory}/config.ru", FRAMING)
    server = ["ruby", "-I", Support::LIBRARY, "-S", "puma", "--quiet", "--environment", "production", "--bind", "tcp://PORT", "#{@directory}/config.ru"]
    start(*server)
    with = FRAMED.to_h { |one| [one, framed(*one)] }
    assert_operator daemon.status["decisions"]["allow"], :>=, FRAMED.size
    assert_nothing_is_held
    serve(*server, WITHOUT_LIMITER: "1")
    differ = with.reject { |one, answer| framed(*one) == answer }
    assert_empty(differ.map { |one, answer| [one, answer, framed(*one)] })
  end

  def test_fails_open_until_the_daemon_returns
    start
    daemon.stop
    5.times { assert_equal "200", get("/a", "limited").code }
    daemon.start
    assert(Support.eventually(20) { get("/a", "limited")["ratelimit"] })
    codes = Array.new(6) { get("/a", "limited").code }
    assert_includes codes, "429"
    assert_nothing_is_held
    lines = File.read(@errors).lines.grep(/tidegate/)
    assert_equal 2, lines.size, lines.inspect # its exit, and its successor
    refute_match(/limited\b(?!;)|X-User/, lines.join.gsub("not limited", ""))
  end

  def test_unicorn_that_preloads
    skip "unicorn is missing: it is not tested" unless Support.command?("unicorn")
    File.write("#{@directory}/unicorn.rb", "worker_processes 2\npreload_app true\n")
    start("unicorn", "--no-default-middleware", "-E", "production", "-l", "PORT", "-c", "#{@directory}/unicorn.rb", "#{APPLICATION}/config.ru")
    assert_limited
    assert(Support.eventually { 20.times { get("/a") } && daemon.status["sessions"] == 2 })
    assert_nothing_is_held
  end

  # Four workers of a preloading master, with many threads and users: each gets only replies to its own requests.
  def test_four_workers_and_many_users
    start(WORKERS: "4", PRELOAD: "1")
    wrong = Array.new(8) do |i|
      Thread.new do
        Net::HTTP.start("127.0.0.1", @port) do |http|
          Array.new(100) { |j| http.get("/#{i}/#{j}", { "X-User" => "u#{i}" }).body }.each_with_index.count { |body, j| body != "you asked for /#{i}/#{j}\n" }
        end
      end
    end
    assert_equal 0, wrong.sum(&:value)
    assert_nothing_is_held
    assert_operator daemon.status["decisions"]["allow"], :>=, 800
    assert_equal 0, daemon.status["errors"].values.sum
  end
end
