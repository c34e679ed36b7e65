# frozen_string_literal: true

# Reports each decision of a client to the function `on_decision`.
module Tidegate
  # Extends only clients that have such a function; others do no more than before.
  module Observed
    def acquire(domain, given = nil, held: nil, **more)
      started, own = now, held || []
      decision = report_decision(super(domain, given, held: own, **more), started)
    ensure
      own[0]&.release("dropped") if decision.nil? && held.nil? # an exception of another thread: nothing has the grant
    end

    def hit(domain, given = nil, **more)
      started = now
      report_decision(super, started)
    end

    private

    def report_decision(decision, started)
      Thread.handle_interrupt(StandardError => :never) do # rescue only exceptions of the function
        @on_decision.call(decision, now - started)
      rescue StandardError => e
        at = e.backtrace_locations&.first
        where = " at #{at.path}:#{at.lineno}" if at
        log("on_decision raised #{e.class}#{where}: the decision is not affected", once: true)
      end
      decision
    end
  end
end
