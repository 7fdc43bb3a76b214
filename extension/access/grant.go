package access

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/api/v1alpha1"
)

// newRole returns the Role of a grant. It is also the record of the choice: its
// rules and annotations say which Pod was chosen, to whom access is granted and
// what is to happen at the end, so that no later change of the template matters.
// The request owns it.
func newRole(k kind, req v1alpha1.Request, config *v1alpha1.AccessConfig, pod *corev1.Pod) (*rbacv1.Role, error) {
	subjects, err := json.Marshal(subjectsOf(config, req.GetRequestSpec().Requester))
	if err != nil {
		return nil, err
	}
	role := &rbacv1.Role{ObjectMeta: k.meta(req), Rules: rules(config.Verbs, pod.Name)}
	role.OwnerReferences = []metav1.OwnerReference{k.ownedBy(req)}
	role.Annotations[AnnotationPodUID] = string(pod.UID)
	role.Annotations[AnnotationSubjects] = string(subjects)
	if config.OnExpiry == v1alpha1.ExpiryEvict && k.name == execAccess.name {
		role.Annotations[AnnotationOnExpiry] = string(v1alpha1.ExpiryEvict)
	}
	return role, nil
}

// newBinding returns the RoleBinding of a grant: it is what access stands and
// falls with. The Pod owns it, so that the garbage collector removes it with the
// Pod, and another Pod of the same name, as StatefulSets make them, is not
// accessible.
func newBinding(k kind, req v1alpha1.Request, role *rbacv1.Role) (*rbacv1.RoleBinding, error) {
	binding := &rbacv1.RoleBinding{
		ObjectMeta: k.meta(req),
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: role.Name},
	}
	if err := json.Unmarshal([]byte(role.Annotations[AnnotationSubjects]), &binding.Subjects); err != nil {
		return nil, fmt.Errorf("Role %s/%s: annotation %s: %w", role.Namespace, role.Name, AnnotationSubjects, err)
	}
	pod := chosenPod(role)
	binding.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: pod.name, UID: pod.uid}}
	return binding, nil
}

// choice is the Pod that a grant is about.
type choice struct {
	name string
	uid  types.UID
}

// chosenPod reads the choice from its record.
func chosenPod(role *rbacv1.Role) choice {
	for _, rule := range role.Rules {
		if len(rule.ResourceNames) > 0 {
			return choice{name: rule.ResourceNames[0], uid: types.UID(role.Annotations[AnnotationPodUID])}
		}
	}
	return choice{}
}

// rules allow the verbs on one Pod, and to get it, without which kubectl does
// nothing. A stream is opened by a POST (create), or by a GET when the client
// speaks WebSocket.
func rules(verbs []v1alpha1.AccessVerb, pod string) []rbacv1.PolicyRule {
	if len(verbs) == 0 {
		verbs = []v1alpha1.AccessVerb{v1alpha1.VerbExec, v1alpha1.VerbLog}
	}
	rule := func(resource string, verbs ...string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{resource}, ResourceNames: []string{pod}, Verbs: verbs}
	}
	result := []rbacv1.PolicyRule{rule("pods", "get")}
	for _, verb := range slices.Compact(slices.Sorted(slices.Values(verbs))) {
		switch verb {
		case v1alpha1.VerbExec, v1alpha1.VerbAttach, v1alpha1.VerbPortForward:
			result = append(result, rule("pods/"+string(verb), "create", "get"))
		case v1alpha1.VerbLog:
			result = append(result, rule("pods/log", "get"))
		case v1alpha1.VerbEphemeralContainers:
			result = append(result, rule("pods/ephemeralcontainers", "get", "patch", "update"))
		}
	}
	return result
}

// subjectsOf says to whom access is granted.
func subjectsOf(config *v1alpha1.AccessConfig, requester *v1alpha1.Requester) []rbacv1.Subject {
	subject := func(kind, name string) rbacv1.Subject {
		return rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: kind, Name: name}
	}
	if config.Subjects != v1alpha1.SubjectsGroups {
		return []rbacv1.Subject{subject(rbacv1.UserKind, requester.Username)}
	}
	var subjects []rbacv1.Subject
	for _, group := range config.AllowedGroups {
		subjects = append(subjects, subject(rbacv1.GroupKind, group))
	}
	for _, user := range config.AllowedUsers {
		subjects = append(subjects, subject(rbacv1.UserKind, user))
	}
	return subjects
}

// createRole creates a Role, or returns the one that an earlier run made.
func (a *Access) createRole(ctx context.Context, role *rbacv1.Role) (*rbacv1.Role, error) {
	err := a.writer.Create(ctx, role)
	if !apierrors.IsAlreadyExists(err) {
		return role, err
	}
	var existing rbacv1.Role
	if err := a.live.Get(ctx, client.ObjectKeyFromObject(role), &existing); err != nil {
		return nil, err
	}
	if existing.Annotations[AnnotationRequestUID] != role.Annotations[AnnotationRequestUID] {
		return nil, fmt.Errorf("Role %s/%s exists and belongs to something else", role.Namespace, role.Name)
	}
	return &existing, nil
}

// createBinding creates a RoleBinding, or makes sure that one that exists says
// the same.
func (a *Access) createBinding(ctx context.Context, binding *rbacv1.RoleBinding) error {
	err := a.writer.Create(ctx, binding)
	if !apierrors.IsAlreadyExists(err) {
		return err
	}
	var existing rbacv1.RoleBinding
	if err := a.live.Get(ctx, client.ObjectKeyFromObject(binding), &existing); err != nil {
		return err
	}
	if existing.RoleRef != binding.RoleRef || !apiequality.Semantic.DeepEqual(existing.Subjects, binding.Subjects) {
		return fmt.Errorf("RoleBinding %s/%s exists and says something else", binding.Namespace, binding.Name)
	}
	return nil
}

// indexPod finds the Roles of the grants that are about a Pod.
const indexPod = "pod"

func (a *Access) indexRoles(ctx context.Context) error {
	return a.cluster.GetFieldIndexer().IndexField(ctx, &rbacv1.Role{}, indexPod, func(obj client.Object) []string {
		return []string{chosenPod(obj.(*rbacv1.Role)).name}
	})
}
