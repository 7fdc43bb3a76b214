package manager_test

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/manager/signals"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/manager"
)

// A program that registers and serves until it is interrupted.
func Example() {
	mgr, err := manager.New(manager.Options{
		Namespaces:       []string{"apps"}, // whose Pods
		WebhookNamespace: "my-system",      // where we are
		ServiceName:      "my-ext",         // and how the API server reaches us
	})
	if err != nil {
		panic(err)
	}
	hello := extension.MutatorFunc[*corev1.Pod](func(_ context.Context, _ *corev1.Pod, req *extension.Request) error {
		req.Warnf("hello, %s", req.User().Username)
		return nil
	})
	if err := mgr.AddExtension(extension.Mutating(hello, extension.Scope{})); err != nil {
		panic(err)
	}
	if err := mgr.Start(signals.SetupSignalHandler()); err != nil {
		panic(err)
	}
}

// New reports invalid options, by the path of the field.
func ExampleNew() {
	_, err := manager.New(manager.Options{RESTConfig: &rest.Config{Host: "https://192.0.2.1"}, Namespaces: []string{"apps"}, OperatorFingerprint: "two words"})
	fmt.Println(strings.HasPrefix(err.Error(), "manager options: OperatorFingerprint: "))
	// Output: true
}
