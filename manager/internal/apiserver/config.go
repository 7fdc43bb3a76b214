package apiserver

import (
	"cmp"
	"fmt"
	"os"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// Config returns the connection of a kubeconfig file or, if the path is empty, that of
// $KUBECONFIG, of ~/.kube/config or of the Pod.
func Config(path string) (*rest.Config, error) {
	if path != "" {
		if _, err := os.Stat(path); err != nil {
			return nil, err
		}
	}
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = path
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
	if clientcmd.IsEmptyConfig(err) { // its text names a variable that nobody uses
		return nil, fmt.Errorf("no connection to a cluster: %s names none: name a kubeconfig with a current context, or run in a Pod", cmp.Or(path, "$KUBECONFIG or ~/.kube/config"))
	}
	if err != nil {
		return nil, fmt.Errorf("no connection to a cluster: %w", err)
	}
	return config, nil
}
