package tidegate

// A scripted daemon, the real one, and the vectors.

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/tidegate/tidegate/clients/go/internal/logs"
	"github.com/tidegate/tidegate/clients/go/internal/peer"
)

const patient = 30 * time.Second // for tests that are not about the deadline, on a busy machine

var (
	ctx   = context.Background()
	u1    = Attributes{{"user", "u1"}}
	allow = []any{0, "per-user", 40, 2_000_000, 39, 50_000, 0}
	limit = []any{1, "per-user", 40, 2_000_000, 0, 50_000, 50_000}
)

// TestMain clears the environment: tests run in parallel, most of them wait.
func TestMain(m *testing.M) {
	for _, name := range []string{"TIDEGATE_SOCKET", "TIDEGATE_TIMEOUT_MS", "TIDEGATE_DISABLE", "XDG_RUNTIME_DIR"} {
		_ = os.Unsetenv(name)
	}
	silentTimeout = time.Second
	os.Exit(m.Run())
}

// reply returns a DECISION with these elements.
func reply(elements ...any) peer.Script {
	return func(_ net.Conn, message []any) []any { return append([]any{1, message[1]}, elements...) }
}

// grant replies to every ACQUIRE with a lease, 76 + the id.
func grant(_ net.Conn, message []any) []any {
	if message[0] == uint64(1) {
		return append(append([]any{1, message[1]}, allow...), 76+message[1].(uint64))
	}
	return []any{2, message[1], true}
}

func saying(t testing.TB, payload []byte) peer.Script {
	t.Helper()
	script, err := peer.Saying(payload)
	if err != nil {
		t.Fatal(err)
	}
	return script
}

func played(t testing.TB, script peer.Script) *peer.Peer {
	t.Helper()
	p, err := peer.New(script)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

func client(t testing.TB, path string, options ...Option) *Client {
	t.Helper()
	options = append([]Option{WithSocket(path), WithTimeout(patient), WithLogger(&logs.Lines{})}, options...)
	c := New(options...)
	t.Cleanup(c.Close)
	return c
}

func eventually(t testing.TB, what string, is func() bool) {
	t.Helper()
	for until := time.Now().Add(20 * time.Second); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(until) {
			t.Fatalf("waited for %s in vain", what)
		}
	}
}

// releases waits for RELEASEs, and returns their leases and outcomes.
func releases(t testing.TB, p *peer.Peer, count int) (found [][]any) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d releases", count), func() bool {
		found = nil
		for _, message := range p.Seen() {
			if message[0] == uint64(2) {
				found = append(found, message[1:])
			}
		}
		return len(found) >= count
	})
	return found
}

func equal(t testing.TB, got, want any) {
	t.Helper()
	if g, w := fmt.Sprint(got), fmt.Sprint(want); g != w {
		t.Fatalf("got  %s\nwant %s", g, w)
	}
}

// longPause makes the breaker's next pause at least a second, for slow machines.
func (c *Client) longPause() { c.pause = pauseMax }

func reasons(decisions ...*Decision) (all []string) {
	for _, d := range decisions {
		all = append(all, d.Reason)
	}
	return all
}

func hits(c *Client, count int, options ...CallOption) (all []*Decision) {
	for ; count > 0; count-- {
		all = append(all, c.Hit(ctx, "api", u1, options...))
	}
	return all
}

func repository(t testing.TB, path ...string) string {
	t.Helper()
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(append([]string{here, "..", ".."}, path...)...)
}

func vectors(t testing.TB, name string, into any) {
	t.Helper()
	data, err := os.ReadFile(repository(t, "tests", "vectors", name))
	if err != nil {
		t.Fatal(err)
	}
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.UseNumber()
	if err := decoder.Decode(into); err != nil {
		t.Fatal(err)
	}
}

// A daemon is a real one.
type daemon struct {
	t       testing.TB
	path    string
	command *exec.Cmd
	folder  string
}

func realDaemon(t testing.TB, rules string) *daemon {
	t.Helper()
	folder, err := os.MkdirTemp("", "tg-")
	if err != nil {
		t.Fatal(err)
	}
	d := &daemon{t: t, path: filepath.Join(folder, "s"), folder: folder}
	if err := os.Mkdir(filepath.Join(folder, "rules"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(folder, "rules", "api.yaml"), []byte(rules), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		d.kill()
		_ = os.RemoveAll(folder)
	})
	d.start()
	return d
}

func (d *daemon) start() {
	d.t.Helper()
	binary := os.Getenv("TIDEGATE_BIN")
	if binary == "" {
		// The newest build: an older one may be of another version.
		var newest time.Time
		for _, kind := range []string{"release", "debug"} {
			built := repository(d.t, "target", kind, "tidegate")
			if found, err := os.Stat(built); err == nil && found.ModTime().After(newest) {
				binary, newest = built, found.ModTime()
			}
		}
	}
	if binary == "" {
		d.t.Fatal("no tidegate to test with: cargo build, or set TIDEGATE_BIN")
	}
	d.command = exec.Command(binary, "serve", "--socket", d.path, "--rules", filepath.Join(d.folder, "rules"))
	if err := d.command.Start(); err != nil {
		d.t.Fatal(err)
	}
	eventually(d.t, "the daemon", New(WithSocket(d.path), WithTimeout(time.Second), WithLogger(&logs.Lines{})).up)
}

// up is Check without the breaker.
func (c *Client) up() bool {
	c.calm()
	return c.Check()
}

// calm resets the breaker as a reply does.
func (c *Client) calm() { c.settle(nil, time.Now(), time.Now(), false) }

// lone takes the only idle connection, until the test returns it.
func (c *Client) lone(t testing.TB) *connection {
	t.Helper()
	c.connections.Lock()
	defer c.connections.Unlock()
	if len(c.connections.idle) != 1 {
		t.Fatalf("%d idle connections", len(c.connections.idle))
	}
	k := c.connections.idle[0]
	c.connections.idle = nil
	return k
}

func (d *daemon) kill() {
	if d.command != nil {
		_ = d.command.Process.Kill()
		_ = d.command.Wait()
		d.command = nil
	}
}

func (d *daemon) signal(s syscall.Signal) { _ = d.command.Process.Signal(s) }

// free returns the remaining permits of the rule that matches the attributes.
func free(t testing.TB, c *Client, attributes Attributes) uint64 {
	t.Helper()
	d := c.Peek(ctx, "api", attributes)
	if d.Degraded || !d.HasLimit {
		t.Fatalf("not judged: %+v", d)
	}
	return d.Remaining
}

var quiet = log.New(io.Discard, "", 0)

func flush(w http.ResponseWriter) error {
	w.(http.Flusher).Flush()
	return nil
}
