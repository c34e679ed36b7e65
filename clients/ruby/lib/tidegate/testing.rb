# frozen_string_literal: true

# For tests of applications: a client that asks nobody and knows what it was asked, what is held, and what it was told
# to refuse.
#
#     class CheckoutTest < Minitest::Test
#       include Tidegate::Testing::Minitest       # RSpec: config.include Tidegate::Testing::RSpec
#
#       def test_who_pays_too_often_is_told_so
#         tidegate.force("per-card", "limit", retry_after: 30)
#         post "/charges"
#         assert_equal 429, last_response.status
#       end                                       # leases that are still held fail the test
#     end

require_relative "../tidegate"

module Tidegate
  module Testing
    class Error < StandardError; end

    # What was asked: "acquire", "hit", "peek" or "charge", of which domain, with which attributes (of all descriptors,
    # the first value of a name).
    Asked = Struct.new(:operation, :domain, :attributes, :cost, :priority)

    # In place of the program's client. Every request is written and read as on the socket, so that what the daemon
    # would not take is noticed; nothing is opened.
    class Client < Tidegate::Client
      # In place of a connection, for one request.
      class Line < Connection
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

      # From now on `rule` gives this verdict (limit, shed, deny, wait, allow) to whom it concerns: in `domain`, with
      # these attributes. The last that fits stands. `retry_after`: seconds, or nil for never.
      def force(rule, verdict = "limit", domain: nil, limit: 10, window: 1, remaining: 0, retry_after: 1, **attributes)
        number = Decision::VERDICTS.index(verdict.to_s) || raise(ArgumentError, "no verdict: #{verdict}")
        numbers = number == 2 || number == 4 ? [nil] * 4 : [limit, micro(window), remaining, micro(retry_after || 0)]
        retry_us = { 0 => 0, 4 => nil }.fetch(number) { micro(retry_after) }
        wanted = attributes.to_h { |name, value| [name.to_s, value.to_s] }
        @forced.unshift([domain&.to_s, wanted, [number, rule, *numbers, retry_us]])
      end

      # Forgets what was forced, asked and held.
      def clear
        @forced, @asked, @signals, @held, @leases = [], [], [], {}, 0
        nil
      end

      # What has been acquired and not released.
      def held = @held.values

      def assert_released
        left = held.map { |one| "#{one.domain} #{one.attributes}" }
        raise Error, "not released: #{left.join('; ')}" unless left.empty?
      end

      private

      def connect = Line.new(self, 1)

      def answer(line, wanted, request)
        operation, _, *said = Wire.decode(request.byteslice(4..))
        return judged(line, operation, said) if wanted == DECISION

        case operation
        when RELEASE then @held.delete(said[0]) && nil
        when SIGNAL then (@signals << said) && nil
        when CHARGE then @asked << question_of(operation, said)
        end
        wanted && [operation != RENEW || @held.key?(said[0])]
      end

      def judged(line, operation, said)
        @asked << (question = question_of(operation, said))
        _, _, elements = @forced.find do |domain, attributes, _|
          (domain.nil? || domain == question.domain) && attributes <= question.attributes
        end
        elements ||= [0, nil, nil, nil, nil, nil, 0]
        granted = operation == ACQUIRE && [0, 3].include?(elements[0])
        @held[@leases += 1] = question if granted
        Decision.from([*elements, granted ? @leases : nil], nil, line, @leases)
      end

      def question_of(operation, said)
        domain, descriptors, cost, priority = said
        attributes = descriptors.flat_map { |one| one.each_slice(2).to_a }.reverse.to_h
        Asked.new(OPERATIONS[operation], domain, attributes, cost, priority)
      end
    end

    # What both libraries do around a test.
    module Helper
      # The client that stands in for the program's.
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
