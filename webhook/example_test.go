package webhook_test

import (
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/webhook"
)

// Extensions with equal scopes share a webhook, and so one request.
func ExampleGroup() {
	pods := extension.Scope{Name: "pods"}
	deployments := extension.Scope{Name: "deployments", Rules: extension.Resources("apps", "v1", []string{"deployments"}, "CREATE")}
	webhooks, err := webhook.Group([]*extension.Handler{
		extension.Mutating(extension.MutatorFunc[*corev1.Pod](nil), pods),
		extension.Mutating(extension.MutatorFunc[*appsv1.Deployment](nil), deployments),
		extension.Mutating(extension.MutatorFunc[*corev1.Pod](nil), pods),
	}, webhook.Defaults{Namespaces: []string{"apps"}})
	if err != nil {
		panic(err)
	}
	for _, w := range webhooks {
		fmt.Println(w.Name, len(w.Handlers))
	}
	// Output:
	// pods 2
	// deployments 1
}
