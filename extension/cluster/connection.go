package cluster

import (
	"k8s.io/client-go/rest"

	"github.com/admitkit/admitkit/extension"
)

// Unthrottled returns the manager's connection without the rate limit of client-go.
// Use it for what an admission waits for: it must not queue behind other requests.
// The API server protects itself (API Priority and Fairness).
func Unthrottled(mgr extension.Manager) (*rest.Config, error) {
	config, err := mgr.GetKubeConnection()
	if err != nil {
		return nil, err
	}
	config.QPS = -1
	return config, nil
}
