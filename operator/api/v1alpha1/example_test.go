package v1alpha1_test

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

// A client that works with the kinds needs them in its scheme.
func ExampleAddToScheme() {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		panic(err)
	}
	request := &v1alpha1.ExecAccessRequest{ObjectMeta: metav1.ObjectMeta{Namespace: "apps", Name: "debug"}}
	kinds, _, err := scheme.ObjectKinds(request)
	fmt.Println(kinds, err)
	// Output: [admitkit.dev/v1alpha1, Kind=ExecAccessRequest] <nil>
}
