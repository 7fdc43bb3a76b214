//go:build linux

// Command recorder is the recorder of operator/session. The webhook puts it before the
// command of an exec:
//
//	/.admitkit/recorder --ticket=TICKET -- COMMAND [ARGUMENT...]
//
// It runs the command on a terminal or on pipes of its own, as if it was not there, and
// sends what it sees to a collector. In an init container it copies itself to where the
// other containers find it:
//
//	recorder install DIRECTORY
package main

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"unsafe"

	"github.com/admitkit/admitkit/manager/buildinfo"
	"github.com/admitkit/admitkit/operator/internal/session/protocol"
)

// exitRefused is the exit code of a session that does not begin. Nothing else that a
// container runs has it, by convention.
const exitRefused = 125

// The first thread starts the command and lives as long as the recorder does: the command
// gets SIGKILL when the thread that has started it ends (PR_SET_PDEATHSIG).
func init() { runtime.LockOSThread() }

func main() {
	code, err := run(os.Args[1:])
	if err != nil {
		within(deniedTime, func() { fmt.Fprintln(os.Stderr, "admitkit:", strings.ReplaceAll(err.Error(), "\n", " ")) }) // nobody may read it
	}
	os.Exit(code)
}

// taken takes an argument off the command line of this process, which every process of the container
// may read, and returns it.
func taken(argument string) string {
	kept := strings.Clone(argument)
	clear(unsafe.Slice(unsafe.StringData(argument), len(argument))) //nolint:gosec // the memory is the kernel's, and may be written
	return kept
}

func run(args []string) (int, error) {
	switch {
	case len(args) == 1 && args[0] == "version":
		fmt.Println(buildinfo.Get().Short())
		return 0, nil
	case len(args) == 3 && args[0] == "version" && args[1] == "-o":
		if err := buildinfo.Get().Write(os.Stdout, "recorder", args[2]); err != nil {
			return exitRefused, err
		}
		return 0, nil
	case len(args) == 2 && args[0] == "install":
		if err := install(args[1]); err != nil {
			return exitRefused, err
		}
		return 0, nil
	}
	text, command, ok := protocol.Split(append([]string{protocol.Program}, args...))
	if !ok {
		return exitRefused, errors.New("this program records sessions: it is started by the webhook of operator/session, and by nobody else")
	}
	text = taken(text)
	ticket, err := protocol.Parse(text)
	if err != nil {
		return exitRefused, err
	}
	// It is one of many in a Pod whose memory is somebody else's.
	runtime.GOMAXPROCS(2)
	debug.SetGCPercent(25)
	if err := guardProcess(); err != nil {
		return exitRefused, err
	}
	s, err := newSession(text, ticket, command)
	if err != nil {
		return exitRefused, err
	}
	return s.run()
}
