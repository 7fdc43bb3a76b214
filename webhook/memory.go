package webhook

import "github.com/admitkit/admitkit/webhook/internal/limits"

// DefaultMemory is what requests may occupy together in a process without a memory
// limit (GOMEMLIMIT). With one, it is a third of the limit.
const DefaultMemory = limits.DefaultMemory

// Memory bounds what the requests of a process occupy together: bodies that arrive,
// requests that wait, and requests that are decoded and answered. A request that alone is
// larger than its part is refused as too large; API servers are asked to repeat all others.
type Memory limits.Memory

// NewMemory returns a Memory of so many bytes. 0 means a third of the process's memory
// limit (runtime/debug.SetMemoryLimit, GOMEMLIMIT), or DefaultMemory without one. The
// rest is for connections, for what the program itself needs, and for garbage, most of
// which comes of decoding.
func NewMemory(bytes int64) *Memory { return (*Memory)(limits.NewMemory(bytes)) }
