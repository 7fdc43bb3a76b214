package touch

import (
	"context"
	"fmt"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/admitkit/admitkit/extension"
)

// Guard keeps the mark of a Pod as the first session left it, until the Pod is gone.
// Who could move its time could keep what they typed for ever.
type Guard struct{}

var _ extension.Validator[*metav1.PartialObjectMetadata] = Guard{}

// Scope returns the admissions that change a mark. The API server sends no other
// update, so that the kubelets do not depend on the webhook.
func (Guard) Scope(namespaces *metav1.LabelSelector) extension.Scope {
	fail := admissionregistrationv1.Fail
	return extension.Scope{
		Name: "audit-touched", FailurePolicy: &fail, Modes: []extension.Mode{extension.Enforce}, NamespaceSelector: namespaces,
		Rules: extension.Resources("", "v1", []string{"pods", "pods/status"}, admissionregistrationv1.Update),
		MatchConditions: []admissionregistrationv1.MatchCondition{
			{Name: "marked", Expression: valueIn("oldObject", "labels", Label) + " != ''"},
			{Name: "the-mark-changes", Expression: mark("object") + " != " + mark("oldObject")},
		},
	}
}

// mark is the CEL expression of the values that stay.
func mark(object string) string {
	return fmt.Sprintf("[%s, %s, %s]",
		valueIn(object, "labels", Label), valueIn(object, "annotations", AnnotationTouchedBy), valueIn(object, "annotations", AnnotationTouchedAt))
}

func valueIn(object, in, key string) string {
	return fmt.Sprintf("(has(%[1]s.metadata.%[2]s) && '%[3]s' in %[1]s.metadata.%[2]s ? %[1]s.metadata.%[2]s['%[3]s'] : '')", object, in, key)
}

// Validate refuses the change.
func (Guard) Validate(_ context.Context, pod *metav1.PartialObjectMetadata, _ *extension.Request) error {
	return extension.Denyf("Pod %s/%s was touched: the label %s and the annotations %s and %s stay until the Pod is gone. The annotation %s puts its eviction off",
		pod.Namespace, pod.Name, Label, AnnotationTouchedBy, AnnotationTouchedAt, AnnotationEvictAfter)
}
