package binding

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/extension/cluster"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/internal/controller"
)

// facts are what a decision depends on.
type facts struct {
	kind kind
	key  types.NamespacedName
	// object is nil if it is gone, or being deleted.
	object v1alpha1.TransientBinding
	// binding is the one of that name, nil if there is none.
	binding client.Object
	// roleUID is the UID of the role, "" if there is none.
	roleUID types.UID
	// refused says why the operator does not let the role be bound, "" if it does.
	refused string
	// end is when the binding ends.
	end time.Time
	// retention is how long the object stays after its end.
	retention time.Duration
	// notBefore is when the binding may be made again.
	notBefore time.Time
}

// decision is what to do. apply does it in the order of the fields.
type decision struct {
	// remove is a binding of ours that must not be.
	remove client.Object
	// ended says that it is removed because its time is over.
	ended bool
	// judge says that the author must be allowed to bind the role: else there is no binding.
	judge bool
	// create is the binding to make.
	create client.Object
	// reason and message are those of the condition, unless what is made says otherwise;
	// none leaves the status as it is.
	reason, message string
	// discard deletes the object.
	discard bool
	// poll says that the object waits for something that is not watched.
	poll bool
	// next is when to look again if nothing happens, zero is never, and priority how
	// urgent that is.
	next     time.Time
	priority int
}

// decide says what follows from the facts. It does not fail, and does nothing.
func decide(f *facts, now time.Time) decision {
	var ours client.Object
	if f.binding != nil && isOurs(f.binding, f.object) {
		ours = f.binding
	}
	if f.object == nil {
		return decision{remove: ours}
	}
	spec := f.object.GetBindingSpec()
	from, until := begin(f.object), f.end
	switch {
	case !now.Before(until) || f.object.GetBindingStatus().EndedAt != nil: // another clock may have been ahead, or this one
		d := decision{remove: ours, ended: true, reason: v1alpha1.BindingEnded, message: "ended at " + stamp(until), priority: controller.PriorityCleanup}
		d.next = until.Add(f.retention)
		d.discard = !now.Before(d.next)
		return d
	case now.Before(from):
		return decision{remove: ours, reason: v1alpha1.BindingNotYet, message: "begins at " + stamp(from), next: from, priority: controller.PriorityBegin}
	}
	d := decision{remove: ours, next: until, priority: controller.PriorityEnd}
	if d.reason, d.message = f.obstacle(); d.reason != "" {
		return d
	}
	wanted := f.kind.wanted(f.object, f.roleUID)
	d.reason, d.message = v1alpha1.BindingActive, fmt.Sprintf("%s %s binds %s until %s", f.kind.name, f.object.GetName(), cluster.Role(spec.RoleRef.Ref(), f.key.Namespace), stamp(until))
	switch {
	case ours != nil && isAsWanted(ours, wanted):
		// Whoever gave it a later end must have been allowed to. The spec says who that was.
		d.remove, d.judge = nil, !f.isJudged()
		return d
	case f.binding != nil && ours == nil:
		d.reason, d.poll = v1alpha1.BindingNameTaken, true
		d.message = fmt.Sprintf("another %s has the name %s; it stays untouched: rename one of them", f.kind.name, f.object.GetName())
		return d
	case now.Before(f.notBefore):
		d.reason, d.message, d.next = "", "", earlier(f.notBefore, until)
		return d
	}
	d.create, d.judge = wanted, true
	return d
}

// isJudged reports whether the binding exists by the spec as it is now.
func (f *facts) isJudged() bool {
	c := meta.FindStatusCondition(f.object.GetBindingStatus().Conditions, v1alpha1.ConditionEffective)
	return c != nil && c.Reason == v1alpha1.BindingActive && c.ObservedGeneration == f.object.GetGeneration()
}

// obstacle says why there must be no binding within its time.
func (f *facts) obstacle() (reason, message string) {
	spec, role := f.object.GetBindingSpec(), cluster.Role(f.object.GetBindingSpec().RoleRef.Ref(), f.key.Namespace)
	seen := f.seenRole()
	switch {
	case spec.Author == nil:
		return v1alpha1.BindingNotAllowed, "the object has no author, because it was made while no webhook answered: make another"
	case f.refused != "":
		return v1alpha1.BindingNotAllowed, f.refused
	case f.roleUID == "" && seen == "":
		return v1alpha1.BindingRoleMissing, role + " does not exist; the binding waits for it until its end"
	case f.roleUID != seen && seen != "":
		return v1alpha1.BindingRoleLost, role + " was deleted since this was granted; another of its name is not meant: make another object"
	}
	return "", ""
}

// seenRole returns the UID of the role when it was first seen. A manager that was killed may
// have made the binding, and not yet written the status.
func (f *facts) seenRole() types.UID {
	if seen := f.object.GetBindingStatus().RoleUID; seen != "" {
		return types.UID(seen)
	}
	if f.binding != nil && f.binding.GetAnnotations()[annotationUID] == string(f.object.GetUID()) {
		return types.UID(f.binding.GetAnnotations()[annotationRoleUID])
	}
	return ""
}

// begin returns when the binding begins. An object that no webhook has seen may lack it.
func begin(object v1alpha1.TransientBinding) time.Time {
	if from := object.GetBindingSpec().ValidFrom; from != nil {
		return from.Time
	}
	return object.GetCreationTimestamp().Time
}

// skew is how far the clocks of the API server and of the webhooks may be apart before a
// binding of the longest duration ends early.
const skew = 10 * time.Second

// endOf returns when the binding ends. An object that no webhook has seen may be for longer
// than the operator allows, and one that has ended stays so.
func endOf(object v1alpha1.TransientBinding, most time.Duration) time.Time {
	until := earlier(object.GetBindingSpec().ValidUntil.Time, later(begin(object), object.GetCreationTimestamp().Time).Add(most+skew))
	if at := object.GetBindingStatus().EndedAt; at != nil {
		until = earlier(until, at.Time)
	}
	return until
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

func later(x, y time.Time) time.Time {
	if x.After(y) {
		return x
	}
	return y
}

func earlier(x, y time.Time) time.Time {
	if x.Before(y) {
		return x
	}
	return y
}
