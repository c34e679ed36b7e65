// The adapter of the Go client: a command as a line of JSON on standard input, its result on standard output.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/tidegate/tidegate/clients/go"
)

type command struct {
	Do, Client, Socket, Domain, Priority, Idem, Fallback, Outcome string
	OnFailure                                                     string         `json:"on_failure"`
	TimeoutMs                                                     float64        `json:"timeout_ms"`
	Attributes                                                    map[string]any // one: Go's maps have no order
	Cost                                                          *int64
	Enabled                                                       *bool
	Callers                                                       int
	Fails                                                         bool
}

type lines struct {
	sync.Mutex
	all []string
}

func (l *lines) Printf(format string, values ...any) {
	l.Lock()
	defer l.Unlock()
	l.all = append(l.all, fmt.Sprintf(format, values...))
}

var (
	clients  = map[string]*tidegate.Client{}
	logged   lines
	last     *tidegate.Decision
	outcomes = map[string]tidegate.Outcome{"ok": tidegate.OK, "error": tidegate.Failed, "dropped": tidegate.Dropped}
)

func make_(given command) map[string]any {
	options := []tidegate.Option{tidegate.WithSocket(given.Socket), tidegate.WithLogger(&logged),
		tidegate.WithTimeout(time.Duration(given.TimeoutMs * float64(time.Millisecond)))}
	if given.Fallback != "" {
		options = append(options, tidegate.WithFallback(given.Fallback))
	}
	if given.Enabled != nil {
		options = append(options, tidegate.WithEnabled(*given.Enabled))
	}
	clients[given.Client] = tidegate.New(options...)
	return map[string]any{}
}

// attributes converts values; {"invalid": true} is text that is no UTF-8.
func attributes(given command) (pairs tidegate.Attributes) {
	for name, value := range given.Attributes {
		if odd, is := value.(map[string]any); is && odd["object"] == true {
			value = struct{ self *command }{&given}
		} else if is {
			value = "\xff\xfe"
		}
		pairs = append(pairs, [2]any{name, value})
	}
	return pairs
}

func ask(given command) (*tidegate.Decision, map[string]any) {
	client, values, options := clients[given.Client], attributes(given), []tidegate.CallOption{}
	if given.Cost != nil {
		options = append(options, tidegate.Cost(*given.Cost))
	}
	if given.Priority != "" {
		options = append(options, tidegate.Priority(given.Priority))
	}
	if given.Idem != "" {
		options = append(options, tidegate.Idem(given.Idem))
	}
	if given.OnFailure == "refuse" {
		options = append(options, tidegate.RefuseOnFailure())
	}
	call := map[string]func(context.Context, string, tidegate.Attributes, ...tidegate.CallOption) *tidegate.Decision{
		"acquire": client.Acquire, "peek": client.Peek}[given.Do]
	if call == nil {
		call = client.Hit
	}
	began := time.Now()
	d := call(context.Background(), given.Domain, values, options...)
	took := time.Since(began).Microseconds()
	said := map[string]any{"took_us": took, "allowed": d.Allowed, "verdict": d.Verdict, "status": d.Status,
		"degraded": d.Degraded, "reason": orNil(d.Reason), "rule": orNil(d.Rule), "limit": nil, "remaining": nil,
		"lease": orNil(d.Lease), "retry_us": nil, "wait_us": d.Wait.Microseconds()}
	if d.HasLimit {
		said["limit"], said["remaining"] = d.Limit, d.Remaining
	}
	if d.RetryAfter != tidegate.Never {
		said["retry_us"] = d.RetryAfter.Microseconds()
	}
	return d, said
}

func orNil[T comparable](value T) any {
	var zero T
	if value == zero {
		return nil
	}
	return value
}

func crowd(given command) map[string]any {
	all, group := make([]any, given.Callers), sync.WaitGroup{}
	for i := range all {
		group.Add(1)
		go func(i int, given command) {
			defer group.Done()
			given.Attributes = map[string]any{"user": fmt.Sprintf("u%d", i)}
			_, all[i] = ask(given)
		}(i, given)
	}
	group.Wait()
	return map[string]any{"all": all}
}

// work runs work under a lease, which fails if `fails`.
func work(given command) map[string]any {
	ran, failed := false, errors.New("of the application")
	err := clients[given.Client].Limit(context.Background(), given.Domain, attributes(given), func(context.Context) error {
		if ran = true; given.Fails {
			return failed
		}
		return nil
	})
	said := map[string]any{"ran": ran}
	if err != nil {
		said["raised"] = fmt.Sprintf("%T", err)
	}
	return said
}

func main() {
	in, out := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	for {
		var given command
		if in.Decode(&given) != nil {
			return
		}
		said := map[string]any{}
		switch given.Do {
		case "make":
			said = make_(given)
		case "crowd":
			said = crowd(given)
		case "work":
			said = work(given)
		case "release":
			last.ReleaseAs(outcomes[given.Outcome])
		case "log":
			said["lines"], logged.all = append([]string{}, logged.all...), nil
		case "stats":
			stats := clients[given.Client].Stats()
			said = map[string]any{"missed": stats.Missed, "refused": stats.Refused, "breaker_open": stats.BreakerOpen, "connections": stats.Connections}
		default:
			last, said = ask(given)
		}
		if out.Encode(said) != nil {
			return
		}
	}
}
