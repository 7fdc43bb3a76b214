package rules

import (
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/admitkit/admitkit/operator/access/internal/grant"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/egress"
)

// FitsEgress says why a template cannot have its egress.
func FitsEgress(options *egress.Options, t *v1alpha1.PodAccessTemplate, made *corev1.Pod) error {
	if t.Spec.Egress == nil {
		return nil
	}
	if options.Mode == egress.ModeNone {
		return errors.New("spec.egress: nobody has said whether network policies are enforced here, and so nothing would hold it: let the operator set --access-network-policy, or leave spec.egress out")
	}
	err := egress.Check(t.Spec.Egress, options)
	if err == nil && made != nil {
		err = FitsPolicy(made, PodMeta(t).Labels)
	}
	if err != nil {
		return fmt.Errorf("spec.egress: %w", err)
	}
	return nil
}

// FitsPolicy says why no policy can hold a Pod, or others could reach it: own are the labels that the extension gives it.
func FitsPolicy(pod *corev1.Pod, own map[string]string) error {
	if pod.Spec.HostNetwork {
		return errors.New("hostNetwork: no network policy holds a Pod on the host's network; leave hostNetwork or spec.egress out")
	}
	for key := range pod.Labels {
		if _, ours := own[key]; !ours && !egress.IsOfTopology(key) {
			return fmt.Errorf("the label %s: by labels policies of others could select the Pod and allow it more; leave podLabels or spec.egress out", key)
		}
	}
	return nil
}

// PodMeta is the metadata of an access Pod of a template, as far as it is the same for every
// request.
func PodMeta(t *v1alpha1.PodAccessTemplate) metav1.ObjectMeta {
	meta := grant.PodAccess.Meta(&v1alpha1.PodAccessRequest{})
	if t.Spec.Egress != nil {
		meta.Labels[v1alpha1.LabelEgress] = ""
	}
	return meta
}

// LabelsOfHeld are the labels of a Pod that a policy holds, as [egress.Widens] wants them.
func LabelsOfHeld() map[string]string {
	return map[string]string{grant.LabelManagedBy: grant.ManagedBy, grant.LabelRequest: ""}
}

// AccessPods are the Pods that policies of others must not select.
const AccessPods = "access Pods"
