//go:build go1.23

package tidegate

import (
	"net/http"
	"strings"
)

// route returns the pattern that a ServeMux has matched, without its method; empty before the match.
func route(r *http.Request) string { return r.Pattern[strings.IndexByte(r.Pattern, ' ')+1:] }
