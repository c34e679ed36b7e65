// Package tidegatetest is a daemon for the tests of applications: in this process, on its own socket. It allows all
// requests unless Force changes that. At the end of the test it asserts that every lease was released.
//
//	fake := tidegatetest.New(t)
//	app := NewApp(fake.Client())
//	fake.Force("per-user", "limit")
package tidegatetest

import (
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/tidegate/tidegate/clients/go"
	"github.com/tidegate/tidegate/clients/go/internal/peer"
)

// Asked is a recorded request.
type Asked struct {
	Op         string // acquire, hit or peek
	Domain     string
	Attributes map[string]string // of all descriptors; the first value of a name
	Priority   string
}

// Fake is a daemon for tests.
type Fake struct {
	t    testing.TB
	peer *peer.Peer

	mu     sync.Mutex
	forced []forced
	asked  []Asked
	leases map[uint64]Asked
	ended  []tidegate.Outcome
	last   uint64
}

type forced struct {
	rule    string
	verdict tidegate.Verdict
	when    func(Asked) bool
}

// New starts a Fake, and stops it at the end of the test.
func New(t testing.TB) *Fake {
	t.Helper()
	f := &Fake{t: t, leases: map[uint64]Asked{}}
	made, err := peer.New(f.answer)
	if err != nil {
		t.Fatalf("tidegatetest: %v", err)
	}
	f.peer = made
	t.Cleanup(func() {
		t.Helper()
		f.AssertReleased()
		made.Close()
	})
	return f
}

// Socket returns the path of its socket, for TIDEGATE_SOCKET of a tested process.
func (f *Fake) Socket() string { return f.peer.Path }

// Client returns a client with a timeout of 10 s, so that a busy machine does not cause degraded decisions.
func (f *Fake) Client(options ...tidegate.Option) *tidegate.Client {
	options = append([]tidegate.Option{tidegate.WithSocket(f.peer.Path), tidegate.WithTimeout(10 * time.Second)}, options...)
	c := tidegate.New(options...)
	f.t.Cleanup(c.Close)
	return c
}

// Force sets the verdict of a rule: allow, limit, shed, wait (10 ms), deny, or silence (no reply); with when, only for
// requests that satisfy it. The last matching call applies.
func (f *Fake) Force(rule string, verdict tidegate.Verdict, when ...func(Asked) bool) {
	f.t.Helper()
	switch verdict {
	case "allow", "limit", "shed", "wait", "deny", "silence":
	default:
		f.t.Fatalf("tidegatetest: a verdict is allow, limit, shed, wait, deny or silence, not %q", verdict)
	}
	about := func(asked Asked) bool {
		for _, is := range when {
			if !is(asked) {
				return false
			}
		}
		return true
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.forced = append(f.forced, forced{rule, verdict, about})
}

// Allow removes all forced verdicts.
func (f *Fake) Allow() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.forced = nil
}

// Asked returns all requests, in order.
func (f *Fake) Asked() []Asked {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]Asked(nil), f.asked...)
}

// Held returns the requests whose lease has not been released.
func (f *Fake) Held() []Asked {
	f.mu.Lock()
	defer f.mu.Unlock()
	held := []Asked{}
	for _, asked := range f.leases {
		held = append(held, asked)
	}
	return held
}

// Ended returns the outcomes of released leases, in order.
func (f *Fake) Ended() []tidegate.Outcome {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]tidegate.Outcome(nil), f.ended...)
}

// AssertReleased fails the test if a lease remains after 2 s.
func (f *Fake) AssertReleased() {
	f.t.Helper()
	for until := time.Now().Add(2 * time.Second); ; time.Sleep(time.Millisecond) {
		held := f.Held()
		if len(held) == 0 {
			return
		}
		if time.Now().After(until) {
			f.t.Errorf("tidegatetest: %d leases were not released: %+v", len(held), held)
			return
		}
	}
}

func (f *Fake) answer(_ net.Conn, message []any) []any {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch op, _ := message[0].(uint64); op {
	case 2:
		lease, _ := message[2].(uint64)
		_, held := f.leases[lease]
		if outcome, _ := message[3].(uint64); held {
			f.ended = append(f.ended, tidegate.Outcome(outcome))
		}
		delete(f.leases, lease)
		return []any{2, message[1], held}
	case 1, 3, 4:
		asked := read(message, map[uint64]string{1: "acquire", 3: "hit", 4: "peek"}[op])
		f.asked = append(f.asked, asked)
		return f.decide(message[1], asked)
	case 5, 6:
		return []any{2, message[1], true}
	}
	return nil
}

func (f *Fake) decide(id any, asked Asked) []any {
	use := forced{verdict: "allow"}
	for _, one := range f.forced {
		if one.when(asked) {
			use = one
		}
	}
	var lease any
	if asked.Op == "acquire" && (use.verdict == "allow" || use.verdict == "wait") {
		f.last++
		f.leases[f.last], lease = asked, f.last
	}
	switch rule := any(use.rule); use.verdict {
	case "limit":
		return []any{1, id, 1, rule, 10, 60_000_000, 0, 6_000_000, 6_000_000}
	case "shed":
		return []any{1, id, 2, rule, nil, nil, nil, nil, 1_000_000}
	case "wait":
		return []any{1, id, 3, rule, 10, 60_000_000, 5, 6_000_000, 10_000, lease}
	case "deny":
		return []any{1, id, 4, rule}
	case "silence":
		return nil
	}
	if use.rule == "" {
		return []any{1, id, 0, nil, nil, nil, nil, nil, 0, lease}
	}
	return []any{1, id, 0, use.rule, 10, 60_000_000, 9, 6_000_000, 0, lease}
}

func read(message []any, op string) Asked {
	asked := Asked{Op: op, Domain: fmt.Sprint(message[2]), Attributes: map[string]string{}}
	descriptors, _ := message[3].([]any)
	for _, descriptor := range descriptors {
		pairs, _ := descriptor.([]any)
		for i := 0; i+1 < len(pairs); i += 2 {
			if name := fmt.Sprint(pairs[i]); asked.Attributes[name] == "" {
				asked.Attributes[name] = fmt.Sprint(pairs[i+1])
			}
		}
	}
	if len(message) > 5 && message[5] != nil {
		asked.Priority = fmt.Sprint(message[5])
	}
	return asked
}
