//go:build !linux

// Command session is the recorder of operator/session. It runs in containers, which are
// Linux.
package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "admitkit: the recorder of sessions runs on Linux only")
	os.Exit(125)
}
