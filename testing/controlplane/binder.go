package controlplane

import (
	"context"
	"io"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"
)

// binder stands in for kube-scheduler, which would cost one more process of 70 MB
// and one more second. It binds each Pod of the default scheduler to the next node,
// whether it fits there or not.
type binder struct {
	client kubernetes.Interface
	nodes  []string
	next   int
	log    io.Writer
}

// run binds Pods until ctx ends.
func (b *binder) run(ctx context.Context) {
	// While kube-apiserver is stopped, the informer logs errors. They belong in the
	// log of the processes, not on the test's standard error.
	ctx = klog.NewContext(ctx, textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(b.log))))
	unbound := cache.NewListWatchFromClient(b.client.CoreV1().RESTClient(), "pods", metav1.NamespaceAll,
		fields.OneTermEqualSelector("spec.nodeName", ""))
	_, controller := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: unbound,
		ObjectType:    &corev1.Pod{},
		// A Pod that could not be bound stays in the informer's store, so every resync
		// tries again.
		ResyncPeriod: time.Second,
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc:    func(object any) { b.bind(ctx, object) },
			UpdateFunc: func(_, object any) { b.bind(ctx, object) },
		},
	})
	controller.RunWithContext(ctx)
}

func (b *binder) bind(ctx context.Context, object any) {
	pod, ok := object.(*corev1.Pod)
	if !ok || pod.DeletionTimestamp != nil || pod.Status.Phase != corev1.PodPending ||
		pod.Spec.SchedulerName != corev1.DefaultSchedulerName || len(pod.Spec.SchedulingGates) > 0 {
		return
	}
	node := daemonNode(pod)
	if node == "" {
		node = b.nodes[b.next%len(b.nodes)]
		b.next++
	}
	binding := &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
		Target:     corev1.ObjectReference{Kind: "Node", Name: node},
	}
	if err := b.client.CoreV1().Pods(pod.Namespace).Bind(ctx, binding, metav1.CreateOptions{}); err != nil {
		klog.FromContext(ctx).Error(err, "Failed to bind the Pod", "pod", klog.KObj(pod), "node", node)
	}
}

// daemonNode returns the node that a DaemonSet's Pod is for: the DaemonSet
// controller sets a node affinity for metadata.name. For other Pods, it returns "".
func daemonNode(pod *corev1.Pod) string {
	affinity := pod.Spec.Affinity
	if affinity == nil || affinity.NodeAffinity == nil || affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return ""
	}
	for _, term := range affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		for _, field := range term.MatchFields {
			if field.Key == metav1.ObjectNameField && len(field.Values) == 1 {
				return field.Values[0]
			}
		}
	}
	return ""
}
