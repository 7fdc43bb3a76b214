package sandbox

import (
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/sandbox/internal/owned"
)

// CollectorOptions say where the recorders of sessions in Pods of runs send what they record; see operator/session. The zero
// value is nowhere: the network policy of a run lets a recorder reach only what its template names.
type CollectorOptions struct {
	// Namespace is that of the collector's Pods. All Pods of runs can reach these at Port, and nothing else there.
	Namespace string
	// Port is that of the Pods. Default: DefaultCollectorPort.
	Port int32
}

// DefaultCollectorPort is the default of CollectorOptions.Port.
const DefaultCollectorPort = 8444

// checkCollector says what is wrong with the options.
func (o *Options) checkCollector(namespaces []string) error {
	c := &o.Collector
	switch {
	case c.Namespace == "" && c.Port != 0:
		return errors.New("Namespace: required with Port: name the namespace of the collector")
	case c.Namespace == "":
		return nil
	case len(validation.IsDNS1123Label(c.Namespace)) > 0:
		return fmt.Errorf("Namespace: %q is not the name of a namespace", c.Namespace)
	case slices.Contains(namespaces, c.Namespace):
		return fmt.Errorf("Namespace: %q is one in which runs run: they would reach each other", c.Namespace)
	case c.Port < 1 || c.Port > 65535:
		return fmt.Errorf("Port: %d is not from 1 to 65535", c.Port)
	case !o.Broker.on():
		return nil
	}
	// What redirects the connections of a run sees ports, and no addresses.
	if broker, err := o.Broker.port(); err == nil && slices.Contains([]int32{80, 443, broker}, c.Port) {
		return fmt.Errorf("Port: %d is for the proxies of runs alone, as 80, 443 and the broker's are: let the collector have another", c.Port)
	}
	return nil
}

// collector is what the policies of runs let through, nil for nothing.
func (o *Options) collector() *v1alpha1.EgressCollector {
	if o.Collector.Namespace == "" {
		return nil
	}
	return &v1alpha1.EgressCollector{Namespace: o.Collector.Namespace, Port: o.Collector.Port}
}

// hasRecorder reports whether a webhook has put the recorder of sessions into a Pod.
func hasRecorder(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Spec.InitContainers, func(c corev1.Container) bool { return c.Name == v1alpha1.RecorderContainer })
}

// seeRecorder says whether the policy of a Pod with the recorder lets that reach a collector. Else its sessions would end
// after a while, and nobody would know why.
func (f *facts) seeRecorder(d *decision, pod *corev1.Pod, now time.Time) {
	e := f.run.Status.Egress
	if e == nil || e.Policy == "" || d.status.Phase.Terminal() || !hasRecorder(pod) {
		return
	}
	const unnamed = "sessions in the Pod are recorded, and the controller does not know where the collector is: "
	c := metav1.Condition{Type: v1alpha1.ConditionRecorderConnects, ObservedGeneration: f.run.Generation, LastTransitionTime: metav1.NewTime(now.Truncate(time.Second))}
	switch {
	case e.Collector != nil:
		c.Status, c.Reason = metav1.ConditionTrue, v1alpha1.CollectorAllowed
		c.Message = fmt.Sprintf("%s lets the Pod reach port %d of the Pods in namespace %s", e.Policy, e.Collector.Port, e.Collector.Namespace)
	case len(e.Egress.CIDRs)+len(e.Egress.Pods) > 0:
		c.Status, c.Reason = metav1.ConditionUnknown, v1alpha1.CollectorUnknown
		c.Message = unnamed + "it may be where the template's egress leads; else let the operator set --sandbox-collector-namespace"
	default:
		c.Status, c.Reason = metav1.ConditionFalse, v1alpha1.CollectorRefused
		c.Message = unnamed + e.Policy + " " + owned.Name(f.run).Name + " keeps the recorder from it, and each session ends. Let the operator set --sandbox-collector-namespace, which counts for runs that begin afterwards"
	}
	meta.SetStatusCondition(&d.status.Conditions, c)
}
