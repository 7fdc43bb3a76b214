package grant

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

// NewRole returns the Role of a grant. It is also the record of the choice: its
// rules and annotations say which Pod was chosen, to whom access is granted and
// what happens at the end, so that no later change of the template matters. The
// request owns it. Of a grant of a role it is the record alone, and allows nothing.
func NewRole(k Kind, req v1alpha1.Request, config *v1alpha1.AccessConfig, to Choice) (*rbacv1.Role, error) {
	subjects, err := json.Marshal(subjectsOf(config, req.GetRequestSpec()))
	if err != nil {
		return nil, err
	}
	role := &rbacv1.Role{ObjectMeta: k.Meta(req)}
	role.OwnerReferences = []metav1.OwnerReference{k.OwnedBy(req)}
	role.Annotations[AnnotationSubjects] = string(subjects)
	if k.GivesRole {
		role.Annotations[annotationRole], role.Annotations[annotationRoleUID] = to.Role+"/"+to.Name, string(to.UID)
		return role, nil
	}
	role.Rules = rules(config.Verbs, to.Name)
	role.Labels[v1alpha1.LabelPodUID] = string(to.UID)
	role.Annotations[AnnotationPodUID] = string(to.UID)
	if config.OnExpiry != "" && config.OnExpiry != v1alpha1.ExpiryKeep && !k.MakesPod {
		role.Annotations[AnnotationOnExpiry] = string(config.OnExpiry)
	}
	if limits := config.Session; limits != nil {
		for annotation, limit := range map[string]string{v1alpha1.AnnotationIdleTimeout: limits.IdleTimeout, v1alpha1.AnnotationMaxLength: limits.MaxLength} {
			if limit != "" {
				role.Annotations[annotation] = limit
			}
		}
	}
	return role, nil
}

// NewBinding returns the RoleBinding of a grant, with which access begins and ends.
// The Pod owns it, so that the garbage collector removes it with the Pod, and the
// next Pod of the same name, as StatefulSets make them, is not accessible. One to a role
// that was not made for the request is owned by the request.
func NewBinding(k Kind, req v1alpha1.Request, role *rbacv1.Role) (*rbacv1.RoleBinding, error) {
	binding := &rbacv1.RoleBinding{
		ObjectMeta: k.Meta(req),
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: role.Name},
	}
	var err error
	if binding.Subjects, err = RecordedSubjects(role); err != nil {
		return nil, err
	}
	to := ChoiceOf(role)
	if k.GivesRole {
		binding.RoleRef.Kind, binding.RoleRef.Name = to.Role, to.Name
		binding.OwnerReferences = []metav1.OwnerReference{k.OwnedBy(req)}
		return binding, nil
	}
	binding.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: to.Name, UID: to.UID}}
	return binding, nil
}

// RecordedSubjects returns to whom a record says that access is granted.
func RecordedSubjects(role *rbacv1.Role) (subjects []rbacv1.Subject, err error) {
	if err := json.Unmarshal([]byte(role.Annotations[AnnotationSubjects]), &subjects); err != nil {
		return nil, fmt.Errorf("Role %s/%s: annotation %s: %w", role.Namespace, role.Name, AnnotationSubjects, err)
	}
	return subjects, nil
}

// IsSameGrant reports whether two RoleBindings give the same to the same.
func IsSameGrant(x, y *rbacv1.RoleBinding) bool {
	return x.RoleRef == y.RoleRef && apiequality.Semantic.DeepEqual(x.Subjects, y.Subjects)
}

// Choice is what a grant is about: a Pod, or a role.
type Choice struct {
	// Role is the kind of the role, "" for a Pod.
	Role string
	Name string
	UID  types.UID
}

// String names the choice for people.
func (c Choice) String() string {
	if c.Role != "" {
		return c.Role + " " + c.Name
	}
	return "Pod " + c.Name
}

// ChoiceOf reads the choice from its record.
func ChoiceOf(record *rbacv1.Role) Choice {
	if kind, name, found := strings.Cut(record.Annotations[annotationRole], "/"); found {
		return Choice{Role: kind, Name: name, UID: types.UID(record.Annotations[annotationRoleUID])}
	}
	for _, rule := range record.Rules {
		if len(rule.ResourceNames) > 0 {
			return Choice{Name: rule.ResourceNames[0], UID: types.UID(record.Annotations[AnnotationPodUID])}
		}
	}
	return Choice{}
}

// ChosenIn returns the choice that a status says.
func ChosenIn(status *v1alpha1.RequestStatus) Choice {
	switch {
	case status.GrantedRole != nil:
		return Choice{Role: status.GrantedRole.Kind, Name: status.GrantedRole.Name, UID: types.UID(status.GrantedRole.UID)}
	case status.PodUID != "":
		return Choice{Name: status.PodName, UID: types.UID(status.PodUID)}
	}
	return Choice{}
}

// rules allow the verbs on one Pod, and to get it, which kubectl needs for each, and to
// list and watch it by its name, as kubectl debug, wait and get -w do. A
// stream is opened by a POST (create), or by a GET when the client speaks WebSocket.
func rules(verbs []v1alpha1.AccessVerb, pod string) []rbacv1.PolicyRule {
	if len(verbs) == 0 {
		verbs = []v1alpha1.AccessVerb{v1alpha1.VerbExec, v1alpha1.VerbLog}
	}
	rule := func(resource string, verbs ...string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{resource}, ResourceNames: []string{pod}, Verbs: verbs}
	}
	result := []rbacv1.PolicyRule{rule("pods", "get", "list", "watch")}
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
func subjectsOf(config *v1alpha1.AccessConfig, spec *v1alpha1.RequestSpec) []rbacv1.Subject {
	subject := func(kind, name string) rbacv1.Subject {
		return rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: kind, Name: name}
	}
	if config.Subjects != v1alpha1.SubjectsGroups || spec.OnBehalfOf != "" {
		return []rbacv1.Subject{subject(rbacv1.UserKind, spec.Grantee())}
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
