// Package forwarded reads the caller's address and the queue time of a request from headers of trusted proxies only.
package forwarded

import (
	"math"
	"net/netip"
	"strconv"
	"strings"
	"time"
)

const queuedMax = 60 * time.Second // a longer time means that the proxy's clock differs

// Proxies are the trusted ones: their networks (with any network, also the peer of a Unix socket), or their number.
type Proxies struct {
	Networks []netip.Prefix
	Count    int
}

// Configured returns true if any proxy is trusted.
func (p Proxies) Configured() bool { return p.Networks != nil || p.Count > 0 }

// Address returns the caller: the nearest hop that is not a trusted proxy. Hops left of it may be forged. Peer is empty
// for a Unix socket.
func (p Proxies) Address(forwarded []string, peer string) string {
	if len(forwarded) == 0 || !p.Configured() {
		return peer
	}
	hops := append(strings.Split(strings.Join(forwarded, ","), ","), peer)
	last := len(hops) - 1
	if p.Count > 0 {
		if last -= p.Count; last < 0 {
			last = 0
		}
	}
	nearest := peer
	for i := last; i >= 0; i-- {
		address, err := netip.ParseAddr(withoutPort(hops[i]))
		if err != nil {
			if i == len(hops)-1 && peer == "" {
				continue // a Unix socket: the peer is a proxy on this host
			}
			return nearest
		}
		nearest = address.Unmap().String()
		if p.Count > 0 || !p.trust(address) {
			break
		}
	}
	return nearest
}

// Queued returns the time that the request waited for the application, by a trusted proxy's X-Request-Start: Unix time,
// optionally after "t=", in seconds, milliseconds or microseconds, recognized by their size.
func (p Proxies) Queued(start, peer string) (time.Duration, bool) {
	text := strings.TrimPrefix(strings.TrimSpace(start), "t=")
	if text == "" || strings.Trim(text, "0123456789.") != "" || !p.sent(peer) {
		return 0, false
	}
	started, err := strconv.ParseFloat(text, 64)
	if err != nil || len(text) > 30 {
		return 0, false
	}
	switch {
	case started >= 1e14:
		started /= 1e6
	case started >= 1e11:
		started /= 1e3
	}
	waited := time.Duration(math.Min((float64(time.Now().UnixMicro())/1e6-started), 2*queuedMax.Seconds()) * 1e9)
	return waited, waited >= 0 && waited <= queuedMax
}

// sent returns true if the peer is a trusted proxy.
func (p Proxies) sent(peer string) bool {
	address, err := netip.ParseAddr(peer)
	if err != nil {
		return peer == "" && p.Configured()
	}
	return p.Count > 0 || p.trust(address)
}

func (p Proxies) trust(address netip.Addr) bool {
	for _, network := range p.Networks {
		if network.Contains(address.Unmap().WithZone("")) {
			return true
		}
	}
	return false
}

func withoutPort(hop string) string {
	hop = strings.Trim(strings.TrimSpace(hop), `"`)
	if strings.HasPrefix(hop, "[") {
		return strings.SplitN(hop[1:], "]", 2)[0]
	}
	if strings.Count(hop, ":") == 1 {
		return strings.SplitN(hop, ":", 2)[0]
	}
	return hop
}
