package decision

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/sandbox/internal/facts"
	"github.com/admitkit/admitkit/operator/sandbox/internal/owned"
)

// seeRecorder says whether the policy of a Pod with the recorder lets that reach a collector. Else its sessions would end
// after a while, and nobody would know why.
func (d *Decision) seeRecorder(f *facts.Facts, pod *corev1.Pod, now time.Time) {
	e := f.Run.Status.Egress
	if e == nil || e.Policy == "" || d.Status.Phase.Terminal() || !facts.HasRecorder(pod) {
		return
	}
	const unnamed = "sessions in the Pod are recorded, and the controller does not know where the collector is: "
	c := metav1.Condition{Type: v1alpha1.ConditionRecorderConnects, ObservedGeneration: f.Run.Generation, LastTransitionTime: metav1.NewTime(now.Truncate(time.Second))}
	switch {
	case e.Collector != nil:
		c.Status, c.Reason = metav1.ConditionTrue, v1alpha1.CollectorAllowed
		c.Message = fmt.Sprintf("%s lets the Pod reach port %d of the Pods in namespace %s", e.Policy, e.Collector.Port, e.Collector.Namespace)
	case len(e.Egress.CIDRs)+len(e.Egress.Pods) > 0:
		c.Status, c.Reason = metav1.ConditionUnknown, v1alpha1.CollectorUnknown
		c.Message = unnamed + "it may be where the template's egress leads; else let the operator set --sandbox-collector-namespace"
	default:
		c.Status, c.Reason = metav1.ConditionFalse, v1alpha1.CollectorRefused
		c.Message = unnamed + e.Policy + " " + owned.Name(f.Run).Name + " keeps the recorder from it, and each session ends. Let the operator set --sandbox-collector-namespace, which counts for runs that begin afterwards"
	}
	meta.SetStatusCondition(&d.Status.Conditions, c)
}
