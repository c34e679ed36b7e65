# frozen_string_literal: true

# The codec against an independent one and malformed frames; tables of requests.
require_relative "support"

class TestWire < Support::Case
  Wire = Tidegate::Wire
  SEED = (ENV["SEED"] || Random.new_seed % 10_000).to_i

  def setup
    super
    @random = Random.new(SEED)
  end

  def any(depth)
    case depth.zero? ? @random.rand(5) : @random.rand(7)
    when 0 then [nil, true, false].sample(random: @random)
    when 1 then @random.rand(1 << (1 + @random.rand(64)))
    when 2 then -1 - @random.rand(1 << @random.rand(64))
    when 3 then ["é🌊\0", "x" * @random.rand(300), ""].sample(random: @random)
    when 4 then @random.bytes(@random.rand(300))
    when 5 then Array.new(@random.rand(20)) { any(depth - 1) }
    else Array.new(@random.rand(20)) { |i| ["k#{i}", any(depth - 1)] }.to_h
    end
  end

  def test_encodes_and_decodes_like_the_reference
    500.times do
      message = Array.new(@random.rand(20)) { any(3) }
      bytes = message.to_msgpack
      assert_equal bytes, Wire.encode(message), "SEED=#{SEED}"
      assert_equal message, Wire.decode(bytes), "SEED=#{SEED}"
      cut = bytes.byteslice(0, @random.rand(bytes.bytesize))
      [cut, bytes.b << 0xc0].each { |broken| assert_raises(Tidegate::Fault, "SEED=#{SEED}") { Wire.decode(broken) } }
    end
  end

  def test_any_bytes_are_read_or_malformed
    5_000.times do
      bytes = @random.bytes(@random.rand(30)).tap { |data| data.setbyte(0, 0x90 | (data.getbyte(0) & 3)) unless data.empty? }
      begin
        message = Wire.decode(bytes)
      rescue Tidegate::Fault
        next
      end
      assert_equal MessagePack.unpack(bytes), message, "SEED=#{SEED}"
    end
  end

  DOUBTFUL = {
    empty: "", not_an_array: "\x05", map: "\x80", float32: "\x91\xca\0\0\0\0", float64: "\x91\xcb\0\0\0\0\0\0\0\0",
    fixext: "\x91\xd4\x01\0", ext8: "\x91\xc7\0\x01", unused: "\x91\xc1", not_utf8: "\x91\xa1\xff",
    surrogate: "\x91\xa3\xed\xa0\x80", key_twice: "\x91\x82\xa1a\x01\xa1a\x02", key_integer: "\x91\x81\x01\x02",
    key_array: "\x91\x81\x90\x02", key_bytes: "\x91\x81\xc4\x01a\x02", too_deep: "\x91\x91\x91\x91\x90",
    map_too_deep: "\x91\x91\x91\x91\x80", count_beyond: "\xdd\xff\xff\xff\xff", map_count_beyond: "\x91\xdf\xff\xff\xff\xff",
    text_beyond: "\x91\xdb\xff\xff\xff\xff", bin_beyond: "\x91\xc6\xff\xff\xff\xffx", fixstr_beyond: "\x91\xa5abc",
    integer_cut: "\x91\xce\0\0", signed_cut: "\x91\xd2\0\0", trailing: "\x90\0"
  }.freeze

  def test_malformed_frames_raise
    DOUBTFUL.each { |name, bytes| assert_raises(Tidegate::Fault, name) { Wire.decode(bytes.b) } }
  end

  def test_four_levels_and_wide_forms_are_read
    assert_equal [[[[]]]], Wire.decode("\x91\x91\x91\x90".b)
    wide = "\xdc\0\4\xcf#{"\0" * 7}\5\xd3#{"\xff" * 8}\xdb\0\0\0\1a\xde\0\0"
    assert_equal [5, -1, "a", {}], Wire.decode(wide.b)
  end

  def test_refuses_to_encode_other_types
    [1.5, Object.new, 1 << 64, (-1 << 63) - 1].each { |value| assert_raises(Tidegate::Fault) { Wire.encode([value]) } }
  end

  def descriptors(given) = MessagePack.unpack(written(given))[1]

  def written(given, domain: "api", cost: 1)
    "\x93".b << Wire.request(Tidegate::HIT, domain, given, cost).byteslice(9..)
  end

  def sha(text) = Digest::SHA256.hexdigest(text)[0, 32]

  def test_attributes_as_they_are_sent
    table = {
      nil => [[]], {} => [[]], { user: "u1" } => [%w[user u1]],
      { b: "1", a: "2" } => [%w[b 1 a 2]], # the order is kept
      { user: nil, ip: "" } => [[]],
      { n: 7, t: true, f: false, b: "raw".b, x: 1.5, s: :sym } => [%w[n 7 t true f false b raw x 1.5 s sym]],
      { b: "\xff\xfe".b } => [["b", "\ufffd\ufffd"]], { s: "\xffx" } => [["s", "\ufffdx"]], { e: "🌊" } => [%w[e 🌊]],
      { latin: "é".encode("ISO-8859-1") } => [%w[latin é]], { long: "é" * 40 } => [["long", "é" * 40]],
      [%w[a 1], %w[a 2]] => [%w[a 1 a 2]], { v: "x" * 1_024 } => [["v", "x" * 1_024]],
      { v: "x" * 1_025 } => [["v", "#{'x' * 960}~#{sha('x' * 1_025)}"]],
      # 960 bytes would end within a character
      { v: "x#{'é' * 600}" } => [["v", "x#{'é' * 479}~#{sha("x#{'é' * 600}")}"]],
      (1..7).to_h { |i| ["k#{i}", "v"] } => [(1..7).flat_map { |i| ["k#{i}", "v"] }],
      (1..8).to_h { |i| ["k#{i}", "v"] } => [(1..8).flat_map { |i| ["k#{i}", "v"] }],
      (1..16).to_h { |i| ["k#{i}", "v"] } => [(1..16).flat_map { |i| ["k#{i}", "v"] }],
      [{ a: "1" }, { b: "2" }] => [%w[a 1], %w[b 2]],
      Struct.new(:user, :ip).new("u1") => [%w[user u1]], { a: "1" }.each => [%w[a 1]]
    }
    table.each { |given, expected| assert_equal expected, descriptors(given), given.inspect[0, 60] }
  end

  def test_invalid_requests_are_not_encoded
    [(1..17).to_h { |i| ["k#{i}", "v"] }, { "a/b" => nil }, (1..17).map { |i| ["k#{i}", "v"] }, { "a:b" => "1" }, { "a/b" => "1" },
     { "" => "1" }, { "a\n" => "1" }, { "a\u0085" => "1" }, { "k" * 65 => "1" }, { "é" * 33 => "1" }, { 1 => "1" },
     { "\xff" => "1" }, { nil => "1" }, { a: BasicObject.new }, %w[user u1], [%w[user u1 more]], "user", 7].each do |given|
      assert_raises(Tidegate::Fault) { written(given) }
    end
  end

  def test_costs
    [0, 1, (1 << 32) - 1, 1 << 32, (1 << 64) - 1, { "requests" => 1, "tokens" => 800 }, {}].each do |cost|
      assert_equal cost, MessagePack.unpack(written(nil, cost: cost))[2]
    end
  end

  def test_the_longest_values_become_digests_until_the_frame_fits
    values = (0...16).map { |i| format("%02d", i) + ("x" * (1_000 + (i % 2))) }
    refute_includes written((0...16).to_h { |i| ["k#{i}", values[i]] }), "~" # it fits
    wide = (0...16).to_h { |i| [i.zero? ? "k" * 64 : format("%064d", i), "#{values[i]}#{'y' * 20}"] }
    body = written(wide).byteslice(1..)
    sent = MessagePack.unpack("\x93".b << body)[1][0].each_slice(2).map(&:last)
    assert_operator body.bytesize, :<=, Tidegate::FRAME_MAX - 5
    short = sent.each_index.select { |i| sent[i].start_with?("~") }
    assert_equal [1, 3].first(short.size), short # the longest, the first of equal ones
    refute_empty short
    assert_equal "~#{sha("#{values[1]}#{'y' * 20}")}", sent[1]
    many = Array.new(8) { |j| (0...16).to_h { |i| ["k#{i}", "#{j}#{values[i]}"] } }
    assert_operator written(many).bytesize, :<=, Tidegate::FRAME_MAX
  end

  def test_long_values_with_equal_prefixes_stay_distinct
    one, other = %w[1 2].map { |last| descriptors({ v: ("x" * 1_000_000) + last }) }
    refute_equal one, other
  end

  def test_a_hundred_thousand_keys_leave_no_memory_behind
    100_000.times { |i| written({ user: "u#{i}" }) }
    2_000.times { |i| written({ "k#{i}" => "v" }) }
    assert_operator Tidegate::Wire::NAMES.size, :<=, Tidegate::NAMES_KEPT
  end

  def test_durations_are_rounded_up
    { 0 => 0, 0.07 => 70_000, 0.0000001 => 1, 1 => 1_000_000, -3 => 0, 1e-9 => 0, 2.5e-6 => 3 }.each do |seconds, expected|
      played
      assert client.hit("api", queued: seconds).allowed?
      next if seconds == 1e-9 # rounded: the difference is below the precision

      assert_equal({ "queued_us" => expected }, played.seen.last[6])
    end
  end
end
