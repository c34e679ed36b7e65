# frozen_string_literal: true

# The Ruby application for the tests of all clients: its response depends on the path alone.
#
#     TIDEGATE_SOCKET=… PORT=… puma --config tests/clients/apps/ruby/puma.rb tests/clients/apps/ruby/config.ru
require_relative "../../../../clients/ruby/lib/tidegate/rack"

TEXT = { "content-type" => "text/plain" }.freeze

# Three chunks, with time between them to hang up.
chunks = Class.new do
  def each
    3.times do |i|
      yield "chunk #{i}\n"
      sleep(0.01)
    end
  end
end

# WITHOUT_LIMITER=1 is the application alone, for comparison.
unless ENV["WITHOUT_LIMITER"] == "1"
  Tidegate.configure { |settings| settings.pool = ENV.fetch("POOL", "default") }
  use Tidegate::Rack::Middleware, domain: "api", user: ->(env) { env["HTTP_X_USER"] }
end

run(lambda do |env|
  path = env["PATH_INFO"]
  raise "boom" if path == "/boom"
  next [200, TEXT.dup, chunks.new] if path == "/stream"

  sleep(env["QUERY_STRING"][/\bms=(\d+)/, 1].to_i / 1_000.0) if path == "/slow"
  [200, TEXT.dup, ["you asked for #{path}\n"]]
end)
