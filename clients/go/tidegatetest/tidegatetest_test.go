package tidegatetest_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/tidegate/tidegate/clients/go"
	"github.com/tidegate/tidegate/clients/go/tidegatetest"
)

var ctx = context.Background()

func TestForcedVerdicts(t *testing.T) {
	fake := tidegatetest.New(t)
	c := fake.Client()
	for verdict, status := range map[tidegate.Verdict]int{"limit": 429, "shed": 503, "deny": 403, "wait": 200, "allow": 200} {
		fake.Force("per-user", verdict)
		d := c.Acquire(ctx, "api", tidegate.Attributes{{"user", "u1"}})
		if d.Verdict != verdict || d.Status != status || d.Rule != "per-user" || d.Degraded {
			t.Errorf("%s: %+v", verdict, d)
		}
		d.Release()
	}
	fake.Allow()
	if d := c.Hit(ctx, "api", nil, tidegate.Priority("low")); !d.Allowed || d.Rule != "" {
		t.Errorf("%+v", d)
	}
	asked := fake.Asked()
	if first, last := asked[0], asked[len(asked)-1]; first.Attributes["user"] != "u1" || first.Op != "acquire" || last.Priority != "low" {
		t.Errorf("%+v", asked)
	}
}

func TestSilence(t *testing.T) {
	fake := tidegatetest.New(t)
	fake.Force("", "silence")
	if d := fake.Client(tidegate.WithTimeout(20*time.Millisecond)).Acquire(ctx, "api", nil); d.Reason != "timeout" {
		t.Errorf("%+v", d)
	}
}

// A testing.TB that records failures.
type watched struct {
	testing.TB
	failed string
	ends   []func()
}

func (w *watched) Errorf(format string, values ...any) { w.failed = fmt.Sprintf(format, values...) }
func (w *watched) Helper()                             {}
func (w *watched) Cleanup(end func())                  { w.ends = append(w.ends, end) }

func TestALeaseThatIsNotReleasedFailsTheTest(t *testing.T) {
	w := &watched{TB: t}
	fake := tidegatetest.New(w)
	d := fake.Client().Acquire(ctx, "api", tidegate.Attributes{{"job", "export"}})
	if len(fake.Held()) != 1 {
		t.Fatal("none is held")
	}
	fake.AssertReleased()
	if w.failed == "" {
		t.Fatal("it did not fail")
	}
	w.failed = ""
	d.SetOutcome(tidegate.Failed)
	d.Release()
	for _, end := range w.ends {
		end()
	}
	if ended := fake.Ended(); w.failed != "" || len(ended) != 1 || ended[0] != tidegate.Failed {
		t.Fatal(w.failed, ended)
	}
}

// An example of an application's test.
func ExampleNew() {
	t := &watched{} // the *testing.T of a test
	fake := tidegatetest.New(t)
	limited := fake.Client().Middleware(tidegate.HTTP{
		User: func(r *http.Request) string { return r.Header.Get("X-User") },
	})
	app := limited(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "hello") }))

	fake.Force("per-user", "limit", func(asked tidegatetest.Asked) bool { return asked.Attributes["user"] == "greedy" })
	for _, user := range []string{"modest", "greedy"} {
		r := httptest.NewRequest("GET", "/", nil)
		r.Header.Set("X-User", user)
		w := httptest.NewRecorder()
		app.ServeHTTP(w, r)
		fmt.Println(user, w.Code)
	}
	for _, end := range t.ends { // as the test's own end does: every lease must have been released
		end()
	}
	// Output:
	// modest 200
	// greedy 429
}
