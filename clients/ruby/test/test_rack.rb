# frozen_string_literal: true

# The middleware under the rules of the loaded Rack: the installed one or, with `-I`, another.
require "rack"
require "rack/lint"
require "stringio"
require "uri"
require_relative "support"
require_relative "../lib/tidegate/rack"

class RackCase < Support::Case
  Middleware = Tidegate::Rack::Middleware
  PLAIN = ->(_) { [200, { "content-type" => "text/plain", "x-app" => "1" }, ["hello"]] }
  OWN = { "content-type" => "text/plain", "x-app" => "1" }.freeze

  def self.environment(**given)
    input = StringIO.new("".b).tap { |stream| stream.set_encoding(Encoding::BINARY) }
    { "REQUEST_METHOD" => "GET", "SERVER_NAME" => "localhost", "SERVER_PORT" => "80", "SERVER_PROTOCOL" => "HTTP/1.1",
      "QUERY_STRING" => "", "SCRIPT_NAME" => "", "PATH_INFO" => "/", "REMOTE_ADDR" => "192.0.2.1",
      "rack.version" => [1, 6], "rack.url_scheme" => "http", "rack.input" => input, "rack.errors" => StringIO.new,
      "rack.multithread" => true, "rack.multiprocess" => true, "rack.run_once" => false }.merge(given.transform_keys(&:to_s))
  end

  # Status, headers, body. Rack's lint checks both sides of the middleware.
  def call(app, env = {}, lint: true, **options)
    client = options.delete(:client) || self.client
    app = Rack::Lint.new(app) if lint
    limited = Middleware.new(app, client: client, **options)
    limited = Rack::Lint.new(limited) if lint
    status, fields, body = limited.call(RackCase.environment(**env))
    content = String.new
    body.each { |chunk| content << chunk }
    body.close if body.respond_to?(:close)
    names = fields.keys.map(&:downcase)
    assert_equal names.uniq, names
    assert_equal names, fields.keys if lint
    [status, fields.to_h, content]
  end

  def limited = played.tap { |daemon| daemon.script = ->(_, m) { [1, m[1], *Support::LIMIT, nil, nil, nil, nil] } }
  def asked = played.requests.find { |message| message[0] == 1 }
end

class TestRack < RackCase
  def test_an_allowed_request_gets_limit_headers
    played
    status, fields, body = call(PLAIN, domain: "api")
    assert_equal [200, "hello"], [status, body]
    assert_equal OWN.merge("ratelimit" => '"per-user";r=39;t=1', "ratelimit-policy" => '"per-user";q=40;w=2',
                           "x-ratelimit-limit" => "40", "x-ratelimit-remaining" => "39"), fields
  end

  def test_a_refused_request_does_not_reach_the_application
    limited
    status, fields, body = call(->(_) { flunk })
    assert_equal [429, "application/problem+json", "1", "1"],
                 [status, *fields.values_at("content-type", "retry-after", "x-ratelimit-retry-after")]
    assert_equal [body.bytesize.to_s, ["per-user"]], [fields["content-length"], JSON.parse(body)["violated-policies"]]
    status, fields, body = call(PLAIN, { REQUEST_METHOD: "HEAD" })
    assert_equal [429, ""], [status, body]
    assert_operator fields["content-length"].to_i, :>, 0
  end

  def test_sends_the_request
    options = { domain: "api", user: ->(env) { env["HTTP_X_USER"] }, cost: ->(env) { env["QUERY_STRING"].to_i },
                attributes: { plan: ->(_) { "free" }, "tenant" => "X-Tenant", user_agent: ->(_) {} }, priority: ->(_) { :post } }
    played
    call(PLAIN, { REQUEST_METHOD: "PUT", SCRIPT_NAME: "/app", PATH_INFO: "//v1/./a%2Fb/../%C3%A9".b, QUERY_STRING: "5",
                  HTTP_X_USER: "u1", HTTP_USER_AGENT: "curl", HTTP_X_TENANT: "t1", "sinatra.route": "PUT /v1/:id" }, **options)
    pairs = %w[method PUT path /app/v1/a/é] + ["route", "PUT /v1/:id"] + %w[ip 192.0.2.1 user u1 plan free tenant t1]
    assert_equal ["api", [pairs], 5, "post"], asked[2..]
  end

  def test_sends_cost_and_priority_without_empty_attributes
    played
    call(PLAIN, { REMOTE_ADDR: "" }, cost: { requests: 1, tokens: 2 }, priority: "get", lint: false)
    assert_equal ["web", [%w[method GET path /]], { "requests" => 1, "tokens" => 2 }, "get"], asked[2..]
  end

  def test_further_descriptors
    played
    call(PLAIN, attributes: ->(_) { { plan: "free" } }, descriptors: ->(_) { [{ message_type: "marketing" }, { to: 7 }] })
    assert_equal [%w[method GET path / ip 192.0.2.1 plan free], %w[message_type marketing], %w[to 7]], asked[3]
  end

  def test_the_client_of_the_program
    played
    Tidegate.client = client
    assert_includes Middleware.new(PLAIN).call(RackCase.environment)[1], "ratelimit"
  ensure
    Tidegate.client = nil
  end

  def test_exempt_requests_are_not_checked
    played
    _, fields, = call(PLAIN, { PATH_INFO: "/healthz" }, exempt: ->(env) { env["PATH_INFO"] == "/healthz" })
    assert_equal [OWN, []], [fields, played.seen]
  end

  def test_the_application_sees_the_decision
    played
    seen = nil
    call(->(env) { PLAIN.call(env.tap { seen = env["tidegate.decision"] }) })
    assert_equal 39, seen.remaining
  end

  { 301 => false, 304 => false, 404 => true }.each do |code, there|
    define_method("test_redirects_have_no_limit_headers_#{code}") do
      played
      app = ->(_) { [code, code == 304 ? {} : { "content-type" => "text/plain" }, []] }
      assert_equal there, call(app)[1].key?("ratelimit")
    end
  end

  def test_keeps_headers_and_hash_of_the_application
    played
    own = { "content-type" => "text/plain", "RateLimit" => "mine", "x-ratelimit-limit" => "9" }.freeze
    _, fields, = call(->(_) { [200, own, []] }, lint: false)
    assert_equal ["mine", "9", nil], fields.values_at("RateLimit", "x-ratelimit-limit", "ratelimit")
    assert_includes fields, "ratelimit-policy"
    mine = { "content-type" => "text/plain" }
    call(->(_) { [200, mine, []] }, lint: false)
    assert_equal 1, mine.size
    pairs = Struct.new(:all) { def each(&block) = all.each(&block) }.new([%w[content-type text/plain]])
    assert_includes call(->(_) { [200, pairs, []] }, lint: false)[1], "ratelimit"
  end

  def test_unusable_options_raise
    [{ headers: "all" }, { on_failure: "deny" }, { on_failure: [["/a", "deny"]] }, { domain: "a/b" },
     { cost: -1 }, { cost: 1.5 }, { cost: { "a/b" => 1 } }, { attributes: { "a:b" => "X-A" } }, { fallback: "20" }, { fallback: "0/s" },
     { attributes: (1..11).to_h { |i| ["k#{i}", "X-K"] } }, { trusted_proxies: ["10.0.0.0/99"] }].each do |options|
      assert_raises(ArgumentError, options.inspect) { Middleware.new(PLAIN, **options) }
    end
  end

  def test_names_an_option_and_its_value_that_is_none_of_the_words
    said = { { headers: "all" } => 'headers is draft, legacy, both or none, not "all"',
             { on_failure: "deny" } => 'on_failure is allow or refuse, not "deny"' }
    said.each { |options, text| assert_equal text, assert_raises(ArgumentError) { Middleware.new(PLAIN, **options) }.message }
    played
    assert_equal 503, call(PLAIN, on_failure: ->(_) { "deny" })[0]
    assert_equal ['tidegate: on_failure is allow or refuse, not "deny"; such requests are refused (invalid)'], @log.lines
  end

  def test_a_peer_on_a_unix_socket_without_an_address_is_logged
    played
    line = "tidegate: requests over a Unix socket have no `ip`: rules by ip do not judge them; " \
           "help: set trusted_proxies, and let the proxy send X-Forwarded-For"
    forwarded = { HTTP_X_FORWARDED_FOR: "203.0.113.9" }
    [[{}, {}, [line]], [forwarded, {}, [line]], [forwarded, { trusted_proxies: 1 }, []]].each do |env, options, lines|
      @client = make_client
      @log.lines.clear
      2.times { call(PLAIN, { REMOTE_ADDR: "" }.merge(env), **options) }
      assert_equal lines, @log.lines
      assert_equal lines.empty?, played.requests.last[3][0].include?("203.0.113.9")
    end
  end

  # -- refusals of the application's own -------------------------------------------------------------------------------

  INSTEAD = ->(_) { [200, { "content-type" => "text/plain" }, ["instead"]] }

  def test_on_refused
    limited
    { ->(_, d) { [420, { "content-type" => "text/plain" }, [d.message[0, 4]]] } => [420, "Over"],
      ->(_, _) { INSTEAD } => [200, "instead"] }.each do |on_refused, expected|
      status, fields, body = call(PLAIN, on_refused: on_refused)
      assert_equal [*expected, "1"], [status, body, fields["retry-after"]]
    end
    assert_equal 429, call(PLAIN, on_refused: ->(_, _) {})[0]
  end

  def test_errors_of_a_refusal_application_pass
    limited
    assert_raises(KeyError) { call(PLAIN, on_refused: ->(_, _) { ->(_) { raise KeyError } }, lint: false) }
  end

  # -- failures that must not reach the application --------------------------------------------------------------------

  %i[user route attributes descriptors cost priority exempt on_refused on_failure].each do |name|
    define_method("test_a_function_that_raises_is_left_out_of_the_check_#{name}") do
      limited
      broken = ->(*) { raise KeyError, "secret-user-name" }
      3.times { assert_equal 429, call(PLAIN, **{ on_failure: "refuse", name => broken })[0] }
      assert_equal({ "callback" => 3 }, client.stats[:missed])
      assert_equal 1, @log.lines.size
      assert_includes @log.lines[0], "#{name} raised KeyError"
      refute_includes @log.lines[0], "secret"
      client.hit("api")
      reported = played.requests.filter_map { |message| message[6] }.sum { |report| report["missed"]["callback"] }
      assert_equal 3, reported
    end
  end

  def test_an_attribute_that_raises_is_absent_and_the_others_are_sent
    played
    call(PLAIN, user: ->(env) { env.fetch("session") }, attributes: { plan: ->(env) { env.fetch("plan") }, org: ->(_) { "o1" } })
    sent = played.requests[0][3][0].each_slice(2).to_h
    assert_equal ["o1", false, false], [sent["org"], sent.key?("user"), sent.key?("plan")]
    said = %w[user attributes[:plan]].map { |name| "tidegate: #{name} raised KeyError: such requests are checked without it" }
    assert_equal said, @log.lines
  end

  def test_sends_no_attributes_of_a_function_that_returns_no_values_by_name
    played
    returned = ["abc", 7, false, ["abc"], [%w[a b]], nil, {}, Struct.new(:plan).new("free"), { plan: "free" }]
    returned.each { |one| assert_equal 200, call(PLAIN, attributes: ->(_) { one })[0] }
    sent = played.requests.map { |message| message[3][0].each_slice(2).to_h["plan"] }
    assert_equal [*[nil] * 7, "free", "free"], sent
    assert_equal 1, played.requests.map { |message| message[3][0].each_slice(2).to_h.except("plan") }.uniq.size
    said = %w[String Integer FalseClass Array].map { |kind| "tidegate: attributes returned #{kind}, not values by name: such requests are checked without it" }
    assert_equal said, @log.lines
    assert_equal({ "callback" => 5 }, client.stats[:missed])
  end

  def test_a_function_that_raises_does_not_replace_on_failure
    @client = make_client(socket: "/nowhere")
    assert_equal 503, call(PLAIN, on_failure: "refuse", user: ->(_) { raise KeyError })[0]
    assert_equal({ "callback" => 1, "unreachable" => 1 }, client.stats[:missed])
  end

  %i[outcome instrument].each do |name|
    define_method("test_a_function_that_raises_afterwards_is_logged_#{name}") do
      granting
      3.times { assert_equal 200, call(PLAIN, name => ->(*) { raise KeyError, "secret" })[0] }
      assert_equal [[77, 0], [78, 0], [79, 0]].map(&:last), granting.releases(3).map(&:last)
      assert_equal [1, {}], [@log.lines.size, client.stats[:missed]]
      assert_match(/#{name} raised KeyError: the (status decides|decision stays)$/, @log.lines[0].chomp)
    end
  end

  def test_invalid_bytes_do_not_bypass_the_limit
    limited
    broken = "\xff".dup.force_encoding("UTF-8")
    [{ SCRIPT_NAME: "/é", PATH_INFO: "/\xff".b }, { PATH_INFO: "/#{broken}" }, { HTTP_X_FORWARDED_FOR: "#{broken}, 1.2.3.4" },
     { HTTP_X_REQUEST_START: "t=#{broken}" }, { HTTP_USER_AGENT: broken }].each do |env|
      assert_equal 429, call(PLAIN, env, lint: false, trusted_proxies: 1)[0], env.inspect
    end
    assert_equal [[], {}], [@log.lines, client.stats[:missed]]
  end

  def test_refuses_when_a_function_returns_an_invalid_value
    limited
    assert_equal 503, call(PLAIN, attributes: ->(_) { { "a/b" => 1 } })[0]
    [-1, 1.5, "much"].each { |cost| assert_equal 503, call(PLAIN, cost: ->(_) { cost })[0] }
    assert_equal 503, call(PLAIN, attributes: ->(_) { (1..17).to_h { |i| ["k#{i}", 1] } })[0]
    assert_equal [{ "invalid" => 5 }, {}], client.stats.values_at(:refused, :missed)
  end

  def test_without_a_daemon
    offline = make_client(socket: "/nowhere")
    { "allow" => 200, "refuse" => 503 }.each do |word, status|
      5.times do
        got = call(PLAIN, client: offline, on_failure: word)
        assert_equal [status, false], [got[0], got[1].key?("ratelimit")]
      end
    end
  end

  def test_on_failure_by_path
    offline = make_client(socket: "/nowhere")
    list = { "/admin*" => "refuse", "/login" => :refuse, %r{\A/v\d+/pay} => "refuse", "/x" => "allow" }
    { "/admin/1" => 503, "/login" => 503, "/login/2" => 200, "/v12/pay" => 503, "/x" => 200, "/" => 200 }.each do |path, status|
      assert_equal status, call(PLAIN, { PATH_INFO: path }, client: offline, on_failure: list)[0], path
      assert_equal status, call(PLAIN, { PATH_INFO: path }, client: offline, on_failure: list.to_a)[0], path
    end
    assert_equal 503, call(PLAIN, client: offline, on_failure: ->(_) { :refuse })[0]
  end

  def test_bytes_are_the_same_without_the_limiter
    assert_equal [200, OWN, "hello"], call(PLAIN, client: make_client(enabled: false))
  end

  def test_errors_of_the_application_pass
    played
    broken = ->(_) { raise KeyError, "mine" }
    assert_raises(KeyError) { call(broken, lint: false) }
    assert_raises(KeyError) { call(broken, exempt: ->(_) { true }, lint: false) }
    assert_empty client.stats[:missed]
  end

  def test_instrument
    played
    reported = []
    call(PLAIN, instrument: ->(decision, seconds) { reported << [decision.rule, seconds.between?(0, 5)] })
    assert_equal [["per-user", true]], reported
  end

  def test_sleeps_on_wait
    played.script = ->(_, message) { message[0] == 1 ? [1, message[1], 3, "hooks", 21, 1, 20, 1, 250_000, 77] : nil }
    middleware = Middleware.new(PLAIN, client: client)
    slept = []
    replace(middleware, :sleep) { |seconds| slept << seconds }
    assert_equal 200, middleware.call(RackCase.environment)[0]
    assert_equal [0.25], slept
    replace(middleware, :sleep) { |_| raise SystemExit }
    assert_raises(SystemExit) { middleware.call(RackCase.environment) }
    assert_equal [[77, 2]], played.releases
  end

  def test_a_refusal_has_domain_rule_and_digest
    digest = "5f0c0f6ae0b54c1d9a2f6be0c1d4e7a3"
    played.script = ->(_, message) { [1, message[1], *Support::LIMIT, nil, nil, nil, { "rate" => "20/s", "digest" => digest }] }
    body = JSON.parse(call(PLAIN, domain: "shop")[2])
    assert_equal [["per-user"], "shop", digest], body.values_at("violated-policies", "domain", "digest")
    refused = client.hit(:shop)
    assert_equal ["shop", "per-user", digest], [refused.domain, refused.rule, refused.digest]
    assert_equal "#<Tidegate::Decision limit shop per-user #{digest}>", refused.inspect
    assert_equal refused.inspect, Marshal.load(Marshal.dump(refused)).inspect
  end

  # -- the answers, byte for byte as in every other language -----------------------------------------------------------

  JSON.parse(File.read("#{Support::VECTORS}/answers.json")).each do |answer|
    define_method("test_answer_#{answer['name']}") do
      decision = Tidegate::Decision.from(elements(answer), answer["reason"])
      decision.domain = answer["domain"] unless decision.allowed?
      decided = Object.new
      decided.define_singleton_method(:acquire) { |*, **| decision }
      replace(decision, :wait) { 0.0 }
      empty = answer["status"] == 304
      app = ->(_) { [answer["status"], empty ? {} : { "content-type" => "text/plain" }, empty ? [] : ["its own"]] }
      status, fields, body = call(app, client: decided, headers: answer["style"])
      own = answer["body"] || empty ? [] : [["content-type", "text/plain"]]
      assert_equal answer["status"], status
      assert_equal own + answer["headers"].map { |name, value| [name.downcase, value] }, fields.to_a
      assert_equal answer["body"] || (empty ? "" : "its own"), body.force_encoding(Encoding::UTF_8)
    end
  end

  def elements(answer)
    return Tidegate::Wire.decode([answer["decision"]].pack("H*").byteslice(4..)).drop(2) if answer["decision"]

    answer["status"] == 200 ? [0] : [2, *[nil] * 5, 1_000_000]
  end
end

class TestRackLeases < RackCase
  { 200 => 0, 302 => 0, 399 => 0, 400 => 1, 500 => 1 }.each do |status, outcome|
    define_method("test_the_lease_ends_with_the_body_#{status}") do
      granting
      held = -> { assert_empty granting.releases(0) }
      body = Class.new { define_method(:each) { |&block| [held.call, block.call("one"), held.call] } }.new
      call(->(_) { [status, { "content-type" => "text/plain" }, body] })
      assert_equal [[77, outcome]], granting.releases
    end
  end

  def test_the_application_sets_the_outcome
    granting
    call(->(_) { [404, { "content-type" => "text/plain" }, []] }, outcome: ->(status) { :ok if status == 404 })
    assert_equal [[77, 0]], granting.releases
  end

  [RuntimeError, Interrupt, SystemExit].each do |error|
    define_method("test_the_lease_ends_with_an_exception_#{error}") do
      granting
      assert_raises(error) { call(->(_) { raise error }, lint: false) }
      assert_equal [[77, 2]], granting.releases
    end
  end

  def test_the_lease_ends_with_a_throw
    granting
    catch(:warden) { call(->(_) { throw :warden }, lint: false) }
    assert_equal [[77, 1]], granting.releases
  end

  def body_of(app, **env) = Middleware.new(app, client: client).call(RackCase.environment(**env))[2]

  def test_the_lease_ends_when_the_caller_hangs_up
    granting
    closed = 0
    body = Object.new
    body.define_singleton_method(:each) { |&block| %w[one two].each(&block) }
    body.define_singleton_method(:close) { (closed += 1) && raise(IOError) }
    answer = body_of(->(_) { [200, {}, body] })
    assert_raises(Errno::EPIPE) { answer.each { |_| raise Errno::EPIPE } }
    assert_raises(IOError) { answer.close }
    answer.close
    assert_equal [[[77, 2]], 1], [granting.releases, closed]
  end

  def test_a_body_that_is_dropped_ends_its_lease
    granting
    drop = -> { 20.times { body_of(PLAIN) } }
    drop.call
    assert(Support.eventually { GC.start || granting.releases(0).any? { |release| release[1] == 2 } })
  end

  def test_the_body_is_untouched_if_the_server_reports_the_end
    granting
    body = %w[one two]
    [nil, IOError.new].each_with_index do |error, i|
      env = RackCase.environment("rack.response_finished": [])
      _, _, got = Middleware.new(->(_) { [200, {}, body] }, client: client).call(env)
      assert_same body, got
      assert_equal i, granting.releases(i).size
      env["rack.response_finished"].each { |finished| finished.call(env, 200, {}, error) }
    end
    assert_equal [[77, 0], [78, 2]].map(&:last), granting.releases(2).map(&:last)
  end

  def test_without_a_lease_the_body_is_untouched
    body = []
    assert_same body, Middleware.new(->(_) { [200, {}, body] }, client: make_client(socket: "/nowhere")).call(RackCase.environment)[2]
  end

  def test_an_array_body_keeps_to_ary
    granting
    answer = body_of(->(_) { [200, {}, %w[one two]] })
    assert_respond_to answer, :to_ary
    assert_equal %w[one two], answer.to_ary
    assert_equal [[77, 0]], granting.releases # it replaces the body, which was closed
    refute_respond_to body_of(->(_) { [200, {}, [].each] }), :to_ary
  end

  def test_one_chunk_is_counted_as_servers_do
    granting
    fields = ->(body, **own) { call(->(_) { [200, { "content-type" => "text/plain" }.merge(own), body] }, lint: false)[1] }
    Rack::Lint.new(Middleware.new(->(_) { [200, { "content-type" => "text/plain" }, ["one"]] }, client: client))
              .call(RackCase.environment)[2].then { |body| body.each(&:itself) && body.close }
    assert_equal "6", fields.call(["häll\n"]).fetch("content-length")
    refute_includes fields.call(%w[a b]), "content-length"
    refute_includes fields.call(["a"].each), "content-length"
    assert_equal ["9", nil], fields.call(["a"], "Content-Length" => "9").values_at("Content-Length", "content-length")
    refute_includes fields.call(["a"], "Transfer-Encoding" => "chunked"), "content-length"
    assert_equal "5", call(PLAIN, { REQUEST_METHOD: "HEAD" }, lint: false)[1]["content-length"] # like a GET's
    [204, 304].each { |status| assert_nil call(->(_) { [status, {}, [""]] }, lint: false)[1]["content-length"] }
  end

  def test_a_file_stays_a_file
    granting
    file = Struct.new(:to_path, :closed) do
      def each = yield("content")
      def close = self.closed = true
    end.new("/tmp/x")
    answer = body_of(->(_) { [200, {}, file] })
    assert_equal "/tmp/x", answer.to_path # sent by the kernel, without reading chunks
    answer.close
    assert_equal [[[77, 0]], true], [granting.releases, file.closed]
    refute_respond_to body_of(PLAIN), :to_path
    refute_respond_to body_of(PLAIN), :to_str
  end

  def test_a_streaming_body
    granting
    stream = StringIO.new
    answer = body_of(->(_) { [200, {}, ->(out) { out.write("one") }] })
    refute_respond_to answer, :each
    answer.call(stream)
    assert_empty granting.releases(0)
    answer.close
    assert_equal ["one", [[77, 0]]], [stream.string, granting.releases]
  end

  def test_to_a_head_and_without_content_no_body_is_sent
    granting
    body_of(PLAIN, REQUEST_METHOD: "HEAD").close
    body_of(->(_) { [204, {}, []] }).close
    body_of(->(_) { [200, { "rack.hijack" => ->(_) {} }, []] }).close
    assert_equal [0, 0, 0], granting.releases(3).map(&:last)
  end

  def test_a_hijacked_connection_has_no_lease
    granting
    body_of(->(_) { [-1, {}, []] })
    body_of(->(env) { [200, {}, []].tap { env["rack.hijack_io"] = StringIO.new } })
    assert_equal [0, 0], granting.releases(2).map(&:last)
  end

  def test_a_failed_release_raises_nothing
    played.script = ->(connection, message) { message[0] == 2 ? connection.close : grant(connection, message) }
    3.times { assert_equal 200, call(PLAIN)[0] }
    assert_empty client.stats[:missed].except("unreachable")
  end
end

class TestCaller < RackCase
  PATHS = [
    ["", "/", "/"], ["", "", "/"], ["", "/a/b", "/a/b"], ["", "/a/b/", "/a/b/"], ["/app", "", "/app"], ["/app", "/", "/app/"],
    ["/app", "/x", "/app/x"], ["", "//a", "/a"], ["", "/a//b///c", "/a/b/c"], ["", "/a/./b", "/a/b"], ["", "/a/../b", "/b"],
    ["", "/../../a", "/a"], ["", "/a/b/..", "/a/"], ["", "/a/b/.", "/a/b/"], ["", "/a/..", "/"], ["", "/..", "/"],
    ["", "///", "/"], ["", "a", "/a"], ["", "*", "/*"], ["", "/.hidden", "/.hidden"], ["", "/a.../b", "/a.../b"],
    ["", "/%252e%252e/a", "/%2e%2e/a"], ["", "/%2e%2E/a", "/a"], ["", "/a%2f%2fb", "/a/b"], # decoded once, not twice
    ["", "/caf%C3%A9", "/café"], ["", "/caf\u00e9".b, "/café"], ["", "/%ff", "/\ufffd"], ["", "/100%", "/100%"],
    ["", "/a+b", "/a+b"], ["", "/%zz", "/%zz"]
  ].freeze

  def test_paths
    PATHS.each do |script_name, path_info, expected|
      assert_equal expected, Tidegate::Rack.path({ "SCRIPT_NAME" => script_name, "PATH_INFO" => path_info }), path_info
    end
    assert_equal "/", Tidegate::Rack.path({})
  end

  ONE = ["10.0.0.0/8", "2001:db8::/32"].freeze
  CALLERS = [
    ["10.0.0.1", "192.0.2.7", ONE, "192.0.2.7"], ["10.0.0.1", "192.0.2.7, 10.0.0.2", ONE, "192.0.2.7"],
    ["10.0.0.1", "203.0.113.9, 192.0.2.7, 10.0.0.2", ONE, "192.0.2.7"], # the first may be forged by the caller
    ["192.0.2.1", "203.0.113.9", ONE, "192.0.2.1"], # a peer that is no proxy is the caller
    ["10.0.0.1", "10.0.0.3, 10.0.0.2", ONE, "10.0.0.3"], # all are trusted
    ["10.0.0.1", "unknown", ONE, "10.0.0.1"], ["10.0.0.1", "192.0.2.7, nonsense", ONE, "10.0.0.1"],
    ["10.0.0.1", "192.0.2.0/24", ONE, "10.0.0.1"], ["10.0.0.1", "192.0.2.7:4711", ONE, "192.0.2.7"],
    ["10.0.0.1", "[2001:db9::7]:4711", ONE, "2001:db9::7"], ["10.0.0.1", '"[2001:db9:0:0::7]"', ONE, "2001:db9::7"],
    ["2001:db8::1", "2001:DB9:0:0:0:0:0:7", ONE, "2001:db9::7"], ["::ffff:10.0.0.1", "192.0.2.7", ONE, "192.0.2.7"],
    ["::ffff:192.0.2.1", "", ONE, "192.0.2.1"], # an IPv4 peer of a dual-stack socket
    ["::ffff:192.0.2.1", "203.0.113.9", ONE, "192.0.2.1"], ["10.0.0.1", "::ffff:192.0.2.7", ONE, "192.0.2.7"],
    ["", "192.0.2.7", ONE, "192.0.2.7"], # over a Unix socket
    ["", "192.0.2.7, 10.0.0.2", ONE, "192.0.2.7"], ["10.0.0.1", "203.0.113.9, 192.0.2.7", 1, "192.0.2.7"],
    ["10.0.0.1", "203.0.113.9, 192.0.2.7, 10.0.0.2", 2, "192.0.2.7"], ["10.0.0.1", "192.0.2.7", 5, "192.0.2.7"],
    ["10.0.0.1", "192.0.2.7", 0, "10.0.0.1"], ["", "192.0.2.7", 1, "192.0.2.7"], ["10.0.0.1", "nonsense", 1, "10.0.0.1"],
    ["10.0.0.1", ", ,", 1, "10.0.0.1"], ["10.0.0.1", "192.0.2.7", "10.0.0.0/8", "192.0.2.7"],
    ["fe80::1%eth0", "192.0.2.7", "fe80::/10", "192.0.2.7"], ["10.0.0.1", "fe80::1%eth0", ONE, "fe80::1%eth0"],
    ["fe80::1%eth0", "", ONE, "fe80::1%eth0"], ["10.0.0.1", "fe80::1%", ONE, "10.0.0.1"],
    ["10.0.0.1", "203.0.113.9,", ONE, "10.0.0.1"]
  ].freeze

  def test_trusted_proxies
    CALLERS.each do |peer, forwarded, proxies, expected|
      found = Tidegate::Rack::Caller.new(proxies).address({ "REMOTE_ADDR" => peer, "HTTP_X_FORWARDED_FOR" => forwarded }, client)
      assert_equal expected, found, [peer, forwarded, proxies].inspect
    end
    assert_empty @log.lines
  end

  def test_the_route_of_rails_without_rails
    error = assert_raises(ArgumentError) { Tidegate::Rack::Middleware.new(PLAIN, client: client, route: true) }
    assert_includes error.message, "route: true is for Rails"
  end

  # `user: "REMOTE_USER"` would be one user for all, and `exempt: "/healthz"` would exempt every request.
  %i[user route exempt attributes descriptors outcome on_refused instrument].each do |name|
    define_method("test_a_word_is_no_function_for_#{name}") do
      error = assert_raises(ArgumentError) { Middleware.new(PLAIN, name => "REMOTE_USER") }
      assert_includes error.message, "#{name} is a function"
    end
  end

  def test_warns_once_of_an_untrusted_header
    played
    3.times { call(PLAIN, { HTTP_X_FORWARDED_FOR: "203.0.113.9" }) }
    refute_includes played.seen.inspect, "203.0.113.9"
    assert_equal 1, @log.lines.size
    assert_includes @log.lines[0], "trusted_proxies"
  end

  NOW = 1_700_000_100.0
  STARTS = {
    "t=1700000099.5" => 0.5, "1700000099.500" => 0.5, "t=1700000098" => 2.0, "t=1700000099500" => 0.5, "1700000099500" => 0.5,
    "t=1700000099500.25" => 0.49975, "t=1700000099500000" => 0.5, " t=1700000100 " => 0.0, "t=1700000040" => 60.0,
    "t=1700000039.9" => nil, # more than 60 s ago
    "t=1700000100.1" => nil, # from the future
    "t=0" => nil, "" => nil, "t=" => nil, "t=-1" => nil, "t=nan" => nil, "t=1e9" => nil, "t=1_700_000_099" => nil,
    "t=1700000099.5, t=1700000099.5" => nil, "9" * 5_000 => nil, "t=١٧٠٠٠٠٠٠٩٩" => nil, "t=1700000099.5\nx" => nil
  }.freeze

  def test_request_start
    STARTS.each do |header, expected|
      waited = Tidegate::Rack::Caller.waited(header, NOW)
      expected.nil? ? assert_nil(waited, header) : assert_in_delta(expected, waited, 1e-6, header)
    end
  end

  def test_reads_queue_time_of_trusted_proxies_only
    [["10.0.0.1", ["10.0.0.0/8"], true], ["::ffff:10.0.0.1", ["10.0.0.0/8"], true], ["192.0.2.1", ["10.0.0.0/8"], false],
     ["nonsense", ["10.0.0.0/8"], false], ["", ["10.0.0.0/8"], true], ["", nil, false], ["10.0.0.1", nil, false],
     ["192.0.2.1", 1, true], ["192.0.2.1", 0, false]].each do |peer, proxies, believed|
      env = { "REMOTE_ADDR" => peer, "HTTP_X_REQUEST_START" => "t=#{Time.now.to_f - 5}" }
      waited = Tidegate::Rack::Caller.new(proxies).queued(env)
      assert_equal believed, !waited.nil?, [peer, proxies].inspect
    end
    played
    call(PLAIN, { HTTP_X_REQUEST_START: "t=#{Time.now.to_f - 5}" }, trusted_proxies: 1)
    assert_in_delta 5_000_000, asked[6]["queued_us"], 2_000_000
  end
end
