package audit

import (
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/api/v1alpha1"
	"github.com/admitkit/admitkit/extension"
)

// unthrottled returns the connection of clients that ask as fast as acts come.
// The API server protects itself (API priority and fairness).
func unthrottled(mgr extension.Manager) (*rest.Config, error) {
	config, err := mgr.GetKubeConnection()
	if err != nil {
		return nil, err
	}
	config.QPS = -1
	return config, nil
}

func newClientset(mgr extension.Manager) (*kubernetes.Clientset, error) {
	config, err := unthrottled(mgr)
	if err != nil {
		return nil, err
	}
	return kubernetes.NewForConfig(config)
}

// newClient returns a client that reads from the API server: what it reads
// decides about access now.
func newClient(mgr extension.Manager) (client.Client, error) {
	config, err := unthrottled(mgr)
	if err != nil {
		return nil, err
	}
	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		return nil, err
	}
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	return client.New(config, client.Options{Scheme: scheme})
}
