# frozen_string_literal: true

# What a request says of its caller, of its path and of how long it waited, as far as it can be believed.
module Tidegate
  module Rack
    # Who called, and when, behind the proxies that are trusted: networks, or how many stand in front, or nil.
    class Caller
      QUEUED_MAX = 60.0 # seconds: who says more has another clock
      UNTRUSTED = "X-Forwarded-For is there but trusted_proxies is not set: callers are told apart by their proxy"

      def initialize(proxies)
        require "ipaddr"
        @proxies = proxies
        @networks = proxies.is_a?(Integer) ? [] : Array(proxies).map { |network| IPAddr.new(network) }
      end

      # The nearest hop that is not a trusted proxy. What stands left of it may be made up.
      def address(env, client)
        peer = env["REMOTE_ADDR"].to_s.sub(/\A::ffff:(?=[\d.]+\z)/, "") # a caller of a socket for both is the same one
        forwarded = env["HTTP_X_FORWARDED_FOR"]
        return peer if forwarded.nil? || forwarded.empty?
        return behind(peer, forwarded) unless @proxies.nil?

        client.log(UNTRUSTED, once: true)
        peer
      end

      # How long the request waited for the application, in seconds, as a trusted proxy says it.
      def queued(env)
        said = env["HTTP_X_REQUEST_START"]
        return nil if said.nil? || !proxy?(env["REMOTE_ADDR"].to_s)

        Caller.waited(said, Process.clock_gettime(Process::CLOCK_REALTIME))
      end

      # Seconds since X-Request-Start, as "t=" and Unix time or without it: seconds, milliseconds or microseconds, which
      # are told apart by their size. nil for what cannot be: before it began, or longer than 60 s ago.
      def self.waited(said, now)
        number = said.b[/\A\s*(?:t=)?([0-9]{1,20}(?:[.][0-9]{1,9})?)\s*\z/, 1]
        return nil if number.nil?

        started = number.to_f
        units = { 1e14 => 1e6, 1e11 => 1e3, 0.0 => 1.0 }
        waited = now - (started / units.find { |least, _| started >= least }.last)
        waited if waited.between?(0, QUEUED_MAX)
      end

      private

      def behind(peer, forwarded)
        hops = forwarded.b.split(",").map { |hop| without_port(hop) } << peer
        if @proxies.is_a?(Integer)
          hops = hops.size > @proxies ? [hops[-1 - @proxies]] : hops.first(1)
        end
        nearest = peer
        hops.reverse.each_with_index do |hop, i|
          address = parsed(hop)
          # The peer on a Unix socket has none: only this machine's proxy can be behind it.
          next if address.nil? && i.zero? && hop.empty? && hops.size > 1
          break if address.nil?

          nearest = plain(address).to_s
          break unless trusted?(address)
        end
        nearest
      end

      def proxy?(peer)
        return @proxies.positive? if @proxies.is_a?(Integer)

        address = parsed(peer)
        address ? trusted?(address) : peer.empty? && !@proxies.nil?
      end

      def trusted?(address)
        address = plain(address)
        @networks.any? { |network| network.family == address.family && network.include?(address) }
      end

      def plain(address)
        address.ipv6? && address.ipv4_mapped? ? address.native : address
      end

      def parsed(hop)
        hop.match?(/\A[\h:.]+\z/) ? IPAddr.new(hop) : nil
      rescue IPAddr::Error
        nil
      end

      def without_port(hop)
        hop = hop.strip.delete_prefix('"').delete_suffix('"')
        return hop[1..].partition("]").first if hop.start_with?("[")

        hop.count(":") == 1 ? hop.partition(":").first : hop
      end
    end

    # The path as the application means it: decoded once, without dot segments and repeated slashes.
    def self.path(env)
      raw = env["SCRIPT_NAME"].to_s.b << env["PATH_INFO"].to_s.b
      text = raw.include?("%") ? raw.gsub(/%\h\h/) { |code| code[1, 2].hex.chr } : raw
      text = text.dup.force_encoding(Encoding::UTF_8).scrub("\ufffd") unless text.ascii_only?
      return text if text.start_with?("/") && !text.include?("//") && !text.include?("/.")

      kept = []
      text.split("/").each do |segment|
        kept.pop if segment == ".."
        kept << segment unless ["", ".", ".."].include?(segment)
      end
      slash = !kept.empty? && text.end_with?("/", "/.", "/..")
      "/#{kept.join('/')}#{'/' if slash}"
    end
  end
end
