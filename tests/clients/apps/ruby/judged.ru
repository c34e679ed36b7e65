# frozen_string_literal: true

# config.ru with X-Judged-Us, the time before it is entered. ASK_FIRST=1 sends a request before Puma forks, so that its
# children inherit a connection.
application = Rack::Builder.parse_file("#{__dir__}/config.ru")
application = application.first if application.is_a?(Array) # Rack 2 passes options, too

Tidegate.client.hit("api", { user: "u0" }) if ENV["ASK_FIRST"] == "1"

run(lambda do |env|
  began = Process.clock_gettime(Process::CLOCK_MONOTONIC, :microsecond)
  status, headers, body = application.call(env)
  headers["x-judged-us"] = (Process.clock_gettime(Process::CLOCK_MONOTONIC, :microsecond) - began).to_s
  [status, headers, body]
end)
