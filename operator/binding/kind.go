package binding

import (
	rbacv1 "k8s.io/api/rbac/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

const (
	managedBy = "admitkit-binding"
	// annotationUID, on a binding, has the UID of the transient binding.
	annotationUID = "admitkit.dev/transient-binding-uid"
	// annotationRoleUID, on a binding, has the UID of the role that it is for.
	annotationRoleUID = "admitkit.dev/role-uid"
)

// kind is one of the two kinds of transient binding.
type kind struct {
	name       string // in metrics
	object     string // the Kind
	resource   string
	newObject  func() v1alpha1.TransientBinding
	newBinding func() client.Object
}

var (
	inNamespace = kind{
		name: "RoleBinding", object: "TransientRoleBinding", resource: "transientrolebindings",
		newObject:  func() v1alpha1.TransientBinding { return &v1alpha1.TransientRoleBinding{} },
		newBinding: func() client.Object { return &rbacv1.RoleBinding{} },
	}
	inCluster = kind{
		name: "ClusterRoleBinding", object: "TransientClusterRoleBinding", resource: "transientclusterrolebindings",
		newObject:  func() v1alpha1.TransientBinding { return &v1alpha1.TransientClusterRoleBinding{} },
		newBinding: func() client.Object { return &rbacv1.ClusterRoleBinding{} },
	}
)

// contents returns what a binding binds to whom.
func contents(binding client.Object) (ref *rbacv1.RoleRef, subjects *[]rbacv1.Subject) {
	if b, ok := binding.(*rbacv1.ClusterRoleBinding); ok {
		return &b.RoleRef, &b.Subjects
	}
	b := binding.(*rbacv1.RoleBinding)
	return &b.RoleRef, &b.Subjects
}

// wanted returns the binding of an object, which has its name.
func (k kind) wanted(object v1alpha1.TransientBinding, roleUID types.UID) client.Object {
	spec, binding := object.GetBindingSpec(), k.newBinding()
	binding.SetName(object.GetName())
	binding.SetNamespace(object.GetNamespace())
	binding.SetLabels(map[string]string{v1alpha1.LabelManagedBy: managedBy})
	binding.SetAnnotations(map[string]string{annotationUID: string(object.GetUID()), annotationRoleUID: string(roleUID)})
	owner := metav1.NewControllerRef(object, v1alpha1.GroupVersion.WithKind(k.object))
	owner.BlockOwnerDeletion = nil // it would need a right on the owner's finalizers
	binding.SetOwnerReferences([]metav1.OwnerReference{*owner})
	ref, subjects := contents(binding)
	*ref = spec.RoleRef.Ref()
	for i := range spec.Subjects {
		*subjects = append(*subjects, spec.Subjects[i].Subject())
	}
	return binding
}

// isOurs reports whether a binding is one that the extension made: it says so, or it is
// the one that the object remembers. Who may write a binding in another way than to take its
// owner away must hold bind, or all that it grants, already.
func isOurs(binding client.Object, object v1alpha1.TransientBinding) bool {
	if binding.GetLabels()[v1alpha1.LabelManagedBy] == managedBy && binding.GetAnnotations()[annotationUID] != "" {
		return true
	}
	if object == nil {
		return false
	}
	if metav1.IsControlledBy(binding, object) {
		return true
	}
	// Where no webhook is, others may write what the status remembers. That must not make
	// the manager delete what it cannot have made.
	ref, _ := contents(binding)
	made, since := binding.GetCreationTimestamp(), object.GetCreationTimestamp()
	return object.GetBindingStatus().BindingUID == string(binding.GetUID()) && *ref == object.GetBindingSpec().RoleRef.Ref() && !made.Before(&since)
}

// isAsWanted reports whether a binding is what it should be. What others add to its
// labels and annotations is theirs. It has no finalizers: they would keep it after its end,
// and Kubernetes lets them be added without the right to bind.
func isAsWanted(binding, wanted client.Object) bool {
	for key, value := range wanted.GetAnnotations() {
		if binding.GetAnnotations()[key] != value {
			return false
		}
	}
	ref, subjects := contents(binding)
	wantedRef, wantedSubjects := contents(wanted)
	return binding.GetLabels()[v1alpha1.LabelManagedBy] == managedBy && binding.GetDeletionTimestamp().IsZero() && len(binding.GetFinalizers()) == 0 &&
		apiequality.Semantic.DeepEqual(binding.GetOwnerReferences(), wanted.GetOwnerReferences()) &&
		*ref == *wantedRef && apiequality.Semantic.DeepEqual(*subjects, *wantedSubjects)
}
