package tidegate

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/tidegate/tidegate/clients/go/internal/logs"
)

// A client that an application has not made, such as a field that its tests leave out, allows everything.
func TestAClientThatIsNotMadeAllowsEverything(t *testing.T) {
	logged := &logs.Lines{}
	was := unmade.logger
	unmade.logger = logged
	defer func() { unmade.logger = was }()
	handler := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	for _, c := range []*Client{nil, {}} {
		for _, d := range []*Decision{c.Acquire(ctx, "api", u1, RefuseOnFailure()), c.Hit(ctx, "", nil), c.Peek(ctx, "api", u1)} {
			equal(t, []any{d.Allowed, d.Degraded, d.Reason, d.Err(), d.Renew()}, []any{true, true, "disabled", nil, false})
			d.Release()
		}
		ran := false
		err := c.Limit(ctx, "api", u1, func(context.Context) error { ran = true; return nil })
		equal(t, []any{err, ran, c.Charge(ctx, "api", u1), c.Check()}, []any{nil, true, false, false})
		c.Signal("loop_lag", 0.5)
		c.CallbackFailed("user", "no")
		answer := httptest.NewRecorder()
		options := HTTP{User: func(*http.Request) string { panic("no") }}
		c.Middleware(options)(handler).ServeHTTP(answer, httptest.NewRequest("GET", "/", nil))
		equal(t, answer.Code, http.StatusNoContent)
		equal(t, c.Stats().Connections, 0)
		c.Close()
	}
	const said = "tidegate: a *Client is not made by tidegate.New: nothing is limited"
	if lines := logged.All(); len(lines) != 2 || lines[0] != said {
		t.Fatal(lines)
	}
	var exempt *Decision // of a request without a check
	equal(t, []any{exempt.Err(), exempt.AwaitStart(ctx)}, []any{nil, nil})
	if c := New(nil, WithTimeout(time.Second)); c.timeout != time.Second {
		t.Fatal(c.timeout)
	}
}
