# frozen_string_literal: true

# Limited jobs are queued again with a delay, without using up a retry: a real Sidekiq and Redis, and Active Job.
require_relative "support"
require_relative "../lib/tidegate/sidekiq"
require_relative "../lib/tidegate/active_job"
require_relative "../lib/tidegate/testing"

class TestJobLimits < Support::Case
  def setup
    super
    @fake = Tidegate::Testing::Client.new(logger: @log)
  end

  def limit(**options) = Tidegate::Jobs::Limit.new({ domain: "jobs", client: @fake }.merge(options))

  def test_a_job_that_may_start_is_done_under_a_lease
    value = limit(attributes: ->(job) { { org: job } }, cost: 2, priority: ->(_) { "post" }).call("o1", { "job" => "Export" }, nil) do
      assert_equal 1, @fake.held.size
      7
    end
    assert_equal 7, value
    @fake.assert_released
    assert_equal [["acquire", "jobs", { "job" => "Export", "org" => "o1" }, 2, "post"]], @fake.asked.map(&:to_a)
  end

  def test_reports_the_outcome_of_a_job
    granting
    limit = Tidegate::Jobs::Limit.new({ domain: "jobs", client: client })
    limit.call({}, {}, nil) { nil }
    assert_raises(KeyError) { limit.call({}, {}, nil) { raise KeyError } }
    assert_equal [0, 2], granting.releases(2).map(&:last)
  end

  def test_sends_max_wait
    granting
    limit(client: client, max_wait: 2.5).call({}, {}, nil) { nil }
    assert_equal 2_500_000, granting.requests.find { |message| message[0] == 1 }[6]["max_wait_us"]
  end

  def test_a_failed_job_releases_its_lease
    assert_raises(KeyError) { limit.call(1, {}, nil) { raise KeyError } }
    catch(:out) { limit.call(1, {}, nil) { throw :out } }
    @fake.assert_released
  end

  def test_a_refused_job_is_delayed_with_jitter
    @fake.force("exports", "limit", retry_after: 10)
    delays = Array.new(200).map { limit.call(1, {}, :itself.to_proc) { flunk } }
    assert(delays.all? { |delay| delay.between?(10, 15) })
    assert_operator delays.uniq.size, :>, 100
    @fake.force("exports", "shed", retry_after: 0.1)
    assert_operator Array.new(50) { limit.call(1, {}, :itself.to_proc) { flunk } }.max, :>, 0.15
  end

  def test_a_job_that_can_never_pass_raises
    @fake.force("exports", "limit", retry_after: nil)
    assert_raises(Tidegate::Denied) { limit.call(1, {}, ->(_) { flunk }) { flunk } }
    @fake.force("bots", "deny")
    assert_raises(Tidegate::Denied) { limit.call(1, {}, ->(_) { flunk }) { flunk } }
    many = limit(client: make_client(socket: "/nowhere"), attributes: ->(_) { (1..17).to_h { |i| ["k#{i}", 1] } })
    assert_equal "invalid", assert_raises(Tidegate::Denied) { many.call(1, {}, ->(_) { flunk }) { flunk } }.decision.reason
  end

  def test_sleeps_on_wait
    @fake.force("hooks", "wait", retry_after: 0.3)
    one = limit
    slept = []
    replace(one, :sleep) { |seconds| slept << seconds }
    assert_equal(7, one.call(1, {}, nil) { 7 })
    assert_equal [0.3], slept
  end

  def test_the_job_is_checked_without_a_function_that_raises
    @fake.force("exports", "limit")
    delays = []
    limit(attributes: ->(_) { raise KeyError }).call(1, {}, ->(delay) { delays << delay }) { flunk }
    limit(attributes: ->(_) { "text" }).call(1, {}, ->(delay) { delays << delay }) { flunk }
    assert_equal 2, delays.size
    assert_equal(7, limit(exempt: ->(_) { true }).call(1, {}, nil) { 7 })
    assert_equal(["raised KeyError", "returned String"], @log.lines.map { |line| line[/attributes (\w+ \w+)/, 1] })
    [{ on_failure: "deny" }, { atributes: 1 }, { cost: -1 }, { domain: "a/b" }, { fallback: "20" }].each { |options| assert_raises(ArgumentError) { limit(**options) } }
  end

  def test_without_the_daemon
    offline = make_client(socket: "/nowhere")
    assert_equal(7, limit(client: offline).call(1, {}, nil) { 7 })
    assert_operator limit(client: offline, on_failure: "refuse").call(1, {}, :itself.to_proc) { flunk }, :>=, 1
  end
end

class TestSidekiq < Support::Case
  WORKERS = <<~RUBY
    require "sidekiq"
    require "tidegate/sidekiq"
    Sidekiq.configure_server do |config|
      options = config.respond_to?(:options) ? config.options : config # of Sidekiq 6, of 7
      options[:poll_interval_average] = options[:average_scheduled_poll_interval] = 0.1
      config.server_middleware { |chain| chain.add Tidegate::Sidekiq::Middleware, domain: "jobs", attributes: ->(job) { {org: job["args"].first} } }
    end
    class Export
      include Sidekiq::Worker
      sidekiq_options retry: 0 # a job that used up its retry is dead
      def perform(org, number) = File.write(ENV.fetch("DONE"), "\#{org} \#{number}\\n", mode: "a")
    end
  RUBY

  def test_a_limited_job_keeps_its_retries
    skip "sidekiq or redis-server is missing: limited jobs are not tested" unless %w[sidekiq redis-server].all? { |name| Support.command?(name) }
    daemon.rules("domain: jobs\nlimits:\n  - {name: per-org, key: [job, org, queue], rate: 5/s, burst: 3}\n")
    daemon.start
    redis = start_redis
    File.write("#{@directory}/workers.rb", WORKERS)
    environment = { "REDIS_URL" => "unix://#{redis}", "TIDEGATE_SOCKET" => daemon.socket, "TIDEGATE_TIMEOUT_MS" => "2000",
                    "DONE" => "#{@directory}/done", "RUBYLIB" => Support::LIBRARY }
    push = "load ARGV[0]; 12.times { |i| Export.perform_async('o1', i) }"
    assert system(environment, RbConfig.ruby, "-W0", "-e", push, "#{@directory}/workers.rb")
    errors = "#{@directory}/errors"
    run(environment, "sidekiq", "-c", "4", "-r", "#{@directory}/workers.rb", out: errors, err: errors)
    done = -> { File.exist?("#{@directory}/done") ? File.readlines("#{@directory}/done", chomp: true) : [] }
    assert(Support.eventually(30) { done.call.size >= 12 }, -> { File.read(errors) })
    assert_equal (0..11).map { |i| "o1 #{i}" }.sort, done.call.sort
    assert_operator daemon.status["decisions"]["limit"], :>, 0
    left = %w[dead retry schedule].to_h { |name| [name, `redis-cli -s #{redis} zcard #{name}`.to_i] }
    assert_equal({ "dead" => 0, "retry" => 0, "schedule" => 0 }, left)
    assert(Support.eventually { daemon.status["leases"]["held"].zero? })
  end

  # The job is queued unchanged, without a counted retry, and not early.
  def test_a_limited_job_is_queued_unchanged
    skip "sidekiq or redis-server is missing: limited jobs are not tested" unless %w[sidekiq redis-server].all? { |name| Support.command?(name) }
    redis = start_redis
    played.script = ->(_, message) { [1, message[1], 1, "per-org", 5, 1_000_000, 0, 1, 60_000_000, nil, nil, nil, nil] }
    program = <<~RUBY
      require "sidekiq"
      require "tidegate/sidekiq"
      job = { "class" => "Export", "args" => ["o1"], "jid" => "7", "retry" => true, "queue" => "low" }
      Tidegate::Sidekiq::Middleware.new({ domain: "jobs" }).call(nil, job, "low") { abort "it was done" }
      Sidekiq.redis do |redis|
        puts Sidekiq.dump_json(redis.zrange("schedule", 0, -1).map { |one| [one, redis.zscore("schedule", one)] })
      end
    RUBY
    environment = { "REDIS_URL" => "unix://#{redis}", "TIDEGATE_SOCKET" => "#{@directory}/s", "TIDEGATE_TIMEOUT_MS" => "2000" }
    before = Time.now.to_f
    (job, at), = JSON.parse(IO.popen([environment, RbConfig.ruby, "-W0", "-I", Support::LIBRARY, "-e", program], &:read).lines.last)
    assert_equal({ "class" => "Export", "args" => ["o1"], "jid" => "7", "retry" => true, "queue" => "low" }, JSON.parse(job))
    assert_operator at.to_f, :>=, before + 60
    assert_operator at.to_f, :<=, Time.now.to_f + 90
  end

  def start_redis
    path = "#{@directory}/redis.sock"
    run({}, "redis-server", "--port", "0", "--unixsocket", path, "--save", "", "--dir", @directory, out: File::NULL)
    assert(Support.eventually { File.socket?(path) })
    path
  end

  def run(environment = nil, *command, **redirected)
    return super() if environment.nil? # Minitest's own

    pid = spawn(environment, *command, **redirected)
    @undone << lambda {
      Process.kill(:TERM, pid)
      Process.wait(pid)
    }
  end
end

begin
  require "active_job"
rescue LoadError
  warn "activejob is missing: it is not tested"
end

if defined?(ActiveJob::Base)
  ActiveJob::Base.logger = nil

  class ExportJob < ActiveJob::Base
    include Tidegate::ActiveJob
    limited "jobs", attributes: ->(job) { { org: job.arguments.first } }
    retry_on(KeyError, attempts: 2)
    class << self
      attr_accessor :done
    end

    def perform(org)
      self.class.done << [org, executions]
      raise KeyError if org == "bad"
    end
  end

  class TestActiveJob < Minitest::Test
    include ActiveJob::TestHelper
    include Tidegate::Testing::Minitest

    def setup = ExportJob.done = []

    def test_a_job_that_may_start
      perform_enqueued_jobs { ExportJob.perform_later("o1") }
      assert_equal [["o1", 1]], ExportJob.done
      assert_equal({ "job" => "ExportJob", "queue" => "default", "org" => "o1" }, tidegate.asked.first.attributes)
    end

    def test_a_limited_job_is_enqueued_again_without_counting_an_execution
      tidegate.force("exports", "limit", retry_after: 10)
      ExportJob.perform_later("bad")
      3.times { perform_enqueued_jobs }
      assert_empty ExportJob.done
      job = enqueued_jobs.last
      assert_equal [0, ["bad"]], job.values_at("executions", "arguments")
      assert_in_delta Time.now.to_f + 12.5, job[:at] || Time.parse(job["scheduled_at"]).to_f, 4
      tidegate.clear
      assert_raises(KeyError) { 3.times { perform_enqueued_jobs } } # after both of its own attempts
      assert_equal [["bad", 1], ["bad", 2]], ExportJob.done
    end

    def test_an_adapter_without_a_clock_does_not_lose_it
      tidegate.force("exports", "limit")
      [->(**) { raise NotImplementedError, "no clock" }, ->(**) { false }].each do |enqueue|
        job = ExportJob.new("o1")
        job.define_singleton_method(:enqueue, &enqueue)
        assert_raises(RuntimeError) { job.perform_now }
        assert_equal 1, job.executions
      end
    end
  end
end
