// Package sandbox runs work that nobody trusts: a HarnessRun becomes a Job whose Pod reaches
// only what its template names.
package sandbox

import "github.com/admitkit/admitkit/extension"

// Options are the options of [New].
type Options struct {
	// Namespaces are those in which HarnessRuns run. Default: the watched namespace;
	// required if every namespace is watched.
	Namespaces []string
}

// Sandbox is the extension. Make one with [New].
type Sandbox struct{ options Options }

var _ extension.Composite = (*Sandbox)(nil)

// New returns the extension.
func New(options Options) *Sandbox { return &Sandbox{options} }

// Parts implements [extension.Composite].
func (s *Sandbox) Parts(extension.Manager) ([]any, error) { return nil, nil }
