package tidegate

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"
)

// The client itself is two files, to be copied: each of at most 500 lines of at most 120 columns (a tab counts 4), and
// together they need nothing but the standard library and each other.
func TestTheClientIsSmallAndCanBeCopied(t *testing.T) {
	folder := t.TempDir()
	for _, name := range []string{"tidegate.go", "wire.go"} {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(strings.TrimSuffix(string(data), "\n"), "\n")
		if len(lines) > 500 {
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
	vet := exec.Command("go", "vet", ".")
	vet.Dir = folder
	if out, err := vet.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	module, err := os.ReadFile("go.mod")
	if err != nil || strings.Contains(string(module), "require") {
		t.Fatalf("the module needs others: %s %v", module, err)
	}
}
