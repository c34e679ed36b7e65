# frozen_string_literal: true

# sig/tidegate.rbs names every public method and keyword of the client, and RBS reads it.
require "open3"
require_relative "support"
require_relative "../lib/tidegate/rack"
require_relative "../lib/tidegate/notifications"

class TestTypes < Support::Case
  SIGNATURES = File.expand_path("../sig", __dir__)

  # The lines of one class, from its name to the end at the same depth.
  def part(name)
    File.read("#{SIGNATURES}/tidegate.rbs")[/^( *)class #{name}\b.*?^\1end/m] || flunk("no class #{name}")
  end

  def test_every_public_method_has_a_type
    [Tidegate::Client, Tidegate::Decision].each do |kind|
      named = part(kind.name.split("::").last).scan(/(?:def|attr_reader|attr_writer) ([a-z_]+[?]?)/).flatten
      methods = kind.public_instance_methods(false).map { |name| name.to_s.delete_suffix("=") }
      assert_equal methods.uniq.sort - %w[inspect marshal_dump marshal_load], named.uniq.sort - %w[initialize inspect]
    end
  end

  def test_every_keyword_has_a_type
    { "Client" => [Tidegate::Client, %i[initialize acquire hit peek charge log]],
      "Middleware" => [Tidegate::Rack::Middleware, %i[initialize]] }.each do |name, (kind, methods)|
      methods.each do |method|
        typed = part(name)[/def #{method}: .*?(?=\n *(?:def|end)\b)/m].scan(/\?([a-z_]+):/).flatten
        keywords = kind.instance_method(method).parameters.filter_map { |type, word| word.to_s if type == :key }
        assert_equal keywords.sort, typed.sort, "#{kind}##{method}"
      end
    end
  end

  def test_rbs_reads_the_signatures
    program = Gem.bin_path("rbs", "rbs") # a gem that comes with Ruby, whose command need not be on the PATH
    out, status = Open3.capture2e(RbConfig.ruby, program, "-I", SIGNATURES, "validate")
    assert status.success?, out
  rescue Gem::GemNotFoundException
    skip "rbs is missing: the syntax of the signatures is not checked"
  end
end
