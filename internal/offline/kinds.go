package offline

import "github.com/admitkit/admitkit/internal/kinds"

// Kinds is a table of kinds that also makes requests for their objects.
type Kinds struct{ *kinds.Table }

// KindsOf returns the Kinds of a table.
func KindsOf(table *kinds.Table) *Kinds { return &Kinds{table} }
