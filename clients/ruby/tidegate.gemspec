# frozen_string_literal: true

require_relative "lib/tidegate"

Gem::Specification.new do |spec|
  spec.name = "tidegate"
  spec.version = Tidegate::VERSION
  spec.summary = "Client of tidegate, the rate limiting daemon of this host"
  spec.description = "Limits the requests of Rack, Sidekiq, Active Job or plain Ruby programs through tidegate."
  spec.authors = ["tidegate"]
  spec.license = "MIT"
  spec.homepage = "https://github.com/tidegate/tidegate"
  spec.required_ruby_version = ">= 3.1"
  spec.files = Dir["lib/**/*.rb", "sig/*.rbs", "README.md", "CHANGELOG.md", "LICENSE", ".yardopts", base: __dir__]
  spec.metadata = { "rubygems_mfa_required" => "true" }
end
