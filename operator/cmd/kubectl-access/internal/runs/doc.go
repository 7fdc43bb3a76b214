// Package runs has the commands about sandboxed runs: run.go makes one and waits for it,
// runs.go lists, describes and cancels, follow.go prints the output, and attach.go enters an
// interactive run.
package runs
