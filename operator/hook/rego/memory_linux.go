package rego

import (
	"strconv"
	"syscall"
)

// limitMemory bounds the memory of this process, whatever it is for: GOMEMLIMIT alone has Go
// collect garbage, and bounds nothing.
func limitMemory(bytes string) {
	if limit, err := strconv.ParseUint(bytes, 10, 64); err == nil {
		_ = syscall.Setrlimit(syscall.RLIMIT_DATA, &syscall.Rlimit{Cur: limit, Max: limit}) // it may lower its own
	}
}
