package registration_test

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/internal/registration"
	"github.com/admitkit/admitkit/webhook"
)

// The objects that a registration writes, as a review of them sees them.
func ExampleRegistration_Objects() {
	webhooks, err := webhook.Group([]*extension.Handler{
		extension.Mutating(extension.MutatorFunc[*corev1.Pod](nil), extension.Scope{Name: "owner"}),
	}, webhook.Defaults{Namespaces: []string{"apps"}})
	if err != nil {
		panic(err)
	}
	r := registration.Registration{
		Name: "admitkit.my-system", Domain: "my-system.svc", Webhooks: webhooks,
		Target: registration.Target{ServiceName: "my-ext", ServiceNamespace: "my-system", ServicePort: 443},
	}
	for _, configuration := range r.Objects() {
		for _, entry := range configuration.Webhooks {
			fmt.Println(configuration.Name, entry.Name, *entry.FailurePolicy)
		}
	}
	// Output: admitkit.my-system owner.my-system.svc Fail
}
