// The adapter of the Go client: a command as a line of JSON on standard input, its result on standard output.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/tidegate/tidegate/clients/go"
)

type command struct {
	Do, Client, Socket, Domain, Priority, Idem, Fallback, Outcome string
	OnFailure                                                     string  `json:"on_failure"`
	TimeoutMs                                                     float64 `json:"timeout_ms"`
	Attributes                                                    map[string]any
	Cost                                                          int64
	Callers                                                       int
	Enabled, Fails                                                bool
}

type object = map[string]any

var (
	background = context.Background()
	clients    = map[string]*tidegate.Client{}
	logged     bytes.Buffer
	last       *tidegate.Decision
	outcomes   = map[string]tidegate.Outcome{"ok": tidegate.OK, "error": tidegate.Failed, "dropped": tidegate.Dropped}
)

func ask(given command) (*tidegate.Decision, object) {
	client, values := clients[given.Client], tidegate.Attributes{}
	for name, value := range given.Attributes {
		if odd, is := value.(object); is && odd["object"] == true {
			value = ask // a function
		} else if is {
			value = "\xff\xfe" // text that is no UTF-8
		}
		values = append(values, [2]any{name, value})
	}
	options := []tidegate.CallOption{tidegate.Cost(given.Cost), tidegate.Priority(given.Priority), tidegate.Idem(given.Idem)}
	if given.OnFailure == "refuse" {
		options = append(options, tidegate.RefuseOnFailure())
	}
	call := client.Hit
	switch given.Do {
	case "acquire":
		call = client.Acquire
	case "peek":
		call = client.Peek
	}
	began := time.Now()
	d := call(background, given.Domain, values, options...)
	said := object{"took_us": time.Since(began).Microseconds(), "allowed": d.Allowed, "verdict": d.Verdict, "status": d.Status,
		"degraded": d.Degraded, "reason": orNil(d.Reason), "rule": orNil(d.Rule), "lease": orNil(d.Lease),
		"wait_us": d.Wait.Microseconds()}
	if d.HasLimit {
		said["limit"], said["remaining"] = d.Limit, d.Remaining
	}
	if d.RetryAfter != tidegate.Never {
		said["retry_us"] = d.RetryAfter.Microseconds()
	}
	return d, said
}

func orNil[T comparable](value T) any {
	if value == *new(T) {
		return nil
	}
	return value
}

func answer(given command) object {
	client := clients[given.Client]
	switch given.Do {
	case "make":
		options := []tidegate.Option{tidegate.WithSocket(given.Socket), tidegate.WithLogger(log.New(&logged, "", 0)),
			tidegate.WithTimeout(time.Duration(given.TimeoutMs * 1e6)), tidegate.WithEnabled(given.Enabled)}
		if given.Fallback != "" {
			options = append(options, tidegate.WithFallback(given.Fallback))
		}
		clients[given.Client] = tidegate.New(options...)
	case "crowd":
		all, group := make([]any, given.Callers), sync.WaitGroup{}
		for i := range all {
			group.Add(1)
			go func(i int, given command) {
				defer group.Done()
				given.Attributes = object{"user": fmt.Sprintf("u%d", i)}
				_, all[i] = ask(given)
			}(i, given)
		}
		group.Wait()
		return object{"all": all}
	case "work": // runs under a lease; it fails if `fails`
		said := object{"ran": false}
		err := client.Limit(background, given.Domain, tidegate.Attributes{}, func(context.Context) error {
			if said["ran"] = true; given.Fails {
				return errors.New("of the application")
			}
			return nil
		})
		if err != nil {
			said["raised"] = fmt.Sprintf("%T", err)
		}
		return said
	case "release":
		last.ReleaseAs(outcomes[given.Outcome])
	case "log":
		lines := strings.SplitAfter(logged.String(), "\n")
		logged.Reset()
		return object{"lines": lines[:len(lines)-1]}
	case "stats":
		s := client.Stats()
		return object{"missed": s.Missed, "refused": s.Refused, "breaker_open": s.BreakerOpen, "connections": s.Connections}
	default:
		d, said := ask(given)
		last = d
		return said
	}
	return object{}
}

func main() {
	in, out := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	for given := (command{Cost: 1, Enabled: true}); in.Decode(&given) == nil; given = (command{Cost: 1, Enabled: true}) {
		if out.Encode(answer(given)) != nil {
			return
		}
	}
}
