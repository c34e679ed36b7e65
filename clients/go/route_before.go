//go:build !go1.23

package tidegate

import "net/http"

// route is not known to net/http before Go 1.23.
func route(*http.Request) string { return "" }
