// Package told keeps what a client logs, for tests to read.
package told

import (
	"fmt"
	"sync"
)

// Lines is a logger that keeps what it is told, line by line.
type Lines struct {
	mu    sync.Mutex
	lines []string
}

// Printf is what a client calls.
func (l *Lines) Printf(format string, v ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, fmt.Sprintf(format, v...))
}

// All is every line so far.
func (l *Lines) All() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]string(nil), l.lines...)
}
