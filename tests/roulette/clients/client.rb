# frozen_string_literal: true

# As client.py, with the same output: client.rb NAME SOCKET OUT PAUSE_MS
require_relative "../../../clients/ruby/lib/tidegate"

MIX = %w[steady fleet calm work steady fleet window steady calm fleet work denied steady fleet calm work].freeze
USERS = { "steady" => "s", "fleet" => "f", "window" => "v", "work" => "w", "denied" => "d" }.freeze
HOLDS = [0.01, 0.05, 0.3].freeze

def now = Process.clock_gettime(Process::CLOCK_MONOTONIC)

name, path, out, pause = ARGV
file = File.open(out, File::WRONLY | File::CREAT | File::APPEND)
client = Tidegate::Client.new(socket: path)
ends = forks = false
trap("TERM") { ends = true }
trap("USR1") { forks = true }
number = 0
held = []
till = Float::INFINITY
write = ->(*words) { file.syswrite("#{words.join(' ')}\n") }

until ends || now > till
  if forks
    forks = false
    if fork.nil?
      name = "#{name}-child"
      held = []
      till = now + 2
      number += 1_000_000
    end
  end
  begin
    number += 1
    kind = MIX[number % MIX.size]
    user = USERS[kind] ? "#{USERS[kind]}#{number / MIX.size % 2}" : name
    began = now
    d = client.public_send(kind == "work" ? :acquire : :hit, "api", { kind: kind, user: user })
    write.("C", began, now, number, kind, user, d.verdict, d.reason || "-", d.rule || "-", d.retry_after || -1, d.lease ? 1 : 0)
    held << [now + HOLDS[number % HOLDS.size], number, d] if d.lease
    due, held = held.partition { |at, *| at < now }
    due.each do |_, one, decision|
      write.("R", now, one)
      decision.release
    end
  rescue StandardError => e
    write.("X", e.inspect.tr("\n", " "))
  end
  sleep(pause.to_f / 1000)
end
held.each do |_, one, decision|
  write.("R", now, one)
  decision.release
end
exit!(0)
