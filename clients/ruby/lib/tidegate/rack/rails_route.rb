# frozen_string_literal: true

# The pattern of a route of Rails, which matches it only behind its middlewares.
module Tidegate
  module Rack
    # Returns the pattern that `routes` will match, "/things/:id", also of a mounted engine; nil without one. Rails
    # reports its errors, such as an unknown method, when it matches itself.
    def self.rails_route(env, routes = ::Rails.application.routes)
      request = ActionDispatch::Request.new(env.dup)
      request.path_info = ActionDispatch::Journey::Router::Utils.normalize_path(request.path_info)
      routes.router.recognize(request) do |route, _|
        next unless route.app.matches?(request)

        pattern = route.path.spec.to_s.delete_suffix("(.:format)")
        return pattern unless route.app.engine?

        inner = rails_route(request.env, route.app.rack_app.routes)
        return "#{pattern.chomp('/')}#{inner}" if inner
      end
      nil
    rescue ActionController::ActionControllerError
      nil
    end
  end
end
