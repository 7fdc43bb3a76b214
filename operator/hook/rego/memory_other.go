//go:build !linux

package rego

// limitMemory does nothing: GOMEMLIMIT and the timeout are what there is.
func limitMemory(string) {}
