package examples_test

import (
	"testing"

	"github.com/admitkit/admitkit/internal/testkit"
)

// readmeBlock returns the code block of a language in the README, counted from 0.
func readmeBlock(t *testing.T, language string, number int) string {
	t.Helper()
	blocks, err := testkit.Blocks("../README.md", language)
	if err != nil {
		t.Fatal(err)
	}
	return blocks[number]
}
