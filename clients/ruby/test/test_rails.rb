# frozen_string_literal: true

# The middleware in a Rails application as in the README: the real stack of Rails, and the real daemon.
require_relative "support"
require_relative "../lib/tidegate/rack"

RAILS =
  begin
    verbose, $VERBOSE = $VERBOSE, nil # warnings of Rails itself
    require "action_controller/railtie"
    true
  rescue LoadError
    false
  ensure
    $VERBOSE = verbose
  end

if RAILS
  class Desk < Rails::Engine
    routes.append { get "/orders/:id", to: ->(_) { [200, {}, ["order"]] } }
  end

  class Shop < Rails::Application
    config.eager_load = false
    config.secret_key_base = "x" * 40
    config.logger = Logger.new(File::NULL)
    config.consider_all_requests_local = false
    config.hosts.clear
    config.middleware.use Tidegate::Rack::Middleware, domain: "web", user: ->(env) { env["rack.session"][:user] || env["HTTP_X_USER"] }
    config.session_store :cookie_store, key: "_shop"
    routes.append do
      get "/login/:user", to: "things#login"
      get "/things/:id", to: "things#show"
      get "/boom", to: "things#boom"
      get "/file", to: "things#file"
      get "/stream", to: "things#stream"
      mount Desk, at: "/desk"
    end
  end

  class ThingsController < ActionController::Base
    def show = render(plain: "thing #{params[:id]}")
    def boom = raise("boom")
    def file = send_file(__FILE__)

    def login
      session[:user] = params[:user]
      head :no_content
    end

    def stream
      self.response_body = Enumerator.new { |out| 3.times { |i| out << "chunk #{i}\n" } }
    end
  end
  Shop.initialize!
end

class TestRails < Support::Case
  RULES = <<~YAML
    domain: web
    limits:
      - {name: per-user, key: [user], rate: 3/min, burst: 3}
      - {name: things, match: {route: "/things/:id"}, key: [ip], rate: 2/h, burst: 2}
    concurrency:
      - {name: at-once, key: [ip], max: 10}
  YAML

  def setup
    super
    skip "ruby-railties is missing: the middleware is not tried in Rails" unless RAILS
    daemon.rules(RULES)
    daemon.start
    Tidegate.client = make_client(socket: daemon.socket)
  end

  def get(path, **env)
    given = Rack::MockRequest.env_for(path, { "REMOTE_ADDR" => "192.0.2.1" }.merge(env.transform_keys(&:to_s)))
    Rack::MockResponse.new(*Shop.call(given))
  end

  def assert_nothing_is_held
    assert(Support.eventually { daemon.status["leases"]["held"].zero? }, -> { daemon.status["leases"].inspect })
  end

  def test_a_user_is_limited_and_others_are_not
    answers = Array.new(5) { get("/things/7", HTTP_X_USER: "ann") }
    assert_equal [200, 200, 200, 429, 429], answers.map(&:status)
    assert_equal ["thing 7", "2"], [answers[0].body, answers[0].headers["x-ratelimit-remaining"]]
    assert_equal ["application/problem+json", "per-user"],
                 [answers[3].headers["content-type"], JSON.parse(answers[3].body)["violated-policies"][0]]
    assert_equal 200, get("/things/7", HTTP_X_USER: "bob").status
    assert_nothing_is_held
  end

  # `use` adds it after the sessions, so that the user is known.
  def test_the_user_of_the_session
    cookie = get("/login/ann").headers["Set-Cookie"][/\A[^;]+/]
    assert_equal [200, 200, 200, 429], Array.new(4) { get("/things/1", HTTP_COOKIE: cookie).status }
  end

  def test_every_kind_of_response_releases_its_lease
    assert_equal [500, 404, "chunk 0\nchunk 1\nchunk 2\n", File.read(__FILE__)],
                 [get("/boom").status, get("/none").status, get("/stream").body, get("/file").body]
    assert_nothing_is_held
    assert_equal 4, daemon.status["leases"]["released"]
  end

  # A rule by path would not limit the other spellings that Rails takes.
  def test_the_pattern_of_the_route
    spellings = { "/things/7" => "/things/:id", "//things/7/" => "/things/:id", "/things/%37.json" => "/things/:id",
                  "/desk/orders/3/" => "/desk/orders/:id", "/none" => nil, "/things" => nil, "/desk" => nil, "/desk/none" => nil }
    seen = spellings.to_h { |path, _| [path, Tidegate::Rack.rails_route(Rack::MockRequest.env_for("http://host#{path}"))] }
    assert_equal spellings, seen
    env = { "REQUEST_METHOD" => "ODD", "PATH_INFO" => "/things/7", "rack.input" => StringIO.new }
    assert_nil Tidegate::Rack.rails_route(env)
    assert_equal "/things/7", env["PATH_INFO"]
  end

  def test_a_rule_by_route_limits_all_its_spellings
    app = Tidegate::Rack::Middleware.new(->(_) { [200, {}, []] }, domain: "web", route: true)
    answers = %w[/things/7 /things/7/ //things/8 /none].map { |path| app.call(Rack::MockRequest.env_for("http://host#{path}", "REMOTE_ADDR" => "192.0.2.1"))[0] }
    assert_equal [200, 200, 429, 200], answers
  end

  def test_rails_responds_alike_without_the_daemon
    daemon.stop
    assert_equal [200] * 5, Array.new(5) { get("/things/7", HTTP_X_USER: "ann").status }
  end
end
