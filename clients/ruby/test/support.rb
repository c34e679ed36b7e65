# frozen_string_literal: true

# A scripted daemon, and the real one, on a socket in a temporary directory.
require "json"
require "minitest/autorun"
require "msgpack"
require "socket"
require "tmpdir"

require_relative "../lib/tidegate"

module Support
  ROOT = File.expand_path("../../..", __dir__)
  LIBRARY = File.expand_path("../lib", __dir__)
  VECTORS = "#{ROOT}/tests/vectors"
  ALLOW = [0, "per-user", 40, 2_000_000, 39, 50_000, 0].freeze
  LIMIT = [1, "per-user", 40, 2_000_000, 0, 50_000, 50_000].freeze
  FIRST = Tidegate::ID_MIN # the id of a connection's first request
  PATIENT = 10.0 # for tests that are not about the deadline, on a busy machine
  SLACK = 2.0 # seconds beyond a deadline that a busy machine may cause

  def self.frame(message)
    payload = message.is_a?(String) ? message.b : message.to_msgpack
    [payload.bytesize].pack("N") << payload
  end

  def self.command?(name) = ENV["PATH"].split(":").any? { |place| File.executable?("#{place}/#{name}") }
  def self.now = Process.clock_gettime(Process::CLOCK_MONOTONIC)

  # A port for a server that binds it itself: below the range from which the kernel assigns ports.
  def self.free_port
    (10_000...30_000).to_a.shuffle.find do |port|
      TCPServer.open("127.0.0.1", port, &:close)
      true
    rescue Errno::EADDRINUSE
      false
    end
  end

  # Waits for a condition; false if it does not hold in time.
  def self.eventually(seconds = 60)
    deadline = now + seconds
    until (value = yield)
      return false if now > deadline

      sleep(0.002)
    end
    value
  end

  # Records the log; its lines.
  class Log
    attr_reader :lines

    def initialize = @lines = []
    def warn(text) = @lines << text
  end

  # A scripted daemon: `script` gets the connection and every request but HELLO and PING, and returns
  # a reply, bytes, or nil for none. `seen` has every message, including HELLO.
  class Played
    # `pong`: called before the reply to a PING; `most`: connections at a time, further ones get `busy`.
    attr_accessor :script, :pong, :most
    attr_reader :seen, :connections, :path

    def initialize(path)
      @path = path
      @seen = []
      @connections = []
      @script = ->(_, message) { [1, message[1], *ALLOW] }
      @listener = UNIXServer.new(path)
      @thread = Thread.new { accept }
    end

    def requests = @seen.reject { |message| message[0].zero? }

    # The last report of a request. The daemon may read an abandoned request after a later one.
    def last_report = @seen.filter_map { |message| message[6] }.last

    # Waits for RELEASEs, which the client does not wait for, and returns their leases and outcomes.
    def releases(count = 1)
      Support.eventually(PATIENT) { @seen.count { |message| message[0] == 2 } >= count }
      @seen.select { |message| message[0] == 2 }.map { |message| message[2..] }
    end

    def hang_up
      @connections.each do |connection|
        connection.shutdown
        connection.close
      rescue IOError, SystemCallError
        nil
      end
      @connections.clear
    end

    def stop
      @listener.close
      @thread.join(1)
      hang_up
      File.unlink(@path)
    rescue IOError, SystemCallError
      nil
    end

    private

    def accept
      loop do
        connection = @listener.accept
        if @most && @connections.size >= @most
          connection.write(Support.frame([3, nil, 8, "too many connections"]))
          connection.close
          next
        end
        @connections << connection
        Thread.new { serve(connection) }
      end
    rescue IOError, SystemCallError
      nil
    end

    def serve(connection)
      data = String.new
      loop do
        data << connection.readpartial(65_536)
        while data.bytesize >= 4 && data.bytesize >= (stop = 4 + data.unpack1("N"))
          message = MessagePack.unpack(data.byteslice(4, stop - 4))
          data = data.byteslice(stop..)
          answer(connection, message)
        end
      end
    rescue IOError, SystemCallError
      nil
    end

    def answer(connection, message)
      @seen << message
      reply = case message[0]
              when 0 then [0, message[1], 1, { "server" => "played/1", "boot" => 1, "connection" => 1 }]
              when 8
                @pong&.call
                [2, message[1], true]
              else @script.call(connection, message)
              end
      reply = nil if message[1].nil? && reply.is_a?(Array) # without an id there is no reply, not even an ERROR
      connection.write(reply.is_a?(Array) ? Support.frame(reply) : reply) unless reply.nil?
    end
  end

  # A real daemon.
  class Daemon
    attr_reader :socket, :pid

    def self.binary
      given = ENV["TIDEGATE_BIN"] ? [ENV["TIDEGATE_BIN"]] : %w[release debug].map { |kind| "#{ROOT}/target/#{kind}/tidegate" }
      # The newest build: an older one may be of another version.
      given.select { |path| File.exist?(path) }.max_by { |path| File.mtime(path) } || raise("no tidegate to test with: cargo build, or set TIDEGATE_BIN")
    end

    def initialize(directory)
      @socket = "#{directory}/tidegate.sock"
      @admin = "#{directory}/tidegate.admin.sock"
      @rules = "#{directory}/rules"
      Dir.mkdir(@rules)
    end

    def rules(text) = File.write("#{@rules}/api.yaml", text)

    def start
      serve = [Daemon.binary, "serve", "--socket", @socket, "--rules", @rules]
      @pid = spawn(*serve, out: File::NULL, err: File::NULL)
      ready = Support.eventually(20) do
        raise "the daemon ended" if Process.waitpid(@pid, Process::WNOHANG)

        greeted?
      end
      raise "the daemon does not answer" unless ready
    end

    # A connection without a session, which leaves no state.
    def greeted?
      stream = UNIXSocket.new(@socket)
      stream.write(Support.frame([0, 0, 1]))
      stream.wait_readable(5) && !stream.readpartial(4_096).empty?
    rescue SystemCallError, EOFError
      false
    ensure
      stream&.close
    end

    # Fields of `GET /status` at the admin socket.
    def status
      stream = UNIXSocket.new(@admin)
      stream.write("GET /status HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
      JSON.parse(stream.read.split("\r\n\r\n", 2).last)
    ensure
      stream&.close
    end

    def signal(name) = Process.kill(name, @pid)

    def stop(signal = :KILL)
      return if @pid.nil? || Process.waitpid(@pid, Process::WNOHANG)

      Process.kill(:CONT, @pid)
      Process.kill(signal, @pid)
      Process.wait(@pid)
      @pid = nil
    end
  end

  # A test with its own directory and a cleared environment.
  class Case < Minitest::Test
    ENVIRONMENT = %w[TIDEGATE_SOCKET TIDEGATE_TIMEOUT_MS TIDEGATE_DISABLE XDG_RUNTIME_DIR].freeze

    def setup
      @kept = ENVIRONMENT.to_h { |name| [name, ENV.delete(name)] }
      @directory = Dir.mktmpdir("tg-")
      @log = Log.new
      @undone = []
    end

    def teardown
      @undone.reverse_each(&:call)
      @clients&.each(&:close)
      @played&.stop
      @daemon&.stop
      FileUtils.remove_entry(@directory)
      @kept.each { |name, value| ENV[name] = value }
    end

    def played = @played ||= Played.new("#{@directory}/s")
    def daemon = @daemon ||= Daemon.new(@directory)

    def make_client(**options)
      client = Tidegate::Client.new(**{ socket: "#{@directory}/s", timeout: PATIENT, logger: @log }.merge(options))
      (@clients ||= []) << client
      client
    end

    # Made on first use: by the test, before its threads.
    def client = @client ||= make_client

    # Replaces a method of one object, or of a class, for the rest of the test.
    def replace(object, name, &body)
      original = object.method(name)
      own = object.singleton_methods(false).include?(name)
      verbosely(nil) { object.define_singleton_method(name, &body) }
      @undone << lambda {
        verbosely(nil) { own ? object.define_singleton_method(name, original) : object.singleton_class.remove_method(name) }
      }
    end

    # Replaces a constant for the rest of the test.
    def constant(name, value)
      old = Tidegate.const_get(name)
      verbosely(nil) { Tidegate.const_set(name, value) }
      @undone << -> { verbosely(nil) { Tidegate.const_set(name, old) } }
    end

    def verbosely(level)
      old = $VERBOSE
      $VERBOSE = level
      yield
    ensure
      $VERBOSE = old
    end

    # Makes the next pause of the client's breaker at least a second, for slow machines.
    def long_pause(client) = client.instance_variable_get(:@breaker).instance_variable_set(:@pause, Tidegate::Breaker::PAUSE_MAX)

    # Replaces the client's clock by a stopped one; `rand` gives the longest pause.
    def still_clock
      clock = Struct.new(:now).new(1_000.0)
      replace(Process, :clock_gettime) { |_, unit = nil| unit == :nanosecond ? (clock.now * 1e9).round : clock.now }
      Tidegate::Breaker.define_method(:rand) { |range| range.end }
      @undone << -> { Tidegate::Breaker.remove_method(:rand) }
      clock
    end

    # Runs the block in a forked child; true if it returned true.
    def in_child
      pid = fork do
        code = 1
        begin
          code = 0 if yield
        rescue Exception => e # rubocop:disable Lint/RescueException
          warn e.full_message
        ensure
          exit!(code)
        end
      end
      Process.wait2(pid).last.success?
    end

    def hits(client, count = 1, **options) = Array.new(count) { client.hit("api", { user: "u1" }, **options) }
    def reasons(decisions) = decisions.map(&:reason)
    def grant(_connection, message) = message[0] == 1 ? [1, message[1], *ALLOW, 77 - FIRST + message[1]] : [2, message[1], true]

    def granting
      played.script = method(:grant)
      played
    end
  end
end
