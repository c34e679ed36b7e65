# frozen_string_literal: true

# The gem as a whole: small, without dependencies, quick to require.
require "open3"
require_relative "support"

class TestPackage < Support::Case
  GEM = File.expand_path("..", __dir__)

  STUB = %w[tidegate.rb tidegate/protocol.rb tidegate/connection.rb].freeze

  def test_the_stub_is_three_small_files
    Dir["#{GEM}/lib/**/*.rb"].each do |file|
      lines = File.readlines(file, chomp: true)
      assert_operator lines.size, :<=, 500, file
      assert_operator lines.map(&:size).max, :<=, 120, file
    end
  end

  def test_nothing_but_the_standard_library_is_required
    required = Dir["#{GEM}/lib/**/*.rb"].flat_map { |file| File.read(file).scan(/^\s*require "([^"]+)"/) }.flatten.uniq
    assert_equal %w[active_support/notifications digest/sha2 ipaddr json time weakref], required.sort
    assert_includes File.read("#{GEM}/lib/tidegate/notifications.rb"), %(require "active_support/notifications" unless)
    lists = STUB.filter_map { |file| File.read("#{GEM}/lib/#{file}")[/%w\[([^\]]+)\]\.each \{ \|library\| require/, 1] }
    assert_equal %w[digest/sha2 etc forwardable io/wait monitor socket], lists.flat_map(&:split).uniq.sort
  end

  PROGRAM = <<~RUBY
    require_relative "limiter"
    client = Tidegate::Client.new(socket: ARGV[0], timeout: 2)
    decisions = Array.new(3) { client.hit("api", { user: "u1" }) }
    abort "refused wrongly" unless decisions.map(&:allowed?) == [true, true, false]
    abort "not asked" unless decisions.all? { |d| !d.degraded? && d.rule == "per-user" } && client.check
    abort "no headers" unless decisions.last.headers["Retry-After"]
    abort "more than the stub" unless $LOADED_FEATURES.grep(%r{/tidegate/}).size == 2 && Thread.list.size == 1
  RUBY

  def test_the_stub_alone_copied_under_another_name_works
    daemon.rules("domain: api\nlimits: [{name: per-user, key: [user], rate: 1/min, burst: 2}]\n")
    daemon.start
    Dir.mkdir("#{@directory}/tidegate")
    STUB.each { |file| FileUtils.cp("#{GEM}/lib/#{file}", "#{@directory}/#{file.sub(/\Atidegate.rb/, 'limiter.rb')}") }
    File.write("#{@directory}/program.rb", PROGRAM)
    out, status = Open3.capture2e(RbConfig.ruby, "-w", "#{@directory}/program.rb", daemon.socket)
    assert status.success?, out
    assert_empty out
  end

  def test_requiring_and_making_a_client_starts_nothing
    program = "require 'tidegate'; c = Tidegate::Client.new(socket: '/nowhere'); " \
              "abort unless Thread.list.size == 1 && c.stats[:connections].zero? && !defined?(IPAddr) && !defined?(JSON)"
    assert system(RbConfig.ruby, "-w", "--disable-gems", "-I", Support::LIBRARY, "-e", program)
  end

  # As for a new user: built, installed into a new gem home, required.
  def test_the_gem_is_built_and_installed
    gem = { "GEM_HOME" => "#{@directory}/home", "GEM_PATH" => "#{@directory}/home" }
    out, status = Open3.capture2e(gem, "gem", "build", "--output", "#{@directory}/t.gem", "tidegate.gemspec", chdir: GEM)
    assert status.success?, out
    out, status = Open3.capture2e(gem, "gem", "install", "--local", "--no-document", "#{@directory}/t.gem")
    assert status.success?, out
    parts = %w[tidegate tidegate/rack tidegate/sidekiq tidegate/active_job tidegate/testing tidegate/pace]
    program = "#{parts.inspect}.each { |part| require part }; print Tidegate::VERSION, Tidegate::PumaSlots.name"
    out, status = Open3.capture2e(gem, RbConfig.ruby, "-w", "-e", program)
    assert_equal ["#{Tidegate::VERSION}Tidegate::PumaSlots", true], [out, status.success?]
  end
end
