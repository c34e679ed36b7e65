# frozen_string_literal: true

# The client for tests of applications.
require "open3"
require_relative "support"
require_relative "../lib/tidegate/testing"

class TestTesting < Support::Case
  def setup
    super
    @fake = Tidegate::Testing::Client.new(logger: @log)
  end

  def test_allows_and_records_everything
    decision = @fake.acquire("api", { user: :u1, plan: nil }, cost: { tokens: 3 }, priority: "post")
    assert_equal [true, false, "allow", {}], [decision.allowed?, decision.degraded?, decision.verdict, decision.headers]
    @fake.hit("api", [{ user: "u2" }, { user: "u3", to: 1 }])
    assert @fake.charge("api", { user: "u1" }, -2)
    assert @fake.check
    @fake.signal("lag", 0.5)
    assert_equal [["acquire", "api", { "user" => "u1" }, { "tokens" => 3 }, "post"],
                  ["hit", "api", { "user" => "u2", "to" => "1" }, 1, nil],
                  ["charge", "api", { "user" => "u1" }, -2, nil]], @fake.asked.map(&:to_a)
    assert_equal [["default", "lag", 500]], @fake.signals
    assert_equal({ missed: {}, refused: {}, connections: 0, breaker_open: false }, @fake.stats)
  end

  def test_records_leases
    decision = @fake.acquire("api", { user: "u1" })
    error = assert_raises(Tidegate::Testing::Error) { @fake.assert_released }
    assert_includes error.message, "api"
    assert decision.renew
    decision.release
    @fake.assert_released
    refute decision.renew
    @fake.limit("api") { |one| assert_equal 1, @fake.held.size + (one.lease ? 0 : 1) }
    @fake.assert_released
  end

  def test_refusals_by_force
    @fake.force("per-user", "limit", user: "u1", retry_after: 30, limit: 40, window: 2)
    @fake.force("pool/workers", :shed, domain: "web")
    @fake.force("bots", "deny", user_agent: "bot")
    limited = @fake.acquire("api", { user: "u1" })
    assert_equal "Over the limit per-user of 40 requests in 2 s. Try again in 30 s.", limited.message
    assert_equal [429, "30", '"per-user";r=0;t=30'], [limited.status, *limited.headers.values_at("Retry-After", "RateLimit")]
    assert_equal [200, 503, 403], [@fake.hit("api", { user: "u2" }), @fake.hit("web"), @fake.hit("api", { user_agent: "bot" })].map(&:status)
    assert_raises(Tidegate::Denied) { @fake.limit("api", { user: "u1" }) { flunk } }
    assert_equal [0.5, true], @fake.force("q", "wait", retry_after: 0.5).then { @fake.hit("q").then { |d| [d.wait, d.allowed?] } }
    @fake.force("per-user", "limit", retry_after: nil)
    assert_nil @fake.hit("api").retry_after
    @fake.clear
    assert @fake.hit("web").allowed?
    assert_raises(ArgumentError) { @fake.force("x", "refuse") }
  end

  def test_invalid_requests_are_refused
    assert_equal ["invalid", 1], [@fake.hit("a/b").reason, @log.lines.size]
    assert_empty @fake.asked
  end

  RSPEC = <<~RUBY
    require "tidegate/testing"
    RSpec.configure { |config| config.include Tidegate::Testing::RSpec }
    RSpec.describe "an application" do
      it("is limited") { tidegate.force("r"); expect(Tidegate.hit("api").status).to eq(429) }
      it("gives back") { Tidegate.limit("api") { expect(Tidegate.hit("api")).to be_allowed } }
      it("forgets") { Tidegate.acquire("api") }
    end
  RUBY

  MINITEST = <<~RUBY
    require "minitest/autorun"
    require "tidegate/testing"
    class ApplicationTest < Minitest::Test
      include Tidegate::Testing::Minitest
      def test_is_limited = (tidegate.force("r"); assert_equal(429, Tidegate.hit("api").status))
      def test_releases_leases = Tidegate.limit("api") { assert Tidegate.hit("api").allowed? }
      def test_does_not_release = Tidegate.acquire("api")
    end
  RUBY

  def test_under_rspec
    skip "rspec is missing: its helper is not tested" unless Support.command?("rspec")
    out = ran("spec.rb", RSPEC, "rspec", "-I", Support::LIBRARY)
    assert_includes out, "3 examples, 1 failure"
    assert_includes out, "not released: api"
  end

  def test_under_minitest
    out = ran("own.rb", MINITEST, RbConfig.ruby, "-I", Support::LIBRARY)
    assert_match(/3 runs, \d assertions, 0 failures, 1 errors/, out)
    assert_includes out, "not released: api"
  end

  def ran(name, text, *command)
    File.write("#{@directory}/#{name}", text)
    Open3.capture2e(*command, "#{@directory}/#{name}").first
  end
end
