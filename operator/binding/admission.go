package binding

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/extension/cluster"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

// admissions are the parts that answer admissions, in every namespace and for both kinds:
// what the operator does not allow is refused, and not ignored.
func (s *shared) admissions() []any {
	fail, create, update := admissionregistrationv1.Fail, admissionregistrationv1.Create, admissionregistrationv1.Update
	scope := func(name, resource string, ops ...admissionregistrationv1.OperationType) extension.Scope {
		return extension.Scope{
			Name: name, FailurePolicy: &fail, Modes: []extension.Mode{extension.Enforce}, NamespaceSelector: extension.EveryNamespace(),
			Rules: extension.Resources(v1alpha1.GroupVersion.Group, v1alpha1.GroupVersion.Version, []string{resource}, ops...),
		}
	}
	return []any{
		extension.Mutating(&author[*v1alpha1.TransientRoleBinding]{s}, scope("role-binding-author", inNamespace.resource, create, update)),
		extension.Mutating(&author[*v1alpha1.TransientClusterRoleBinding]{s}, scope("cluster-role-binding-author", inCluster.resource, create, update)),
		extension.Validating(&rules[*v1alpha1.TransientRoleBinding]{admitted{s, inNamespace}}, scope("role-binding", inNamespace.resource, create, update)),
		extension.Validating(&rules[*v1alpha1.TransientClusterRoleBinding]{admitted{s, inCluster}}, scope("cluster-role-binding", inCluster.resource, create, update)),
		extension.Validating(&report[*v1alpha1.TransientRoleBinding]{s}, scope("role-binding-report", inNamespace.resource+"/status", update)),
		extension.Validating(&report[*v1alpha1.TransientClusterRoleBinding]{s}, scope("cluster-role-binding-report", inCluster.resource+"/status", update)),
	}
}

// author writes into an object who makes it, or gives it more.
type author[T v1alpha1.TransientBinding] struct{ *shared }

// Mutate stamps a new object. What names somebody else stays, and rules refuses it: a
// backup that is restored would otherwise bind in the name of whoever restores it.
func (a *author[T]) Mutate(_ context.Context, obj T, req *extension.Request) error {
	spec, now := obj.GetBindingSpec(), metav1.NewTime(a.options.Clock.Now().Truncate(time.Second))
	if req.Operation == admissionv1.Update {
		return keep[T](spec, now, req)
	}
	if spec.ValidFrom == nil {
		if !spec.ValidUntil.After(now.Time) { // the CRD would say that it is before validFrom, which nobody wrote
			return extension.Deny(over(spec.ValidUntil.Time, now.Time))
		}
		spec.ValidFrom = &now
	}
	if spec.Author == nil || spec.Author.Username == "" || spec.Author.Username == req.User().Username {
		spec.Author = v1alpha1.AuthorOf(req.User())
	}
	return nil
}

// keep stamps who gives an object more, and puts back what was stamped: a manifest that is
// applied again lacks it. An end that has passed already becomes now: the record must not say
// that it was earlier.
func keep[T v1alpha1.TransientBinding](spec *v1alpha1.TransientBindingSpec, now metav1.Time, req *extension.Request) error {
	old, err := extension.Old[T](req)
	if err != nil {
		return err
	}
	before := old.GetBindingSpec()
	switch {
	case widens(before, spec):
		spec.Author = v1alpha1.AuthorOf(req.User())
	case spec.Author == nil:
		spec.Author = before.Author
	}
	if spec.ValidFrom == nil {
		spec.ValidFrom = before.ValidFrom
	}
	if spec.ValidUntil.Before(&now) && now.Before(&before.ValidUntil) && spec.ValidFrom.Before(&now) {
		spec.ValidUntil = now
	}
	return nil
}

// widens reports whether a spec gives more than the one before: that is a new grant, of
// whoever writes it.
func widens(before, after *v1alpha1.TransientBindingSpec) bool {
	return before.ValidUntil.Before(&after.ValidUntil) ||
		slices.ContainsFunc(after.Subjects, func(s v1alpha1.BoundSubject) bool { return !slices.Contains(before.Subjects, s) })
}

// admitted is what validates objects of a kind.
type admitted struct {
	*shared
	kind kind
}

// rules judges a new object, and one that gives more than before. What may not change at
// all the CRD refuses.
type rules[T v1alpha1.TransientBinding] struct{ admitted }

// Register connects to the cluster.
func (r *rules[T]) Register(mgr extension.Manager) error { return r.asker.Connect(mgr) }

// Validate refuses what the operator does not let be bound, and what its author may not.
func (r *rules[T]) Validate(ctx context.Context, obj T, req *extension.Request) error {
	refused, err := r.refuse(ctx, obj, req)
	if err == nil && refused != "" {
		deniedTotal.WithLabelValues(r.kind.name).Inc()
		err = extension.Deny(refused)
	}
	return err
}

func (r *rules[T]) refuse(ctx context.Context, obj T, req *extension.Request) (string, error) {
	spec, user, now := obj.GetBindingSpec(), req.User(), r.options.Clock.Now()
	made := now
	if req.Operation == admissionv1.Update {
		old, err := extension.Old[T](req)
		if err != nil || !widens(old.GetBindingSpec(), spec) {
			return "", err
		}
		if ended := old.GetBindingSpec().ValidUntil; !now.Before(ended.Time) || old.GetBindingStatus().EndedAt != nil {
			return fmt.Sprintf("spec: it ended at %s, and does not begin again: make another object", stamp(ended.Time)), nil
		}
		made = obj.GetCreationTimestamp().Time
	}
	if !spec.Author.Is(user) {
		name := ""
		if spec.Author != nil {
			name = spec.Author.Username
		}
		return fmt.Sprintf("spec.author: the server sets it; user %q cannot make an object in the name of %q: leave it out", user.Username, name), nil
	}
	if refused := cmp.Or(refuseName(obj, req), inField("spec.roleRef", r.list.refuses(spec.RoleRef.Ref(), req.Namespace))); refused != "" {
		return refused, nil
	}
	if refused := refuseSubjects(spec.Subjects); refused != "" {
		return refused, nil
	}
	if refused := r.refuseTime(spec, made, now); refused != "" {
		return refused, nil
	}
	may, reason, err := cluster.MayBind(ctx, r.asker, user, spec.RoleRef.Ref(), req.Namespace)
	if err != nil || may {
		return "", err
	}
	return "spec.roleRef: " + reason, nil
}

func inField(field, refused string) string {
	if refused == "" {
		return ""
	}
	return field + ": " + refused
}

// refuseName refuses a new object whose RoleBinding would have the name of one that access
// makes: the request whose name that is would get nothing.
func refuseName(obj v1alpha1.TransientBinding, req *extension.Request) string {
	if req.Operation != admissionv1.Create || req.Namespace == "" {
		return ""
	}
	for _, prefix := range []string{v1alpha1.PodAccessPrefix, v1alpha1.ExecAccessPrefix, v1alpha1.RoleAccessPrefix} {
		if strings.HasPrefix(obj.GetName(), prefix) || strings.HasPrefix(obj.GetGenerateName(), prefix) {
			return fmt.Sprintf("metadata.name: names that begin with %s belong to the RoleBindings of access; choose another", prefix)
		}
	}
	return ""
}

// refuseSubjects refuses what the API server would refuse in a binding.
func refuseSubjects(subjects []v1alpha1.BoundSubject) string {
	for i, s := range subjects {
		if s.Kind != rbacv1.ServiceAccountKind {
			continue
		}
		problems := append(validation.IsDNS1123Subdomain(s.Name), validation.IsDNS1123Label(s.Namespace)...)
		if len(problems) > 0 {
			return fmt.Sprintf("spec.subjects[%d]: there can be no ServiceAccount %q in namespace %q: %s", i, s.Name, s.Namespace, problems[0])
		}
	}
	return ""
}

// refuseTime refuses a window that is over, too long or too far away. A later end counts
// from when the object was made: the limit is that of the object.
func (r *rules[T]) refuseTime(spec *v1alpha1.TransientBindingSpec, made, now time.Time) string {
	if spec.ValidFrom == nil {
		return "spec.validFrom: a webhook after admitkit's removed it"
	}
	from, until := later(spec.ValidFrom.Time, made), spec.ValidUntil.Time
	switch {
	case !until.After(now):
		return over(until, now)
	case from.Sub(now) > r.options.MaxLead:
		return fmt.Sprintf("spec.validFrom: %s is more than %s ahead, the most that the operator allows (--binding-max-lead)", stamp(from), r.options.MaxLead)
	case until.Sub(from).Truncate(time.Second) > r.options.MaxDuration:
		return fmt.Sprintf("spec.validUntil: from %s to %s is longer than %s, the most that the operator allows (--binding-max-duration)", stamp(from), stamp(until), r.options.MaxDuration)
	}
	return ""
}

// over says that the end of a new binding has passed.
func over(until, now time.Time) string {
	return fmt.Sprintf("spec.validUntil: %s is over; it is %s", stamp(until), stamp(now))
}

// report lets only the manager write the status.
type report[T v1alpha1.TransientBinding] struct{ *shared }

// Register connects to the cluster.
func (r *report[T]) Register(mgr extension.Manager) error { return r.asker.Connect(mgr) }

// Validate denies what the manager does not write.
func (r *report[T]) Validate(ctx context.Context, _ T, req *extension.Request) error {
	me, err := r.asker.Reconciler(ctx)
	if err != nil {
		return err
	}
	if req.User().Username != me {
		return extension.Denyf("status: only admitkit writes it, as %s", me)
	}
	return nil
}
