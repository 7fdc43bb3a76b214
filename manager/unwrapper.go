package manager

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/admitkit/admitkit/extension"
)

// GetUnwrapper returns what finds the commands that users gave: it asks all extensions that
// are an extension.Unwrapper. Without one, no command is wrapped.
func (m *Manager) GetUnwrapper() extension.Unwrapper { return unwrappers{m} }

type unwrappers struct{ m *Manager }

// Unwrap returns what the first one finds.
func (u unwrappers) Unwrap(options *corev1.PodExecOptions, req *extension.Request) *extension.Unwrapped {
	for _, each := range u.m.parts.Unwrappers {
		if unwrapped := each.Unwrap(options, req); unwrapped != nil {
			return unwrapped
		}
	}
	return nil
}
