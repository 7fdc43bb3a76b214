package cluster

import (
	"testing"
	"time"
)

// SetPatience shortens how long controllers wait for namespaces that cannot be read.
func SetPatience(t *testing.T, d time.Duration) {
	before := syncTimeout
	syncTimeout = d
	t.Cleanup(func() { syncTimeout = before })
}
