#!/usr/bin/env ruby
# frozen_string_literal: true

# Counts the calls of the Ruby client that get no reply when the daemon pauses: 8 threads call for one second, with the
# default deadline of 20 ms, while the daemon is stopped for 30 ms (SIGSTOP, SIGCONT).
#
#     ruby benches/ruby_pause.rb [--daemon target/release/tidegate] [--repetitions 5] [--pause-ms 30]
require "optparse"
require "tmpdir"
require_relative "../clients/ruby/lib/tidegate"

RULES = "domain: api\nlimits:\n  - {name: per-user, key: [user], rate: 1000000/s, burst: 2000000}\n"
SILENT = Class.new { def warn(*) = nil }.new

def main
  given = { daemon: File.expand_path("../target/release/tidegate", __dir__), repetitions: 5, pause: 30 }
  OptionParser.new do |options|
    options.on("--daemon PATH") { |path| given[:daemon] = path }
    options.on("--repetitions N", Integer) { |count| given[:repetitions] = count }
    options.on("--pause-ms N", Integer) { |count| given[:pause] = count }
  end.parse!
  Dir.mktmpdir("tg-") do |directory|
    Dir.mkdir("#{directory}/rules")
    File.write("#{directory}/rules/api.yaml", RULES)
    command = [given[:daemon], "serve", "--socket", "#{directory}/s", "--rules", "#{directory}/rules"]
    daemon = spawn(*command, out: File::NULL, err: File::NULL)
    begin
      sleep(0.02) until Tidegate::Client.new(socket: "#{directory}/s", timeout: 1.0, logger: SILENT).check
      given[:repetitions].times { puts measure("#{directory}/s", daemon, given[:pause]) }
    ensure
      Process.kill(:KILL, daemon)
      Process.wait(daemon)
    end
  end
end

def measure(socket, daemon, pause)
  client = Tidegate::Client.new(socket: socket, logger: SILENT)
  stop = false
  threads = Array.new(8) do |i|
    Thread.new do
      calls = 0
      calls += 1 while client.hit("api", { user: "u#{i}" }) && !stop
      calls
    end
  end
  sleep(0.4)
  Process.kill(:STOP, daemon)
  sleep(pause / 1_000.0)
  Process.kill(:CONT, daemon)
  sleep(0.6)
  stop = true
  "#{threads.sum(&:value)} calls, #{client.stats[:missed].values.sum} unjudged: #{client.stats[:missed]}"
end

main
