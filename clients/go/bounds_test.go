package tidegate

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"
)

// app limits its work with only the three files.
const app = `package main

import (
	"context"
	"fmt"

	"copied"
)

func main() {
	client := tidegate.New()
	d := client.Acquire(context.Background(), "api", tidegate.Attributes{{"user", "u1"}}, tidegate.Cost(1))
	defer d.Release()
	if err := d.Err(); err != nil {
		fmt.Println("refused:", err)
		return
	}
	fmt.Println("works, as", d.Reason)
}
`

// The client is three files that can be copied: each of at most 530 lines of at most 120 columns (a tab counts 4), and
// they need only the standard library and each other.
func TestTheClientIsSmallAndCanBeCopied(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	for _, name := range []string{"tidegate.go", "connection.go", "wire.go"} {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(strings.TrimSuffix(string(data), "\n"), "\n")
		if len(lines) > 530 {
			t.Errorf("%s has %d lines", name, len(lines))
		}
		for i, line := range lines {
			if utf8.RuneCountInString(strings.ReplaceAll(line, "\t", "    ")) > 120 {
				t.Errorf("%s:%d is too wide", name, i+1)
			}
		}
		if err := os.WriteFile(filepath.Join(folder, name), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(folder, "go.mod"), []byte("module copied\n\ngo 1.19\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(folder, "app"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(folder, "app", "main.go"), []byte(app), 0o644); err != nil {
		t.Fatal(err)
	}
	p := played(t, reply(limit...))
	for _, row := range []struct{ socket, want string }{
		{p.Path, "refused: tidegate: limit by per-user"}, {"/nowhere/s", "works, as unreachable"},
	} {
		run := exec.Command("go", "run", "./app")
		run.Dir = folder
		run.Env = append(os.Environ(), "TIDEGATE_SOCKET="+row.socket, "TIDEGATE_TIMEOUT_MS=5000", "GOFLAGS=", "GOWORK=off")
		out, err := run.Output()
		if err != nil || strings.TrimSpace(string(out)) != row.want {
			t.Fatalf("%v: %s", err, out)
		}
	}
	vet := exec.Command("go", "vet", "./...")
	vet.Dir = folder
	if out, err := vet.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	module, err := os.ReadFile("go.mod")
	if err != nil || strings.Contains(string(module), "require") {
		t.Fatalf("the module needs others: %s %v", module, err)
	}
}
