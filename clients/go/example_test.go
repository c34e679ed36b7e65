package tidegate_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/tidegate/tidegate/clients/go"
	"github.com/tidegate/tidegate/clients/go/tidegatetest"
)

// example replaces *testing.T in an example.
type example struct {
	testing.TB
	ends []func()
}

func (e *example) Helper()            {}
func (e *example) Cleanup(end func()) { e.ends = append([]func(){end}, e.ends...) }
func (e *example) end() {
	for _, end := range e.ends {
		end()
	}
}

// greedy returns a daemon that limits only the user "greedy".
func greedy(t testing.TB) *tidegatetest.Fake {
	fake := tidegatetest.New(t)
	fake.Force("per-user", "allow")
	fake.Force("per-user", "limit", func(asked tidegatetest.Asked) bool { return asked.Attributes["user"] == "greedy" })
	return fake
}

func Example() {
	t := &example{}
	defer t.end()
	client := tidegate.New(tidegate.WithSocket(greedy(t).Socket()), tidegate.WithTimeout(time.Second))

	work := func(user string) error {
		d := client.Acquire(context.Background(), "api", tidegate.Attributes{{"user", user}}, tidegate.Cost(1))
		defer d.Release()
		if err := d.Err(); err != nil {
			return err
		}
		fmt.Println(user, "works")
		return nil
	}
	fmt.Println(work("modest"))
	fmt.Println(work("greedy"))
	// Output:
	// modest works
	// <nil>
	// tidegate: Over the limit per-user of 10 requests in 60 s. Try again in 6 s.
}

func ExampleClient_Limit() {
	t := &example{}
	defer t.end()
	client := greedy(t).Client()
	err := client.Limit(context.Background(), "api", tidegate.Attributes{{"user", "greedy"}}, func(context.Context) error {
		return nil // the work
	})
	var denied *tidegate.Denied
	if errors.As(err, &denied) {
		fmt.Println(denied.Decision.Rule, denied.Decision.Status, denied.Decision.RetryAfter)
	}
	// Output: per-user 429 6s
}

func ExampleClient_Middleware() {
	t := &example{}
	defer t.end()
	client := greedy(t).Client()
	limit := client.Middleware(tidegate.HTTP{
		Domain: "api",
		User:   func(r *http.Request) string { return r.Header.Get("X-User") },
	})
	app := limit(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "hello") }))

	r := httptest.NewRequest("GET", "/", nil)
	r.Header.Set("X-User", "greedy")
	w := httptest.NewRecorder()
	app.ServeHTTP(w, r)
	fmt.Println(w.Code, w.Header().Get("Retry-After"), w.Header().Get("RateLimit"))
	// Output: 429 6 "per-user";r=0;t=6
}
