package session

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/operator/session/internal/recorded"
)

var (
	_ extension.Entitled          = (*shared)(nil)
	_ extension.NamespaceEntitled = (*shared)(nil)
	_ extension.ClusterEntitled   = (*shared)(nil)
	_ extension.Equipped          = (*shared)(nil)
)

// inPods are the rights where sessions are recorded.
func (s *shared) inPods() []rbacv1.PolicyRule {
	rules := []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"get"}}}
	if s.options.Unrecorded == Open {
		rules = append(rules, rbacv1.PolicyRule{APIGroups: []string{"events.k8s.io"}, Resources: []string{"events"}, Verbs: []string{"create"}})
	}
	if s.options.API { // which of the namespaces that have had this name it is
		rules = append(rules, getNamespaces)
	}
	if s.options.Evict {
		rules = append(rules, rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"pods/eviction"}, Verbs: []string{"create"}})
	}
	return rules
}

// Rights implements [extension.Entitled].
func (s *shared) Rights() []rbacv1.PolicyRule {
	if s.everywhere() {
		return nil
	}
	return s.inPods()
}

// everywhere reports whether a selector leaves open in which namespaces sessions are
// recorded.
func (s *shared) everywhere() bool {
	selector := s.options.NamespaceSelector
	return selector != nil && !slices.ContainsFunc(selector.MatchExpressions, func(r metav1.LabelSelectorRequirement) bool {
		return r.Key == corev1.LabelMetadataName && r.Operator == metav1.LabelSelectorOpIn
	})
}

// NamespaceRights implements [extension.NamespaceEntitled]: the address of the Service goes
// into tickets.
func (s *shared) NamespaceRights() map[string][]rbacv1.PolicyRule {
	if !s.options.collects() || len(s.options.Collectors) > 0 {
		return s.apiNamespaceRights(nil)
	}
	return s.apiNamespaceRights(map[string][]rbacv1.PolicyRule{s.namespace: {
		{APIGroups: []string{""}, Resources: []string{"services"}, ResourceNames: []string{s.options.ServiceName}, Verbs: []string{"get"}},
	}})
}

// ClusterRights implements [extension.ClusterEntitled].
func (s *shared) ClusterRights() []rbacv1.PolicyRule {
	var rules []rbacv1.PolicyRule
	if s.everywhere() {
		rules = s.inPods()
	}
	if !s.options.WithoutNodeProxy {
		rules = append(rules, s.options.namespaceRights()...)
	}
	if !s.options.collects() {
		return rules
	}
	rules = append(rules, rbacv1.PolicyRule{APIGroups: []string{"authentication.k8s.io"}, Resources: []string{"tokenreviews"}, Verbs: []string{"create"}})
	if s.options.AuditObjects {
		rules = append(rules, rbacv1.PolicyRule{APIGroups: []string{"admitkit.dev"}, Resources: []string{"auditevents/status"}, Verbs: []string{"patch"}})
	}
	return append(rules, s.apiClusterRights()...)
}

// Equip implements [extension.Equipped].
func (s *shared) Equip(pod *corev1.PodSpec) {
	o := &s.options
	container := &pod.Containers[0]
	add := func(volume corev1.Volume, mount corev1.VolumeMount) {
		if !slices.ContainsFunc(pod.Volumes, func(v corev1.Volume) bool { return v.Name == volume.Name }) {
			pod.Volumes = append(pod.Volumes, volume)
			mount.Name = volume.Name
			container.VolumeMounts = append(container.VolumeMounts, mount)
		}
	}
	add(corev1.Volume{Name: "session-key", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: o.KeySecret}}},
		corev1.VolumeMount{MountPath: o.KeyFolder, ReadOnly: true})
	if !o.collects() {
		return
	}
	if pod.SecurityContext == nil {
		pod.SecurityContext = &corev1.PodSecurityContext{}
	}
	if pod.SecurityContext.FSGroup == nil {
		pod.SecurityContext.FSGroup = new(int64(recorded.AnyUser)) // the image's, which is to write there
	}
	for _, variable := range o.StorageEnv {
		if !slices.ContainsFunc(container.Env, func(v corev1.EnvVar) bool { return v.Name == variable.Name }) {
			container.Env = append(container.Env, variable)
		}
	}
	if o.Folder != "" {
		recordings := corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}
		if o.Claim != "" {
			recordings = corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: o.Claim}}
		}
		add(corev1.Volume{Name: "sessions", VolumeSource: recordings}, corev1.VolumeMount{MountPath: o.Folder})
	}
	if !slices.ContainsFunc(container.Ports, func(p corev1.ContainerPort) bool { return p.Name == portName }) {
		container.Ports = append(container.Ports, corev1.ContainerPort{Name: portName, ContainerPort: o.Port})
	}
}
