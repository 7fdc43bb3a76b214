package admission

import (
	"context"
	"fmt"
	"maps"
	"slices"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/operator/access/internal/grant"
	"github.com/admitkit/admitkit/operator/access/internal/kube"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/egress"
)

// recordGuard lets only the manager make and change what a grant consists of: the
// Role, which is its record, the RoleBinding, and the access Pod. RBAC already stops
// engineers from writing Roles. But an administrator of a namespace may write them,
// and where the enforcement of the audit extension makes even them ask for access,
// could turn a grant to another Pod. And those who may write Pods could have a
// request adopt a Pod of their own, or change the image of one that is granted.
type recordGuard struct{ *kube.Connection }

// recordScope covers Roles, RoleBindings and Pods whose names are ours, the resizing of
// Pods, which could exceed a cap, and of the writes of their status, which are many,
// those that change what the manager wrote into the metadata. It leaves deletion alone:
// it takes access away, which harms nobody.
func recordScope(a *kube.Connection) extension.Scope {
	fail := admissionregistrationv1.Fail
	write := []admissionregistrationv1.OperationType{admissionregistrationv1.Create, admissionregistrationv1.Update}
	named := func(prefix string) string {
		return fmt.Sprintf("(has(object.metadata.name) && object.metadata.name.startsWith('%[1]s')) || "+
			"(has(object.metadata.generateName) && object.metadata.generateName.startsWith('%[1]s'))", prefix)
	}
	written := func(object string) string {
		value := func(in, key string) string {
			return fmt.Sprintf("(has(%[1]s.metadata.%[2]s) && '%[3]s' in %[1]s.metadata.%[2]s ? %[1]s.metadata.%[2]s['%[3]s'] : '')", object, in, key)
		}
		return fmt.Sprintf("[%s, %s, %s]", value("labels", grant.LabelManagedBy), value("labels", grant.LabelRequest), value("annotations", grant.AnnotationRequestUID))
	}
	finalizers := func(object string) string {
		return fmt.Sprintf("(has(%[1]s.metadata.finalizers) ? size(%[1]s.metadata.finalizers) : 0)", object)
	}
	labels := func(object string) string {
		return fmt.Sprintf("(has(%[1]s.metadata.labels) ? %[1]s.metadata.labels : {})", object)
	}
	return extension.Scope{
		Name: "access-record", FailurePolicy: &fail, Modes: []extension.Mode{extension.Enforce}, NamespaceSelector: a.Places.Selector(),
		Rules: slices.Concat(extension.Resources(rbacv1.GroupName, "v1", []string{"roles", "rolebindings"}, write...), extension.Pods(write...),
			extension.Resources("", "v1", []string{"pods/resize", "pods/status"}, admissionregistrationv1.Update)),
		MatchConditions: []admissionregistrationv1.MatchCondition{{
			Name:       "names-a-grant",
			Expression: fmt.Sprintf("%s || (request.resource.resource != 'pods' && (%s || %s))", named(grant.PodAccess.Prefix), named(grant.ExecAccess.Prefix), named(grant.RoleAccess.Prefix)),
		}, {
			Name: "changes-more-than-a-status",
			Expression: fmt.Sprintf("!has(request.subResource) || request.subResource != 'status' || %s != %s || %s > %s || ('%s' in %s && %s != %s)",
				written("object"), written("oldObject"), finalizers("object"), finalizers("oldObject"), v1alpha1.LabelEgress, labels("oldObject"), labels("object"), labels("oldObject")),
		}},
	}
}

// Register connects to the cluster.
func (g *recordGuard) Register(mgr extension.Manager) error { return g.Setup(mgr) }

// Validate denies what the manager does not write.
func (g *recordGuard) Validate(ctx context.Context, obj *unstructured.Unstructured, req *extension.Request) error {
	me, err := g.Self.Reconciler(ctx)
	if err != nil {
		return err
	}
	if req.User().Username == me {
		return nil
	}
	if req.Operation == admissionv1.Update {
		old := &unstructured.Unstructured{}
		if err := req.Old(old); err != nil {
			return err
		}
		if req.SubResource == "status" {
			unstructured.RemoveNestedField(old.Object, "status")
			unstructured.RemoveNestedField(obj.Object, "status")
		}
		if harmless(old, obj) {
			return nil
		}
	}
	deniedTotal.WithLabelValues("record", v1alpha1.ReasonNotAllowed).Inc()
	return extension.Denyf("%s %s/%s: names that begin with %s, %s and %s belong to grants, which admitkit alone makes and changes, as %s",
		req.Kind.Kind, req.Namespace, req.Name, grant.PodAccess.Prefix, grant.ExecAccess.Prefix, grant.RoleAccess.Prefix, me)
}

// harmless reports whether an update may be anybody's: it takes owners or finalizers
// away, as the garbage collector must, or changes labels and annotations that are
// not ours, as network plugins do. A RoleBinding that its Pod no longer owns is
// deleted; see [facts.Facts.Disowned].
func harmless(before, after *unstructured.Unstructured) bool {
	if addedOwner(before.GetOwnerReferences(), after.GetOwnerReferences()) != nil {
		return false
	}
	for _, finalizer := range after.GetFinalizers() {
		if !slices.Contains(before.GetFinalizers(), finalizer) {
			return false
		}
	}
	return apiequality.Semantic.DeepEqual(guarded(before), guarded(after))
}

// guarded returns what of an object must stay as it is. A Pod that a policy holds keeps all its labels:
// by any other a policy of somebody else could select it, and allow it more.
func guarded(object *unstructured.Unstructured) map[string]any {
	object = object.DeepCopy()
	labels := object.GetLabels()
	if _, held := labels[v1alpha1.LabelEgress]; held {
		maps.DeleteFunc(labels, func(key, _ string) bool { return egress.IsOfTopology(key) })
	} else {
		labels = v1alpha1.Ours(labels)
	}
	object.SetLabels(labels)
	object.SetAnnotations(v1alpha1.Ours(object.GetAnnotations()))
	for _, field := range []string{"ownerReferences", "finalizers", "managedFields", "resourceVersion", "generation"} {
		unstructured.RemoveNestedField(object.Object, "metadata", field)
	}
	return object.Object
}
