// Address, path and queue time of a request, from headers of trusted proxies only.

package tidegate

import (
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/tidegate/tidegate/clients/go/internal/forwarded"
)

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

// address returns the caller, by X-Forwarded-For only behind trusted proxies.
func (m *middleware) address(r *http.Request, peer string) string {
	headers := r.Header.Values("X-Forwarded-For")
	address := m.proxies().Address(headers, peer)
	if address == "" || len(headers) > 0 && !m.proxies().Configured() {
		m.warned.Do(func() { m.client.log(when(address == "", noAddress, untrusted), true) })
	}
	return address
}

const (
	noAddress = "requests over a Unix socket have no `ip`: rules by ip do not judge them; " +
		"help: set TrustedProxies, and let the proxy send X-Forwarded-For"
	untrusted = "X-Forwarded-For is present but TrustedProxies is not set: callers are counted by their proxy"
)

// queued returns the time that the request waited for the application, by a trusted proxy's X-Request-Start.
func (m *middleware) queued(r *http.Request, peer string) (time.Duration, bool) {
	return m.proxies().Queued(r.Header.Get("X-Request-Start"), peer)
}

func (m *middleware) proxies() forwarded.Proxies {
	return forwarded.Proxies{Networks: m.TrustedProxies, Count: m.TrustedCount}
}
