# frozen_string_literal: true

# Address, path and queue time of a request, from headers of trusted proxies only.
module Tidegate
  module Rack
    # Reads the caller's address and queue time. `proxies`: trusted networks, the number of proxies, or nil.
    class Caller
      QUEUED_MAX = 60.0 # seconds; a longer time means that the proxy's clock differs
      NO_ADDRESS = "requests over a Unix socket have no `ip`: rules by ip do not judge them; " \
                   "help: set trusted_proxies, and let the proxy send X-Forwarded-For"
      UNTRUSTED = "X-Forwarded-For is present but trusted_proxies is not set: callers are counted by their proxy"

      def initialize(proxies)
        require "ipaddr"
        @proxies = proxies
        @networks = proxies.is_a?(Integer) ? [] : Array(proxies).map { |network| IPAddr.new(network) }
      end

      # Returns the nearest hop that is not a trusted proxy. Hops left of it may be forged.
      def address(env, client)
        peer = env["REMOTE_ADDR"].to_s.sub(/\A::ffff:(?=[\d.]+\z)/, "") # dual-stack sockets map IPv4 peers to IPv6
        forwarded = env["HTTP_X_FORWARDED_FOR"]
        given = !(forwarded.nil? || forwarded.empty?)
        address = given && !@proxies.nil? ? behind(peer, forwarded) : peer
        if address.empty? then client.log(NO_ADDRESS, once: true)
        elsif given && @proxies.nil? then client.log(UNTRUSTED, once: true)
        end
        address
      end

      # Returns the seconds that the request waited for the application, by the header of a trusted proxy.
      def queued(env)
        text = env["HTTP_X_REQUEST_START"]
        return nil if text.nil? || !proxy?(env["REMOTE_ADDR"].to_s)

        Caller.waited(text, Process.clock_gettime(Process::CLOCK_REALTIME))
      end

      # Returns seconds since an X-Request-Start: Unix time, optionally after "t=", in seconds, milliseconds or
      # microseconds, recognized by their size. nil for times in the future or more than 60 s ago.
      def self.waited(text, now)
        number = text.b[/\A\s*(?:t=)?([0-9]{1,20}(?:[.][0-9]{1,9})?)\s*\z/, 1]
        return nil if number.nil?

        started = number.to_f
        units = { 1e14 => 1e6, 1e11 => 1e3, 0.0 => 1.0 }
        waited = now - (started / units.find { |least, _| started >= least }.last)
        waited if waited.between?(0, QUEUED_MAX)
      end

      private

      def behind(peer, forwarded)
        hops = forwarded.b.split(",", -1).map { |hop| without_port(hop) } << peer
        if @proxies.is_a?(Integer)
          hops = hops.size > @proxies ? [hops[-1 - @proxies]] : hops.first(1)
        end
        nearest = peer
        hops.reverse.each_with_index do |hop, i|
          address = parsed(hop)
          # A peer on a Unix socket, a proxy on this host, has no address.
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
        hop.match?(/\A[\h:.]+(%[\w.-]+)?\z/) ? IPAddr.new(hop) : nil # a link-local one may have a zone: fe80::1%eth0
      rescue IPAddr::Error
        nil
      end

      def without_port(hop)
        hop = hop.strip.delete_prefix('"').delete_suffix('"')
        return hop[1..].partition("]").first if hop.start_with?("[")

        hop.count(":") == 1 ? hop.partition(":").first : hop
      end
    end

    # Normalizes the path: decodes it once, removes dot segments and repeated slashes.
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
