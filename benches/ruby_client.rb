#!/usr/bin/env ruby
# frozen_string_literal: true

# The cost of the Ruby client: `hit` and `acquire`, compared with the same bytes written and read without it, and with a
# GCRA script in Redis over its socket.
#
#     ruby benches/ruby_client.rb [--daemon target/release/tidegate] [--repetitions 7]
#
# Starts the daemon, and Redis if installed, on temporary sockets. Client and servers share one CPU, so that every call
# is two switches. A repetition alternates short rounds of all; its figure is the median round, and a ratio compares
# figures of one repetition. `bytes` is an ordinary Ruby socket with `write` and `readpartial`, `blocking` the same
# without O_NONBLOCK and without Ruby's buffer. It only prints: it is not a test.
require "io/nonblock"
require "optparse"
require "socket"
require "tmpdir"
require_relative "../clients/ruby/lib/tidegate"

RULES = "domain: api\nlimits:\n  - {name: per-user, key: [user], rate: 1000000/s, burst: 2000000}\n"
USER = { user: "u1" }.freeze
ROUNDS = 200
CALLS_PER_ROUND = 50
REQUEST = "\0\0\0\x14\x95\x01\xcd\x10\x00\xa3api\x91\x92\xa4user\xa2u1\x01".b.freeze
Call = Struct.new(:once, :after)

def main
  given = { daemon: File.expand_path("../target/release/tidegate", __dir__), repetitions: 7 }
  OptionParser.new do |options|
    options.on("--daemon PATH") { |path| given[:daemon] = path }
    options.on("--repetitions N", Integer) { |count| given[:repetitions] = count }
  end.parse!
  cpu = last_cpu
  system("taskset", "-cp", cpu.to_s, Process.pid.to_s, out: File::NULL) || abort("taskset is needed")
  Dir.mktmpdir("tg-") do |directory|
    Dir.mkdir("#{directory}/rules")
    File.write("#{directory}/rules/api.yaml", RULES)
    socket = "#{directory}/s"
    serve = [given[:daemon], "serve", "--socket", socket, "--rules", "#{directory}/rules"]
    at = "#{directory}/redis" if system("command -v redis-server >/dev/null")
    store = %w[redis-server --port 0 --save] + ["", "--unixsocket", at, "--dir", directory]
    servers = [serve, (store if at)].compact.map { |command| spawn(*command, out: File::NULL, err: File::NULL) }
    begin
      wait_for(socket)
      puts "Ruby #{RUBY_VERSION}, CPU #{cpu}, #{given[:repetitions]} repetitions; median [min-max]"
      compare(socket, at, given[:repetitions])
    ensure
      servers.each { |server| Process.kill(:TERM, server) && Process.wait(server) }
    end
  end
end

def compare(socket, at, repetitions)
  client = Tidegate::Client.new(socket: socket, timeout: 1.0)
  calls = { "bytes" => bare(socket), "blocking" => blocking(socket),
            "hit" => Call.new(-> { client.hit("api", USER) }, ->(_) {}),
            "acquire" => Call.new(-> { client.acquire("api", USER) }, ->(decisions) { decisions.each(&:release) }) }
  calls["GCRA in Redis"] = redis(at) if at
  calls.each_value { |call| 20.times { one_round(call) } }
  figures = calls.transform_values { [] }
  repetitions.times do
    rounds = calls.transform_values { [] }
    ROUNDS.times { calls.each { |name, call| rounds[name] << one_round(call) } }
    rounds.each { |name, round| figures[name] << median(round) }
  end
  abort(client.stats.inspect) unless client.stats[:missed].empty?
  report(figures)
end

def report(figures)
  show("bytes written and read", figures["bytes"], "µs")
  show("the same, blocking", figures["blocking"], "µs")
  %w[hit acquire].each do |name|
    show(name, figures[name], "µs")
    %w[bytes blocking].each do |other|
      show("#{name} ÷ #{other}", figures[name].zip(figures[other]).map { |one, bytes| one / bytes }, "")
    end
  end
  return unless (other = figures["GCRA in Redis"])

  show("GCRA in Redis", other, "µs")
  show("acquire ÷ GCRA in Redis", figures["acquire"].zip(other).map { |one, theirs| one / theirs }, "")
end

# Calls a preloaded script over an ordinary Ruby socket.
def redis(at)
  sleep(0.02) until File.socket?(at)
  stream = UNIXSocket.new(at)
  stream.write(resp("SCRIPT", "LOAD", File.read("#{__dir__}/sockets/gcra.lua")))
  digest = stream.readpartial(4_096).split[1]
  request = resp("EVALSHA", digest, "1", "api:u1", "1", "2000000", "1")
  Call.new(lambda {
    stream.write(request)
    stream.readpartial(4_096)
  }, ->(_) {})
end

def resp(*words) = "*#{words.size}\r\n".b << words.map { |word| "$#{word.bytesize}\r\n#{word.b}\r\n" }.join

# Sends an ACQUIRE encoded beforehand and reads its reply without decoding, without a deadline.
def bare(socket)
  stream = greeted(socket)
  Call.new(lambda {
    stream.write(REQUEST)
    stream.readpartial(4_096)
  }, ->(replies) { end_leases(stream, replies) })
end

def blocking(socket)
  stream = greeted(socket)
  stream.nonblock = false
  Call.new(lambda {
    stream.syswrite(REQUEST)
    stream.sysread(4_096)
  }, ->(replies) { end_leases(stream, replies) })
end

def greeted(socket)
  stream = UNIXSocket.new(socket)
  stream.write(frame("\x94\x00\x00\x01\x80".b))
  stream.readpartial(4_096)
  stream
end

def end_leases(stream, replies)
  leases = replies.map { |reply| Tidegate::Wire.decode(reply.byteslice(4..))[9] }
  leases.each { |lease| stream.write(frame(Tidegate::Wire.encode([Tidegate::RELEASE, nil, lease, 0]))) }
end

def frame(payload) = [payload.bytesize].pack("N") << payload

# Measures a round; leases are released after it, outside of the measurement.
def one_round(call)
  answers = Array.new(CALLS_PER_ROUND)
  started = Process.clock_gettime(Process::CLOCK_MONOTONIC)
  answers.map! { call.once.call }
  took = Process.clock_gettime(Process::CLOCK_MONOTONIC) - started
  call.after.call(answers)
  took / CALLS_PER_ROUND * 1e6
end

def median(figures) = figures.sort[figures.size / 2]

def last_cpu = File.read("/proc/self/status")[/^Cpus_allowed_list:.*?(\d+)$/, 1].to_i

def wait_for(socket)
  deadline = Process.clock_gettime(Process::CLOCK_MONOTONIC) + 10
  until Tidegate::Client.new(socket: socket, timeout: 1.0, logger: Class.new { def warn(*) = nil }.new).check
    abort("the daemon does not answer") if Process.clock_gettime(Process::CLOCK_MONOTONIC) > deadline
    sleep(0.02)
  end
end

def show(name, figures, unit)
  puts format("%-24<name>s %6.2<middle>f [%<least>.2f-%<most>.2f] %<unit>s",
              name: name, middle: median(figures), least: figures.min, most: figures.max, unit: unit).rstrip
end

main
