// Headers, message and body of an HTTP response, the same bytes in every language: tests/vectors/answers.json.

package tidegate

import (
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// Message returns one sentence for people: the rule, its limit, and the time of a retry.
func (d *Decision) Message() string {
	cause := "The service is at its capacity."
	switch limited := d.Verdict == VerdictLimit; {
	case d.Allowed:
		return "Allowed."
	case d.Verdict == VerdictDeny:
		return "This request is not allowed."
	case limited && d.Blocked:
		cause = "This caller is blocked."
	case limited && !d.named():
		cause = "Too many requests."
	case d.Reason != "": // degraded, or refused by the client itself
		cause = "The request could not be judged."
	case limited && d.rate() != "":
		cause = fmt.Sprintf("Over the limit %s of %s.", d.Rule, d.rate())
	case limited && d.Window == 0:
		cause = fmt.Sprintf("Over the limit %s of %d at once.", d.Rule, d.Limit)
	case limited:
		cause = fmt.Sprintf("Over the limit %s of %d %s in %s s.", d.Rule, d.Limit, d.Unit, number(d.Window))
	}
	if d.RetryAfter == Never {
		return cause + " It asks for more than the limit holds: it can never pass."
	}
	return fmt.Sprintf("%s Try again in %d s.", cause, d.retrySeconds())
}

var (
	written = regexp.MustCompile(`^([0-9]{1,10})/([0-9]{0,10})(ms|s|min|h|day|week|month)$`)
	spelled = map[string]string{
		"ms": "a millisecond", "s": "a second", "min": "a minute", "h": "an hour", "day": "a day", "week": "a week", "month": "a month",
	}
)

// rate returns the quota as the rule writes it, in words; "" if the daemon sent none.
func (d *Decision) rate() string {
	found := written.FindStringSubmatch(d.Rate)
	if found == nil {
		return ""
	}
	count, unit, period := found[1], d.Unit, spelled[found[3]]
	if count == "1" && unit == "requests" {
		unit = "request"
	}
	if found[2] == "" || found[2] == "1" {
		return count + " " + unit + " " + period
	}
	_, noun, _ := strings.Cut(period, " ")
	return count + " " + unit + " in " + found[2] + " " + noun + "s"
}

func (d *Decision) named() bool { return d.Rule != "" && d.HasLimit && !d.Hidden }

// retrySeconds returns RetryAfter in whole seconds, at least 1.
func (d *Decision) retrySeconds() int64 {
	if d.RetryAfter <= time.Second {
		return 1
	}
	return ceil(d.RetryAfter, time.Second)
}

// number formats seconds, rounded up to milliseconds.
func number(d time.Duration) string {
	return strconv.FormatFloat(float64(ceil(d, time.Millisecond))/1_000, 'f', -1, 64)
}

// ceil returns d in whole units, rounded up.
func ceil(d, unit time.Duration) int64 {
	if d <= 0 {
		return 0
	}
	return int64((d-1)/unit) + 1
}

// Headers returns RateLimit (draft-ietf-httpapi-ratelimit-headers-11), X-Ratelimit and, of a refusal, Retry-After, one
// value each. Do not send them with redirects.
func (d *Decision) Headers() http.Header {
	fields := http.Header{}
	if d.named() {
		limit, left := clamped(d.Limit), clamped(d.Remaining)
		name, policy, until := quoted(d.Rule), "", ""
		switch {
		case d.Window == 0:
			policy = `;qu="concurrent-requests"`
		case d.Unit != "requests":
			policy = ";qu=" + quoted(d.Unit)
		}
		if d.Window > 0 {
			policy += fmt.Sprintf(";w=%d", ceil(d.Window, time.Second))
			until = fmt.Sprintf(";t=%d", ceil(d.ResetAfter, time.Second))
		}
		fields.Set("RateLimit", name+";r="+left+until)
		fields.Set("RateLimit-Policy", name+";q="+limit+policy)
		fields.Set("X-Ratelimit-Limit", limit)
		fields.Set("X-Ratelimit-Remaining", left)
	}
	if !d.Allowed && d.RetryAfter != Never {
		seconds := strconv.FormatInt(d.retrySeconds(), 10)
		if fields.Set("Retry-After", seconds); !d.Hidden {
			fields.Set("X-Ratelimit-Retry-After", seconds)
		}
	}
	return fields
}

// Problem returns the body of a refusal, application/problem+json of RFC 9457 with the types of the draft. Its
// retry_after is exact to the millisecond, unlike the header.
func (d *Decision) Problem() []byte {
	const types = "https://iana.org/assignments/http-problem-types#"
	about, title := "about:blank", "OK"
	switch d.Status {
	case 403:
		title = "Forbidden"
	case 429:
		about, title = types+"quota-exceeded", "Too Many Requests"
	case 503:
		about, title = types+"temporary-reduced-capacity", "Service Unavailable"
	}
	if d.Blocked && d.Verdict == VerdictLimit {
		about = "urn:tidegate:problem:blocked"
	}
	b := fmt.Sprintf(`{"type":%s,"title":%s,"status":%d,"detail":%s`,
		escaped(about), escaped(title), d.Status, escaped(d.Message()))
	if d.named() && d.Verdict == VerdictLimit {
		b += fmt.Sprintf(`,"violated-policies":[%s],"limit":%d,"window":%s`, escaped(d.Rule), d.Limit, number(d.Window))
		if d.Digest != "" {
			b += `,"domain":` + escaped(d.Domain) + `,"digest":` + escaped(d.Digest)
		}
	}
	if !d.Allowed && d.RetryAfter != Never {
		b += `,"retry_after":` + number(d.RetryAfter)
	}
	if d.Help != "" {
		b += `,"help":` + escaped(d.Help)
	}
	return []byte(b + "}")
}

// clamped formats a number of at most 15 digits, the maximum of structured fields.
func clamped(n uint64) string {
	const most = 999_999_999_999_999
	if n > most {
		n = most
	}
	return strconv.FormatUint(n, 10)
}

// quoted formats a String of RFC 8941.
func quoted(s string) string {
	printable := strings.Map(func(c rune) rune {
		if c < ' ' || c > '~' {
			return '?'
		}
		return c
	}, s)
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(printable) + `"`
}

// escaped formats a JSON string with the fewest escapes; encoding/json would also escape <, > and &.
func escaped(s string) string {
	short := map[rune]string{'"': `\"`, '\\': `\\`, '\n': `\n`, '\r': `\r`, '\t': `\t`, '\b': `\b`, '\f': `\f`}
	var b strings.Builder
	for _, c := range s {
		if known, is := short[c]; is {
			b.WriteString(known)
		} else if c < ' ' {
			fmt.Fprintf(&b, `\u%04x`, c)
		} else {
			b.WriteRune(c)
		}
	}
	return `"` + b.String() + `"`
}
