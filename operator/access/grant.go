package access

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

// grant gives a request what it lacks: the access Pod and the Role, then the
// RoleBinding, and completes what the status says. What the API server refuses is
// not an error, but becomes a refusal in the status.
func (r *requests) grant(ctx context.Context, f *facts, d *decision) error {
	err := r.give(ctx, f, d)
	if refused, ok := errors.AsType[*refusal](err); ok {
		d.status.refused(refused)
		d.waits = refused.waits
		return nil
	}
	return err
}

func (r *requests) give(ctx context.Context, f *facts, d *decision) error {
	role := f.role
	if role == nil {
		made, pod, err := r.record(ctx, f, d.grant)
		d.status.Egress = f.request.GetRequestStatus().Egress // from now on it stays
		if err != nil {
			return err
		}
		role = made
		d.status.granted(role.Annotations[annotationMessage])
		d.status.observed(f.kind, pod)
		d.status.held(f, f.hold)
	}
	if r.options.Clock.Now().After(f.end) {
		d.status = nil
		return nil
	}
	d.status.choose(choiceOf(role))
	if err := r.settle(ctx, f, choiceOf(role)); err != nil {
		return fmt.Errorf("writing what was chosen into the status: %w", err)
	}
	binding, err := newBinding(r.kind, f.request, role)
	if err != nil {
		return err
	}
	if err := r.tellOnce(ctx, f.granted(choiceOf(role))); err != nil {
		return err
	}
	if err := r.createBinding(ctx, binding); err != nil {
		return fmt.Errorf("creating RoleBinding %s/%s: %w", binding.Namespace, binding.Name, err)
	}
	d.live = true
	d.status.grantedAt(binding.CreationTimestamp)
	return nil
}

// settle writes what was chosen into the status before there is access to it.
// Anybody may delete the Role, but that must not lead to another Pod or role.
func (r *requests) settle(ctx context.Context, f *facts, to choice) error {
	if f.settled() != (choice{}) {
		return nil
	}
	s := newState(f.request, f.end)
	s.choose(to)
	return r.patchStatus(ctx, f.request, s)
}

// record makes the access Pod, or finds the one that an earlier attempt made, and
// records the Pod in the Role. The access command is that for the Pod as the API
// server made it.
func (r *requests) record(ctx context.Context, f *facts, g *grant) (*rbacv1.Role, *corev1.Pod, error) {
	if f.kind.givesRole {
		role, err := r.recordChoice(ctx, f, g, g.role, fmt.Sprintf("kubectl auth can-i --list -n %s", f.key.Namespace))
		return role, nil, err
	}
	pod := g.pod
	if f.kind.makesPod {
		var err error
		if err = r.holdFirst(ctx, f); err != nil {
			return nil, nil, err
		}
		if pod, err = r.createPod(ctx, f, pod); err != nil {
			return nil, nil, err
		}
		if err = r.heldPod(ctx, f, pod); err != nil {
			return nil, nil, err
		}
	}
	message, refused := commandFor(g.template, &pod.ObjectMeta)
	if refused != nil {
		if f.kind.makesPod {
			if err := r.deletePod(ctx, f, choice{name: pod.Name, uid: pod.UID}); err != nil {
				return nil, nil, err
			}
		}
		return nil, nil, refused
	}
	role, err := r.recordChoice(ctx, f, g, choice{name: pod.Name, uid: pod.UID}, message)
	return role, pod, err
}

// recordChoice records in the Role what was chosen, and by which command it is used.
func (r *requests) recordChoice(ctx context.Context, f *facts, g *grant, to choice, message string) (*rbacv1.Role, error) {
	role, err := newRole(r.kind, f.request, g.template.GetAccessConfig(), to)
	if err != nil {
		return nil, err
	}
	role.Annotations[annotationMessage], role.Annotations[annotationTemplateUID] = message, string(g.template.GetUID())
	if role, err = r.createRole(ctx, role); err != nil {
		return nil, fmt.Errorf("creating Role: %w", err)
	}
	return role, nil
}

// createPod creates an access Pod, or returns the one that an earlier attempt made: a
// request gets one Pod. Nobody else can have made one that the request owns; see
// [recordGuard].
func (r *requests) createPod(ctx context.Context, f *facts, pod *corev1.Pod) (*corev1.Pod, error) {
	if f.settled() != (choice{}) {
		return r.madePod(ctx, f)
	}
	err := r.writer.Create(ctx, pod)
	switch {
	case apierrors.IsAlreadyExists(err):
		return r.madePod(ctx, f)
	case apierrors.IsInvalid(err), apierrors.IsForbidden(err), apierrors.IsBadRequest(err):
		return nil, refuse(v1alpha1.ReasonPodRefused, "the API server refuses the access Pod: %v", err).forNow()
	}
	return pod, err
}

// madePod returns the access Pod that an earlier attempt made.
func (r *requests) madePod(ctx context.Context, f *facts) (*corev1.Pod, error) {
	key, settled := f.kind.resource(f.key), f.settled()
	pod, err := get(ctx, r.live, key, &corev1.Pod{})
	switch {
	case err != nil:
		return nil, err
	case settled != choice{} && pod == nil:
		return nil, lostPod(key.Name, podGone)
	case settled != choice{} && pod.UID != settled.uid:
		return nil, lostPod(key.Name, podReplaced)
	case pod == nil || !f.kind.owns(pod, f.request.GetUID()):
		return nil, refuse(v1alpha1.ReasonNameTaken, "Pod %s exists and does not belong to this request", key).forNow()
	}
	return pod, nil
}

// newRole returns the Role of a grant. It is also the record of the choice: its
// rules and annotations say which Pod was chosen, to whom access is granted and
// what happens at the end, so that no later change of the template matters. The
// request owns it. Of a grant of a role it is the record alone, and allows nothing.
func newRole(k kind, req v1alpha1.Request, config *v1alpha1.AccessConfig, to choice) (*rbacv1.Role, error) {
	subjects, err := json.Marshal(subjectsOf(config, req.GetRequestSpec()))
	if err != nil {
		return nil, err
	}
	role := &rbacv1.Role{ObjectMeta: k.meta(req)}
	role.OwnerReferences = []metav1.OwnerReference{k.ownedBy(req)}
	role.Annotations[AnnotationSubjects] = string(subjects)
	if k.givesRole {
		role.Annotations[annotationRole], role.Annotations[annotationRoleUID] = to.role+"/"+to.name, string(to.uid)
		return role, nil
	}
	role.Rules = rules(config.Verbs, to.name)
	role.Labels[v1alpha1.LabelPodUID] = string(to.uid)
	role.Annotations[AnnotationPodUID] = string(to.uid)
	if config.OnExpiry != "" && config.OnExpiry != v1alpha1.ExpiryKeep && !k.makesPod {
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

// newBinding returns the RoleBinding of a grant, with which access begins and ends.
// The Pod owns it, so that the garbage collector removes it with the Pod, and the
// next Pod of the same name, as StatefulSets make them, is not accessible. One to a role
// that was not made for the request is owned by the request.
func newBinding(k kind, req v1alpha1.Request, role *rbacv1.Role) (*rbacv1.RoleBinding, error) {
	binding := &rbacv1.RoleBinding{
		ObjectMeta: k.meta(req),
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: role.Name},
	}
	var err error
	if binding.Subjects, err = recordedSubjects(role); err != nil {
		return nil, err
	}
	to := choiceOf(role)
	if k.givesRole {
		binding.RoleRef.Kind, binding.RoleRef.Name = to.role, to.name
		binding.OwnerReferences = []metav1.OwnerReference{k.ownedBy(req)}
		return binding, nil
	}
	binding.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: to.name, UID: to.uid}}
	return binding, nil
}

// recordedSubjects returns to whom a record says that access is granted.
func recordedSubjects(role *rbacv1.Role) (subjects []rbacv1.Subject, err error) {
	if err := json.Unmarshal([]byte(role.Annotations[AnnotationSubjects]), &subjects); err != nil {
		return nil, fmt.Errorf("Role %s/%s: annotation %s: %w", role.Namespace, role.Name, AnnotationSubjects, err)
	}
	return subjects, nil
}

// isSameGrant reports whether two RoleBindings give the same to the same.
func isSameGrant(x, y *rbacv1.RoleBinding) bool {
	return x.RoleRef == y.RoleRef && apiequality.Semantic.DeepEqual(x.Subjects, y.Subjects)
}

// choice is what a grant is about: a Pod, or a role.
type choice struct {
	// role is the kind of the role, "" for a Pod.
	role string
	name string
	uid  types.UID
}

// String names the choice for people.
func (c choice) String() string {
	if c.role != "" {
		return c.role + " " + c.name
	}
	return "Pod " + c.name
}

// choiceOf reads the choice from its record.
func choiceOf(record *rbacv1.Role) choice {
	if kind, name, found := strings.Cut(record.Annotations[annotationRole], "/"); found {
		return choice{role: kind, name: name, uid: types.UID(record.Annotations[annotationRoleUID])}
	}
	for _, rule := range record.Rules {
		if len(rule.ResourceNames) > 0 {
			return choice{name: rule.ResourceNames[0], uid: types.UID(record.Annotations[AnnotationPodUID])}
		}
	}
	return choice{}
}

// chosenIn returns the choice that a status says.
func chosenIn(status *v1alpha1.RequestStatus) choice {
	switch {
	case status.GrantedRole != nil:
		return choice{role: status.GrantedRole.Kind, name: status.GrantedRole.Name, uid: types.UID(status.GrantedRole.UID)}
	case status.PodUID != "":
		return choice{name: status.PodName, uid: types.UID(status.PodUID)}
	}
	return choice{}
}

// gotSomething reports whether a request says that it was given a Pod or a role.
func gotSomething(req v1alpha1.Request) bool { return chosenIn(req.GetRequestStatus()) != choice{} }

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

// createRole creates a Role, or returns the one that an earlier run made.
func (a *shared) createRole(ctx context.Context, role *rbacv1.Role) (*rbacv1.Role, error) {
	err := a.writer.Create(ctx, role)
	if !apierrors.IsAlreadyExists(err) {
		return role, err
	}
	var existing rbacv1.Role
	if err := a.live.Get(ctx, client.ObjectKeyFromObject(role), &existing); err != nil {
		return nil, err
	}
	if existing.Annotations[AnnotationRequestUID] != role.Annotations[AnnotationRequestUID] {
		return nil, refuse(v1alpha1.ReasonNameTaken, "Role %s/%s exists and does not belong to this request", role.Namespace, role.Name).forNow()
	}
	return &existing, nil
}

// createBinding creates a RoleBinding, or makes sure that one that exists says
// the same.
func (a *shared) createBinding(ctx context.Context, binding *rbacv1.RoleBinding) error {
	want := binding.DeepCopy()
	err := a.writer.Create(ctx, binding)
	if err == nil && !isSameGrant(binding, want) {
		return errors.New("something changed it while it was made, so that it does not say what was granted")
	}
	if !apierrors.IsAlreadyExists(err) {
		return err
	}
	var existing rbacv1.RoleBinding
	if err := a.live.Get(ctx, client.ObjectKeyFromObject(binding), &existing); err != nil {
		return err
	}
	ours := existing.Annotations[AnnotationRequestUID] == want.Annotations[AnnotationRequestUID]
	switch {
	case !ours:
		return refuse(v1alpha1.ReasonNameTaken, "RoleBinding %s/%s exists and does not belong to this request: nothing is granted while it does", binding.Namespace, binding.Name).forNow()
	case isSameGrant(&existing, want) && existing.Labels[LabelManagedBy] == managedBy:
		*binding = existing
		return nil
	}
	// The cache does not see it without its label.
	if err := a.writer.Delete(ctx, &existing, client.Preconditions{UID: &existing.UID}); client.IgnoreNotFound(err) != nil {
		return err
	}
	return errors.New("it was changed, and is made anew")
}

// indexPod finds the Roles of the grants that are about a Pod.
const indexPod = "pod"

func (a *shared) indexRoles(ctx context.Context) error {
	return a.cluster.GetFieldIndexer().IndexField(ctx, &rbacv1.Role{}, indexPod, func(obj client.Object) []string {
		return []string{choiceOf(obj.(*rbacv1.Role)).name}
	})
}
