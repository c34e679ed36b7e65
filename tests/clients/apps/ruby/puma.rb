# frozen_string_literal: true

bind "tcp://127.0.0.1:#{ENV.fetch('PORT')}"
workers ENV.fetch("WORKERS", "0").to_i
threads 1, ENV.fetch("THREADS", "5").to_i
persistent_timeout 60
preload_app! if ENV["PRELOAD"] == "1"
environment "production"
log_requests false
quiet
lowlevel_error_handler { |_error, *| [500, { "content-type" => "text/plain" }, ["error\n"]] }
