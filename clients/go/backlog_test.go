package tidegate

import (
	"syscall"
	"testing"
)

// backlogOfNone listens and never accepts; the queue has room for one.
func backlogOfNone(t *testing.T, path string) func() {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err == nil {
		err = syscall.Bind(fd, &syscall.SockaddrUnix{Name: path})
	}
	if err == nil {
		err = syscall.Listen(fd, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	return func() { _ = syscall.Close(fd) }
}
