# frozen_string_literal: true

# For tests of applications: a client without a daemon that records requests and leases, and refuses as configured.
#
#     class CheckoutTest < Minitest::Test
#       include Tidegate::Testing::Minitest       # RSpec: config.include Tidegate::Testing::RSpec
#
#       def test_limits_payments
#         tidegate.force("per-card", "limit", retry_after: 30)
#         post "/charges"
#         assert_equal 429, last_response.status
#       end                                       # leases that are still held fail the test
#     end

require_relative "../tidegate"

module Tidegate
  # The client for tests, and its adapters for Minitest and RSpec.
  module Testing
    # A test ended with leases that it did not release.
    class Error < StandardError; end

    # A recorded request. `operation`: "acquire", "hit", "peek" or "charge"; `attributes`: those of all descriptors, the
    # first value of each name.
    Asked = Struct.new(:operation, :domain, :attributes, :cost, :priority)

    # Replaces the program's client. Encodes and decodes every request, so that invalid ones fail as with the daemon;
    # opens no socket.
    class Client < Tidegate::Client
      # Replaces a connection, for one request.
      class FakeConnection < Connection
        def write(wanted, request)
          @reply = client.__send__(:answer, self, wanted, request)
          @used = 0.0
        end

        def read(_wanted) = @reply
        def spent = true
      end
      OPERATIONS = { ACQUIRE => "acquire", HIT => "hit", PEEK => "peek", CHARGE => "charge" }.freeze
      attr_reader :asked, :signals

      def initialize(**options)
        super(**options, socket: "/dev/null/tidegate")
        clear
      end

      # Sets the verdict (limit, shed, deny, wait, allow) of requests in `domain` with these attributes. The last
      # matching call applies. `retry_after`: seconds, or nil for never.
      def force(rule, verdict = "limit", domain: nil, limit: 10, window: 1, remaining: 0, retry_after: 1, **attributes)
        number = Decision::VERDICTS.index(verdict.to_s) || raise(ArgumentError, "no verdict: #{verdict}")
        numbers = number == 2 || number == 4 ? [nil] * 4 : [limit, micro(window), remaining, micro(retry_after || 0)]
        retry_us = { 0 => 0, 4 => nil }.fetch(number) { micro(retry_after) }
        wanted = attributes.to_h { |name, value| [name.to_s, value.to_s] }
        @forced.unshift([domain&.to_s, wanted, [number, rule, *numbers, retry_us]])
      end

      # Clears forced decisions, recorded requests and leases.
      def clear
        @forced, @asked, @signals, @held, @leases = [], [], [], {}, 0
        nil
      end

      # Lists requests whose lease has not been released.
      def held = @held.values

      def assert_released
        left = held.map { |one| "#{one.domain} #{one.attributes}" }
        raise Error, "not released: #{left.join('; ')}" unless left.empty?
      end

      private

      def connect = FakeConnection.new(self, 1)

      def answer(connection, wanted, request)
        operation, _, *fields = Wire.decode(request.byteslice(4..))
        return decide(connection, operation, fields) if wanted == DECISION

        case operation
        when RELEASE then @held.delete(fields[0]) && nil
        when SIGNAL then (@signals << fields) && nil
        when CHARGE then @asked << parse_request(operation, fields)
        end
        wanted && [operation != RENEW || @held.key?(fields[0])]
      end

      def decide(connection, operation, fields)
        @asked << (request = parse_request(operation, fields))
        _, _, elements = @forced.find do |domain, attributes, _|
          (domain.nil? || domain == request.domain) && attributes <= request.attributes
        end
        elements ||= [0, nil, nil, nil, nil, nil, 0]
        granted = operation == ACQUIRE && [0, 3].include?(elements[0])
        @held[@leases += 1] = request if granted
        Decision.from([*elements, granted ? @leases : nil], nil, connection, @leases)
      end

      def parse_request(operation, fields)
        domain, descriptors, cost, priority = fields
        attributes = descriptors.flat_map { |one| one.each_slice(2).to_a }.reverse.to_h
        Asked.new(OPERATIONS[operation], domain, attributes, cost, priority)
      end
    end

    # Setup and teardown for both libraries.
    module Helper
      # The client that replaces the program's.
      attr_reader :tidegate

      private

      def stand_in
        @before_tidegate = Tidegate.instance_variable_get(:@client)
        Tidegate.client = @tidegate = Client.new
      end

      def stand_back
        Tidegate.client = @before_tidegate
        @tidegate&.assert_released
      end
    end

    # For Minitest, and for the tests of Rails.
    module Minitest
      include Helper

      def before_setup
        stand_in
        super
      end

      def after_teardown
        super
      ensure
        capture_exceptions { stand_back }
      end
    end

    # For RSpec: config.include Tidegate::Testing::RSpec
    module RSpec
      include Helper

      def self.included(group)
        group.before { stand_in }
        group.after { stand_back }
      end
    end
  end
end
