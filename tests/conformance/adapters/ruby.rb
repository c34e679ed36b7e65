# frozen_string_literal: true

# The adapter of the Ruby client: a command as a line of JSON on standard input, its result on standard output.
require "json"
require_relative "../../../clients/ruby/lib/tidegate"

CLIENTS = {}
LINES = []
DECISIONS = []
LOGGER = Object.new.tap { |logger| logger.define_singleton_method(:warn) { |line| LINES << line } }

def micros(seconds) = seconds && (seconds * 1_000_000).round
def took(began) = (Process.clock_gettime(Process::CLOCK_MONOTONIC, :nanosecond) - began) / 1_000

def result(decision, began)
  { took_us: took(began), allowed: decision.allowed?, verdict: decision.verdict, status: decision.status,
    degraded: decision.degraded?, reason: decision.reason, rule: decision.rule, limit: decision.limit,
    remaining: decision.remaining, lease: decision.lease, retry_us: micros(decision.retry_after),
    wait_us: micros(decision.wait) }.tap { DECISIONS << decision }
end

# `{"invalid": true}` is text that is no UTF-8.
def ask(given)
  odd = { "invalid" => "\xff\xfe", "object" => Object.new }
  attributes = given["attributes"].transform_values { |value| value.is_a?(Hash) ? odd[value.keys[0]] : value }
  options = given.slice("cost", "priority", "idem", "on_failure").transform_keys(&:to_sym)
  began = Process.clock_gettime(Process::CLOCK_MONOTONIC, :nanosecond)
  result(CLIENTS[given["client"]].public_send(given["do"], given["domain"], attributes, **options), began)
rescue StandardError => e
  { raised: e.class.name, took_us: took(began) }
end

# Runs work under a lease, which raises if `fails`.
def work(given)
  ran = false
  CLIENTS[given["client"]].limit(given["domain"], given["attributes"]) do
    ran = true
    raise KeyError, "of the application" if given["fails"]
  end
  { ran: ran }
rescue StandardError => e
  { ran: ran, raised: e.class.name }
end

def crowd(given)
  callers = Array.new(given["callers"]) { |i| given.merge("do" => "hit", "attributes" => { "user" => "u#{i}" }) }
  callers.map { |caller| Thread.new { ask(caller) } }.map(&:value)
end

# Asks in a forked child.
def ask_in_child(given)
  reader, writer = IO.pipe
  child = fork do
    writer.write(ask(given.merge("do" => "hit")).to_json)
    writer.close
    exit!(0)
  end
  writer.close
  JSON.parse(reader.read).tap { Process.wait(child) }
end

def make(given)
  options = given.slice("fallback", "enabled").transform_keys(&:to_sym)
  timeout = given["timeout_ms"]&.fdiv(1_000)
  CLIENTS[given["client"]] = Tidegate::Client.new(socket: given["socket"], timeout: timeout, logger: LOGGER, **options)
  {}
end

def answer(given)
  case given["do"]
  when "make" then make(given)
  when "crowd" then { all: crowd(given) }
  when "work" then work(given)
  when "fork" then ask_in_child(given)
  when "release" then DECISIONS.last.release(given["outcome"]) || {}
  when "log" then { lines: LINES.slice!(0, LINES.size) }
  when "stats" then CLIENTS[given["client"]].stats
  else ask(given)
  end
end

$stdout.sync = true
$stdin.each_line { |line| puts(answer(JSON.parse(line)).to_json) }
