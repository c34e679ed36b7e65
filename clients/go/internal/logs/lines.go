// Package logs records the log of a client for tests.
package logs

import (
	"fmt"
	"sync"
)

// Lines is a logger that records its lines.
type Lines struct {
	mu    sync.Mutex
	lines []string
}

// Printf appends a line.
func (l *Lines) Printf(format string, v ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, fmt.Sprintf(format, v...))
}

// All returns all lines so far.
func (l *Lines) All() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]string(nil), l.lines...)
}
