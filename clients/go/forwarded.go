// Address, path and queue time of a request, from headers of trusted proxies only.

package tidegate

import (
	"math"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"time"
)

const queuedMax = 60 * time.Second // a longer time means that the proxy's clock differs

// cleanPath normalizes a path decoded by net/http: it removes dot segments and repeated slashes.
func cleanPath(path string) string {
	if strings.HasPrefix(path, "/") && !strings.Contains(path, "//") && !strings.Contains(path, "/.") {
		return path
	}
	var kept []string
	for _, segment := range strings.Split(path, "/") {
		switch segment {
		case "", ".":
		case "..":
			if len(kept) > 0 {
				kept = kept[:len(kept)-1]
			}
		default:
			kept = append(kept, segment)
		}
	}
	clean := "/" + strings.Join(kept, "/")
	if len(kept) > 0 && (strings.HasSuffix(path, "/") || strings.HasSuffix(path, "/.") || strings.HasSuffix(path, "/..")) {
		clean += "/"
	}
	return clean
}

// peerOf returns the host of the peer's address; empty for a Unix socket or an unknown address.
func peerOf(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		host = strings.TrimPrefix(r.RemoteAddr, "@")
	}
	return host
}

// address returns the caller: the nearest hop that is not a trusted proxy. Hops left of it may be forged.
func (m *middleware) address(r *http.Request, peer string) string {
	forwarded := r.Header.Values("X-Forwarded-For")
	if len(forwarded) == 0 {
		return peer
	}
	if m.TrustedProxies == nil && m.TrustedCount == 0 {
		m.warned.Do(func() {
			m.client.log("X-Forwarded-For is present but TrustedProxies is not set: callers are counted by their proxy", true)
		})
		return peer
	}
	hops := append(strings.Split(strings.Join(forwarded, ","), ","), peer)
	last := len(hops) - 1
	if m.TrustedCount > 0 {
		if last -= m.TrustedCount; last < 0 {
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
		if m.TrustedCount > 0 || !m.trusts(address) {
			break
		}
	}
	return nearest
}

func (m *middleware) trusts(address netip.Addr) bool {
	for _, network := range m.TrustedProxies {
		if network.Contains(address.Unmap().WithZone("")) {
			return true
		}
	}
	return false
}

// queued returns the time that the request waited for the application, by a trusted proxy's X-Request-Start: Unix time,
// optionally after "t=", in seconds, milliseconds or microseconds, recognized by their size.
func (m *middleware) queued(r *http.Request, peer string) (time.Duration, bool) {
	text := strings.TrimPrefix(strings.TrimSpace(r.Header.Get("X-Request-Start")), "t=")
	if text == "" || strings.Trim(text, "0123456789.") != "" || !m.fromProxy(peer) {
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

func (m *middleware) fromProxy(peer string) bool {
	address, err := netip.ParseAddr(peer)
	if err != nil {
		return peer == "" && (m.TrustedProxies != nil || m.TrustedCount > 0)
	}
	return m.TrustedCount > 0 || m.trusts(address)
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
