package session

import (
	"context"
	"fmt"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/operator/internal/kubelet"
)

// nodes decides about sessions that a kubelet opens through nodes/proxy, past the recorder.
// A selector of namespaces does not hold for nodes, so it finds the namespace in the path.
type nodes struct{ *shared }

var (
	_ extension.Validator[*corev1.NodeProxyOptions] = (*nodes)(nil)
	_ extension.Witness                             = (*nodes)(nil)
)

// scope leaves out the paths that open no session, so that metrics are scraped while no
// replica runs.
func (n *nodes) scope() extension.Scope {
	scope := n.options.scope("sessions-nodes", "nodes/proxy")
	scope.MatchConditions = []admissionregistrationv1.MatchCondition{{
		Name: "may-open-a-session", Expression: fmt.Sprintf("has(object.path) && !object.path.matches(r'%s')", kubelet.HarmlessPath),
	}}
	scope.SideEffects = new(admissionregistrationv1.SideEffectClassNoneOnDryRun) // an Event
	return scope
}

// Unseen implements [extension.Witness].
func (*nodes) Unseen(context.Context, *extension.Request, string) {}

// Validate lets through what leads into Pods whose sessions are not recorded anyway.
func (n *nodes) Validate(ctx context.Context, options *corev1.NodeProxyOptions, req *extension.Request) error {
	if kubelet.IsHarmless(options.Path) {
		return nil
	}
	path, _ := kubelet.SessionOf(options.Path)
	if len(validation.IsDNS1123Label(path.Namespace)) > 0 || len(validation.IsDNS1123Subdomain(path.Pod)) > 0 {
		return n.unrecorded(ctx, req, objectOf(req), "node-proxy", "this path of the kubelet may lead into a Pod, past the recorder. Use kubectl exec")
	}
	recorded, err := n.options.recordsIn(ctx, n.watched, path.Namespace, n.labels)
	if apierrors.IsNotFound(err) {
		recorded, err = true, nil // the kubelet may read the path differently
	}
	if err != nil || !recorded {
		return err
	}
	pod := corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: path.Namespace, Name: path.Pod}
	return n.unrecorded(ctx, req, pod, "node-proxy", "this path of the kubelet leads into Pod "+path.Namespace+"/"+path.Pod+", past the recorder. Use kubectl exec")
}

// labels returns those of a namespace.
func (n *nodes) labels(ctx context.Context, namespace string) (map[string]string, error) {
	ctx, cancel := context.WithTimeout(ctx, readTime)
	defer cancel()
	found, err := n.core.Namespaces().Get(ctx, namespace, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("reading Namespace %s: %w", namespace, err)
	}
	return found.Labels, nil
}
