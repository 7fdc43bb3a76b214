package workload

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

// place notes where Pods run. It refuses what could be seen only when a Pod cannot be created: the
// API server checks the rest of it then, and the run says so.
func (p *Plan) place(pod *v1alpha1.SandboxPod) error {
	if pod == nil {
		return nil
	}
	for i, secret := range pod.ImagePullSecrets {
		if secret.Name == "" {
			return fmt.Errorf("pod.imagePullSecrets[%d].name: must be set", i)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(pod.Devices)) {
		domain, _, extended := strings.Cut(name, "/")
		if len(validation.IsQualifiedName(name)) > 0 || !extended || strings.HasSuffix(domain, "kubernetes.io") {
			return fmt.Errorf("pod.devices: %.80q is not the name of an extended resource, such as nvidia.com/gpu", name)
		}
		if pod.Devices[name] < 1 {
			return fmt.Errorf("pod.devices[%s]: %d: must be at least 1", name, pod.Devices[name])
		}
	}
	p.pod = *pod.DeepCopy()
	return nil
}

// placed has a Pod run there. Its first container is that of the work.
func (p *Plan) placed(pod *corev1.PodSpec) {
	of := p.pod.DeepCopy()
	if of.RuntimeClassName != "" {
		pod.RuntimeClassName = &of.RuntimeClassName
	}
	pod.NodeSelector, pod.Tolerations, pod.Affinity, pod.TopologySpreadConstraints = of.NodeSelector, of.Tolerations, of.Affinity, of.TopologySpreadConstraints
	pod.PriorityClassName, pod.ImagePullSecrets, pod.ResourceClaims = of.PriorityClassName, of.ImagePullSecrets, of.ResourceClaims
	resources := &pod.Containers[0].Resources
	for _, claim := range of.ResourceClaims {
		resources.Claims = append(resources.Claims, corev1.ResourceClaim{Name: claim.Name})
	}
	if len(of.Devices) == 0 {
		return
	}
	resources.Limits = resources.Limits.DeepCopy()
	for name, count := range of.Devices {
		resources.Limits[corev1.ResourceName(name)] = *resource.NewQuantity(count, resource.DecimalSI)
	}
	resources.Requests = resources.Limits.DeepCopy()
}
