// Explains a failed connection to the daemon in more detail than its error.

package tidegate

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"reflect"
	"strconv"
	"syscall"
)

// explain replaces the text where the cause is known.
func (f *fault) explain(path string, err error) {
	switch {
	case errors.Is(err, syscall.EAGAIN):
		f.text = fmt.Sprintf("the daemon at %s accepts no connections: it is stopped or overloaded (%v)", path, err)
	case errors.Is(err, os.ErrPermission):
		f.text = fmt.Sprintf("permission denied on %s: %s", path, denial(path))
	case errors.Is(err, syscall.ECONNREFUSED):
		if info, err := os.Stat(path); err == nil && info.Mode()&os.ModeSocket == 0 {
			f.text = path + " is no socket: set TIDEGATE_SOCKET to that of the daemon"
		}
	}
}

// denial returns which directory or socket this process may not use, and why.
func denial(path string) string {
	info, err := os.Stat(path)
	for errors.Is(err, os.ErrPermission) && path != filepath.Dir(path) { // up to the directory that it may not enter
		path = filepath.Dir(path)
		info, err = os.Stat(path)
	}
	name, group, open := strconv.Itoa(os.Geteuid()), "that of the socket", true
	if found, err := user.Current(); err == nil {
		name = found.Username
	}
	if err == nil { // reflection, since not every system's Sys has a Gid
		gid := fmt.Sprint(reflect.Indirect(reflect.ValueOf(info.Sys())).FieldByName("Gid"))
		if found, err := user.LookupGroupId(gid); err == nil {
			group = found.Name
		}
		open = info.Mode().Perm()&when[os.FileMode](info.IsDir(), 0o010, 0o020) != 0
	}
	cause := fmt.Sprintf("user %s is not in group %s", name, group)
	if !open {
		cause = fmt.Sprintf("%s has mode %04o, without access for its group", path, info.Mode().Perm())
	}
	return fmt.Sprintf("%s; see `tidegate doctor --as %s`", cause, name)
}
