package cluster

import (
	"testing"
	"time"
)

// SetPatience shortens how long controllers wait for namespaces that cannot be read.
func SetPatience(t *testing.T, d time.Duration) {
	before := patience
	patience = d
	t.Cleanup(func() { patience = before })
}
