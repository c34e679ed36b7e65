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

// fake is a daemon for these examples, in which everyone but "greedy" is let through.
func fake() *tidegatetest.Fake {
	made := tidegatetest.New(&testing.T{})
	made.Force("per-user", "allow")
	made.Force("per-user", "limit", func(asked tidegatetest.Asked) bool { return asked.Attributes["user"] == "greedy" })
	return made
}

func Example() {
	client := tidegate.New(tidegate.WithSocket(fake().Socket()), tidegate.WithTimeout(time.Second))

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
	client := fake().Client()
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
	client := fake().Client()
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
