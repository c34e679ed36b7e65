# frozen_string_literal: true

# Pacing by the responses of limited services.
require "time"
require_relative "support"
require_relative "../lib/tidegate/pace"

class TestPace < Minitest::Test
  # A pace on a clock that advances by its waits.
  def pace(**options)
    @waits = waits = []
    clock = 100.0
    still = options.delete(:still)
    made = Tidegate::Pace.new(**options)
    made.define_singleton_method(:now) { clock }
    made.define_singleton_method(:pause) { |seconds| waits << seconds && clock += still ? 0 : seconds }
    made.define_singleton_method(:rand) { 1.0 }
    made
  end

  def answers(*all) = -> { all.size > 1 ? all.shift : all.first }

  def test_a_refusal_without_retry_time_is_returned
    response = [200, {}, []]
    assert_same response, pace.call(&answers(response))
    assert_empty @waits
  end

  def test_waits_before_a_refusal
    limits = { "ratelimit" => '"per-user";r=0;t=7', "ratelimit-policy" => '"per-user";q=40;w=60' }
    one = pace
    one.call(&answers([200, limits, []]))
    assert_equal 7.0, one.delay
    one.call(&answers([200, {}, []]))
    assert_equal [7.0], @waits
  end

  def test_a_time_that_is_too_long_delays_once
    one = pace(wait_max: 60)
    one.call(&answers([200, { "ratelimit" => '"u";r=0;t=999999999' }, []]))
    3.times { one.call(&answers([200, { "ratelimit" => '"u";r=9;t=1' }, []])) }
    assert_equal [60], @waits
  end

  def test_slows_down_before_the_quota_is_used
    one = pace
    one.call(&answers([200, { "ratelimit" => '"u";r=9;t=10', "ratelimit-policy" => '"u";q=10;w=60' }, []]))
    assert_equal 0.0, one.delay
    one.call(&answers([200, { "ratelimit" => '"u";r=1;t=10', "ratelimit-policy" => '"u";q=10;w=60' }, []]))
    3.times { one.call(&answers([200, {}, []])) }
    assert_equal [5.0] * 3, @waits
  end

  def test_it_reads_the_older_fields_and_the_tightest_of_several
    one = pace
    one.heard([200, { "X-RateLimit-Remaining" => "0", "X-Ratelimit-Limit" => "10", "X-Ratelimit-Retry-After" => "3" }, []])
    assert_equal 3.0, one.delay
    other = pace
    other.heard([200, { "ratelimit" => '"a, \"b\"";r=5;t=1, "b";r=0;t=9;x="y;r=3"' }, []])
    assert_equal 9.0, other.delay
    odd = pace
    ["", "nonsense", '"a"', '"a";r=x', '"a";r=1.5;t=2', "r=0;t=5", '"a";r=' + ("9" * 5_000), nil, 7].each do |text|
      odd.heard([200, { "ratelimit" => text, "x-ratelimit-remaining" => "soon" }, []])
    end
    assert_equal 0.0, odd.delay
  end

  def test_retries_refusals_after_retry_after_and_jitter
    refused = [429, { "retry-after" => "2" }, []]
    assert_equal 200, pace.call(&answers(refused, refused, [200, {}, []]))[0]
    assert_equal [4.0, 4.0], @waits # 2 s and at most as much again
    assert_equal 503, pace(attempts: 3).call(&answers([503, {}, []]))[0]
    assert_equal [0.2, 0.4], @waits
    assert_equal 404, pace.call(&answers([404, {}, []]))[0]
    assert_empty @waits
  end

  def test_a_wait_that_is_too_long_is_the_callers
    assert_equal 429, pace.call(&answers([429, { "retry-after" => "3600" }, []]))[0]
    assert_empty @waits
    assert_equal 429, pace.call(&answers([429, { "retry-after" => (Time.now + 7_200).httpdate }, []]))[0]
  end

  def test_a_date_is_read
    now = Time.httpdate("Sun, 06 Nov 1994 08:49:30 GMT")
    { "Sun, 06 Nov 1994 08:49:37 GMT" => 7.0, "Sun, 06 Nov 1994 08:49:00 GMT" => 0.0, "120" => 120.0, "soon" => nil, nil => nil,
      "-1" => nil, "" => nil }.each { |text, seconds| assert_equal [seconds], [Tidegate::Pace.seconds(text, now)] }
  end

  def test_the_budget_bounds_retries
    one = pace
    calls = 0
    100.times { one.call { (calls += 1) && [503, {}, []] } }
    assert_operator calls, :<=, 100 + 10 + 10 # ten at first, and one for every ten calls
    assert_operator calls, :>=, 115
  end

  def test_exceptions_of_the_block_pass
    assert_raises(IOError) { pace.call { raise IOError } }
  end

  def test_threads_do_not_start_together
    one = pace(still: true)
    one.heard([200, { "ratelimit" => '"u";r=1;t=10', "ratelimit-policy" => '"u";q=10;w=60' }, []])
    Array.new(4) { Thread.new { one.call { [200, {}, []] } } }.each(&:join)
    assert_equal [5.0, 10.0, 15.0, 20.0], @waits.sort
  end

  NET = Struct.new(:code, :fields) { def [](name) = fields[name.downcase] }
  OTHER = Struct.new(:status, :headers)

  def test_responses_of_several_libraries
    [NET.new("429", { "retry-after" => "1" }), OTHER.new(429, { "Retry-After" => ["1"] })].each do |response|
      assert_same response, pace(attempts: 2).call { response }
      assert_equal [2.0], @waits
    end
  end
end
