package v1alpha1

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/types"
)

// A grant is recorded in a Role, which engineers cannot write, unlike their requests.
// Its name is made of the request's, its rules name the Pod, and its annotations say
// the rest.
const (
	// LabelManagedBy, with the value ManagedByAccess, is on every record.
	LabelManagedBy  = "app.kubernetes.io/managed-by"
	ManagedByAccess = "admitkit-access"

	// LabelPodUID, on a record, has the UID of its Pod: the records about one Pod are
	// found among those of a namespace.
	LabelPodUID = "admitkit.dev/pod-uid"

	// AnnotationRequestUID has the UID of the request.
	AnnotationRequestUID = "admitkit.dev/request-uid"
	// AnnotationPodUID has the UID of the Pod that was chosen or made.
	AnnotationPodUID = "admitkit.dev/pod-uid"
	// AnnotationSubjects has to whom access is granted, as JSON.
	AnnotationSubjects = "admitkit.dev/subjects"

	// AnnotationOnExpiry has the [ExpiryAction], if it is not Keep.
	AnnotationOnExpiry = "admitkit.dev/on-expiry"
	// AnnotationIdleTimeout and AnnotationMaxLength have the [SessionLimits], if there are any.
	AnnotationIdleTimeout = "admitkit.dev/session-idle-timeout"
	AnnotationMaxLength   = "admitkit.dev/session-max-length"

	// PodAccessPrefix, ExecAccessPrefix and RoleAccessPrefix begin the names of what a
	// request of each kind gets: Role, RoleBinding and access Pod.
	PodAccessPrefix  = "podaccess-"
	ExecAccessPrefix = "execaccess-"
	RoleAccessPrefix = "roleaccess-"
)

// Grant is what the record of a grant says. Only the request says whether it is
// live: the request exists, and its access is not over ([Over]).
//
// +kubebuilder:object:generate=false
type Grant struct {
	// Kind is the request's: PodAccessRequest or ExecAccessRequest.
	Kind string
	// Request is the request's name, in the namespace of the record.
	Request    types.NamespacedName
	RequestUID types.UID
	// PodName and PodUID identify the one Pod that it is about.
	PodName string
	PodUID  types.UID
	// Verbs are what may be done with the Pod.
	Verbs []AccessVerb
	// Subjects are those who may.
	Subjects []rbacv1.Subject
	// EndsSessions says that sessions end with access.
	EndsSessions bool
	// IdleTimeout and MaxLength limit sessions. 0 is for no limit.
	IdleTimeout, MaxLength time.Duration
}

// GrantOf reads a record. A Role that is not one is an error.
func GrantOf(role *rbacv1.Role) (*Grant, error) {
	g := &Grant{
		RequestUID: types.UID(role.Annotations[AnnotationRequestUID]),
		PodUID:     types.UID(role.Annotations[AnnotationPodUID]),
	}
	g.Request.Namespace = role.Namespace
	if name, found := strings.CutPrefix(role.Name, PodAccessPrefix); found {
		g.Kind, g.Request.Name = "PodAccessRequest", name
	} else if name, found := strings.CutPrefix(role.Name, ExecAccessPrefix); found {
		g.Kind, g.Request.Name = "ExecAccessRequest", name
	}
	if g.Request.Name == "" || g.RequestUID == "" || g.PodUID == "" {
		return nil, fmt.Errorf("Role %s/%s is not the record of a grant", role.Namespace, role.Name)
	}
	for _, rule := range role.Rules {
		if len(rule.ResourceNames) != 1 || g.PodName != "" && rule.ResourceNames[0] != g.PodName {
			return nil, fmt.Errorf("Role %s/%s does not name one Pod", role.Namespace, role.Name)
		}
		g.PodName = rule.ResourceNames[0]
		for _, resource := range rule.Resources {
			if verb, found := strings.CutPrefix(resource, "pods/"); found {
				g.Verbs = append(g.Verbs, AccessVerb(verb))
			}
		}
	}
	if err := json.Unmarshal([]byte(role.Annotations[AnnotationSubjects]), &g.Subjects); err != nil {
		return nil, fmt.Errorf("Role %s/%s: annotation %s: %w", role.Namespace, role.Name, AnnotationSubjects, err)
	}
	if g.PodName == "" {
		return nil, errors.New("Role " + role.Namespace + "/" + role.Name + " does not name a Pod")
	}
	if err := g.readLimits(role); err != nil {
		return nil, err
	}
	return g, nil
}

// readLimits reads when sessions end.
func (g *Grant) readLimits(role *rbacv1.Role) error {
	g.EndsSessions = role.Annotations[AnnotationOnExpiry] == string(ExpiryEndSession)
	for annotation, limit := range map[string]*time.Duration{AnnotationIdleTimeout: &g.IdleTimeout, AnnotationMaxLength: &g.MaxLength} {
		text := role.Annotations[annotation]
		if text == "" {
			continue
		}
		d, err := time.ParseDuration(text)
		if err != nil || d <= 0 {
			return fmt.Errorf("Role %s/%s: annotation %s: %q is not a duration such as 15m", role.Namespace, role.Name, annotation, text)
		}
		*limit = d
	}
	return nil
}

// Concerns reports whether a user is one of the subjects.
func (g *Grant) Concerns(username string, groups []string) bool {
	return Concerns(g.Subjects, username, groups)
}

// Concerns reports whether a user, with these groups, is one of the subjects.
func Concerns(subjects []rbacv1.Subject, username string, groups []string) bool {
	return slices.ContainsFunc(subjects, func(s rbacv1.Subject) bool {
		return s.Kind == rbacv1.UserKind && s.Name == username ||
			s.Kind == rbacv1.GroupKind && slices.Contains(groups, s.Name)
	})
}

// Ours returns the labels or annotations that only admitkit writes, nil if there are none.
func Ours(entries map[string]string) (found map[string]string) {
	for key, value := range entries {
		if key == LabelManagedBy || strings.HasPrefix(key, GroupVersion.Group+"/") {
			if found == nil {
				found = map[string]string{}
			}
			found[key] = value
		}
	}
	return found
}
