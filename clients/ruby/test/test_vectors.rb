# frozen_string_literal: true

# The golden frames and responses, the reference: tests/vectors. Responses of the middleware are in
# test_rack.rb.
require_relative "support"

class TestVectors < Support::Case
  GOOD, BAD, ANSWERS = %w[good bad answers].map { |name| JSON.parse(File.read("#{Support::VECTORS}/#{name}.json")) }
  OPS = %w[hello acquire release hit peek charge renew signal ping].freeze
  KINDS = %w[welcome decision done error goodbye].freeze
  CODES = { "malformed" => 1, "too_large" => 2, "version" => 3, "hello_required" => 4, "unknown_op" => 5, "invalid" => 6,
            "quota" => 7, "busy" => 8, "forbidden" => 9, "internal" => 10, "not_allowed" => 11 }.freeze
  FIELDS = %w[rule limit window_us remaining reset_us retry_us lease notes all extra].freeze
  Wire = Tidegate::Wire

  def payload(vector)
    data = [vector["hex"]].pack("H*")
    assert_equal data.unpack1("N"), data.bytesize - 4
    data.byteslice(4..)
  end

  # JSON has no byte strings.
  def real(value)
    case value
    when Hash then value.keys == ["bin"] ? [value["bin"]].pack("H*") : value.transform_values { |one| real(one) }
    when Array then value.map { |one| real(one) }
    else value
    end
  end

  # Returns the array of this meaning: a request without trailing nils, a reply in full.
  def encoded(meaning)
    entry = real(meaning)
    return reply(entry) if entry.key?("kind")

    options = entry["options"].then { |given| given.nil? || given.empty? ? nil : given }
    info = entry["info"].then { |given| given.nil? || given.empty? ? nil : given }
    tail = case entry["op"]
           when "hello" then [entry["version"], info]
           when "release" then [entry["lease"], %w[ok error dropped].index(entry["outcome"])]
           when "renew" then [entry["lease"]]
           when "signal" then entry.values_at("pool", "name", "permille")
           when "ping" then []
           when "charge" then [*entry.values_at("domain", "descriptors", "amount"), options]
           else [*entry.values_at("domain", "descriptors", "cost", "priority"), options]
           end
    whole = [OPS.index(entry["op"]), entry["id"], *tail]
    whole.pop while whole.last.nil? && whole.size > 2
    whole
  end

  def reply(entry)
    kind = KINDS.index(entry["kind"])
    case entry["kind"]
    when "welcome" then [kind, *entry.values_at("id", "version", "info")]
    when "decision"
      fields = entry.values_at(*FIELDS)
      fields[7] = fields[7]&.flatten(1)
      [kind, entry["id"], Tidegate::Decision::VERDICTS.index(entry["verdict"]), *fields]
    when "done" then [kind, *entry.values_at("id", "ok")]
    when "error" then [kind, entry["id"], CODES.fetch(entry["code"]), entry["message"]]
    else [kind, *entry.values_at("id", "reason")]
    end
  end

  def test_decodes_and_encodes_the_meaning
    GOOD.each do |vector|
      bytes = payload(vector)
      assert_equal MessagePack.unpack(bytes), Wire.decode(bytes), vector["name"]
      next unless vector["canonical"]

      assert_equal encoded(vector["meaning"]), Wire.decode(bytes), vector["name"]
      assert bytes == Wire.encode(encoded(vector["meaning"])), vector["name"]
    end
  end

  def test_a_request_of_the_clients_own_is_canonical
    count = GOOD.count do |vector|
      meaning = vector["meaning"]
      next unless vector["canonical"] && %w[acquire hit peek charge].include?(meaning["op"])

      id, domain, descriptors, cost, priority, options = (encoded(meaning) + ([nil] * 7))[1, 6]
      priority, options = nil, priority if meaning["op"] == "charge"
      # A client never writes a request without a descriptor, or with an empty value,
      # nor a frame without room for a longer id.
      next if descriptors.empty? || descriptors.flatten.include?("") ||
              vector["hex"].size > 2 * (Tidegate::FRAME_MAX - 11)

      given = descriptors.size == 1 ? descriptors[0].each_slice(2).to_a : descriptors.map { |one| one.each_slice(2).to_h }
      out = Wire.request(OPS.index(meaning["op"]), domain, given, cost, priority, options)
      assert payload(vector) == (Wire.encode(id, out.byteslice(4, 2)) << out.byteslice(9..)), vector["name"]
    end
    assert_operator count, :>, 20
  end

  def test_refuses_malformed_frames
    BAD.each do |vector|
      data = [vector["hex"]].pack("H*")
      next if vector["code"] != "malformed" || data.unpack1("N").zero?

      begin
        op, id = Wire.decode(data.byteslice(4, data.unpack1("N")))
      rescue Tidegate::Fault
        next
      end
      # Only a reader of requests detects the rest: op or id is no unsigned integer.
      refute([op, id].all? { |number| number.is_a?(Integer) && number.between?(0, (1 << 63) - 1) }, vector["name"])
    end
  end

  REFUSALS = %w[decision_digest decision_digest_alone decision_blocked].freeze

  # The fast path and the full decoder agree on every decision, and the fast path matches no other frame.
  def test_fast_path_and_full_decoder_agree
    quick = GOOD.select { |vector| vector["direction"] == "reply" }.filter_map do |vector|
      elements = Wire.decode([vector["hex"]].pack("H*").byteslice(4..))
      frame = Support.frame([elements[0], 0x1234, *elements.drop(2)])
      next unless Wire::PLAIN.match?(frame)

      assert_equal [1, "\x12\x34".b, elements[2]], [elements[0], frame.byteslice(7, 2), frame.getbyte(9)], vector["name"]
      long = Tidegate::Decision.from(elements.drop(2))
      short = Tidegate::Decision.new(frame, elements[2], nil)
      %i[verdict rule limit window remaining reset_after retry_after wait lease notes digest blocked? headers message].each do |what|
        long_says, short_says = [long, short].map { |decision| decision.public_send(what) }
        assert_equal([long_says], [short_says], "#{vector['name']} #{what}")
      end
      vector["name"]
    end
    assert_operator quick.size, :>, 5
    assert_empty REFUSALS - quick
  end

  def test_fast_path_matches_rates_of_3_to_15_characters
    fits = (0..40).select do |size|
      extra = { "rate" => "1" * size, "digest" => "0" * 32 }
      Wire::PLAIN.match?(Support.frame([1, 0x1234, *Support::LIMIT, nil, nil, nil, extra]))
    end
    assert_equal [*3..15], fits
  end

  [ANSWERS[0]["decision"], *GOOD.filter_map { |one| one["hex"] if REFUSALS.include?(one["name"]) }].each.with_index do |hex, i|
    define_method("test_fast_path_matches_no_other_frame_#{i}") { matches_no_other_frame(hex) }
  end

  def matches_no_other_frame(hex)
    elements = Wire.decode([hex].pack("H*").byteslice(4..))
    frame = Support.frame([1, 0x1234, *elements.drop(2)])
    pattern = Wire::PLAIN
    assert pattern.match?(frame)
    (4...frame.bytesize).each do |at|
      256.times do |byte|
        other = frame.dup.tap { |copy| copy.setbyte(at, byte) }
        next unless pattern.match?(other)

        message = MessagePack.unpack(other.byteslice(4..))
        assert_equal [13, 1], [message.size, message[0]]
        assert_nil Tidegate::Decision.from(message.drop(2)).reason
      end
    end
    (1..frame.bytesize).each { |cut| refute pattern.match?(frame.byteslice(0, frame.bytesize - cut)) }
  end

  ANSWERS.each do |answer|
    define_method("test_message_and_fields_of_#{answer['name']}") do
      decision = decided(answer)
      assert_equal answer["message"], decision.message
      assert_equal answer["status"], decision.status unless decision.allowed?
      next unless answer["style"] == "both" && !answer["status"].between?(300, 399)

      own = %w[Content-Type Content-Length Cache-Control]
      assert_equal answer["headers"].reject { |name, _| own.include?(name) }, decision.headers.to_a
    end
  end

  def decided(answer)
    elements = answer["decision"] ? Wire.decode([answer["decision"]].pack("H*").byteslice(4..)).drop(2) : nil
    elements ||= answer["status"] == 200 ? [0] : [2, *[nil] * 5, 1_000_000]
    Tidegate::Decision.from(elements, answer["reason"])
  end
end
