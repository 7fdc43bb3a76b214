package sandbox

import (
	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/operator/sandbox/internal/brokerpolicy"
)

// BrokerPolicies admits BrokerPolicies, and keeps their conditions.
type BrokerPolicies struct {
	// Namespaces are those in which conditions are kept. Default: the watched namespaces, or
	// every one if there is none.
	Namespaces []string
}

var _ extension.Composite = BrokerPolicies{}

// Parts implements [extension.Composite].
func (b BrokerPolicies) Parts(mgr extension.Manager) ([]any, error) {
	return brokerpolicy.Parts(mgr, b.Namespaces), nil
}
