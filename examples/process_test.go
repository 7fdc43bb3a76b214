package examples_test

import (
	"bytes"
	"context"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// output is what a program printed so far.
type output struct {
	mu     sync.Mutex
	buffer bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buffer.Write(p)
}

// contains reports whether one line has all of the texts.
func (o *output) contains(texts ...string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
next:
	for line := range strings.Lines(o.buffer.String()) {
		for _, text := range texts {
			if !strings.Contains(line, text) {
				continue next
			}
		}
		return true
	}
	return false
}

func eventually(t *testing.T, what string, condition func(context.Context) bool) {
	t.Helper()
	if err := wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, 30*time.Second, true, func(ctx context.Context) (bool, error) {
		return condition(ctx), nil
	}); err != nil {
		t.Fatalf("not within 30 s: %s", what)
	}
}

// readmeBlocks returns the code blocks of a language in the README.
func readmeBlocks(t *testing.T, language string) []string {
	t.Helper()
	readme, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	var blocks []string
	for _, block := range regexp.MustCompile("(?s)```"+language+"\n(.*?)```").FindAllStringSubmatch(string(readme), -1) {
		blocks = append(blocks, block[1])
	}
	return blocks
}
