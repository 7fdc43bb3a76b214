package grant

import (
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/operator/access/internal/pod"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

// Labels and annotations. They say what an object is for; the annotations of a
// Role are the record of what was chosen when access was granted.
const (
	// LabelManagedBy is on every object that the extension makes; its cache holds
	// no others.
	LabelManagedBy = v1alpha1.LabelManagedBy
	// ManagedBy is the value of LabelManagedBy.
	ManagedBy = v1alpha1.ManagedByAccess
	// LabelRequest has the name of the request.
	LabelRequest = "admitkit.dev/access-request"

	// AnnotationRequestUID has the UID of the request.
	AnnotationRequestUID = v1alpha1.AnnotationRequestUID
	// AnnotationPodUID has the UID of the Pod that was chosen or made.
	AnnotationPodUID = v1alpha1.AnnotationPodUID
	// AnnotationOnExpiry has what happens to the Pod at the end.
	AnnotationOnExpiry = v1alpha1.AnnotationOnExpiry
	// AnnotationSubjects has to whom access is granted, as JSON.
	AnnotationSubjects = v1alpha1.AnnotationSubjects
	// AnnotationTemplate on a Pod names the PodAccessTemplate by which it is
	// treated when it is created; see the README.
	AnnotationTemplate = pod.AnnotationTemplate
	// AnnotationMessage has the access command, made when access was granted.
	AnnotationMessage = "admitkit.dev/access-message"
	// AnnotationTemplateUID has the UID of the template by which access was granted:
	// another of its name has not allowed it.
	AnnotationTemplateUID = "admitkit.dev/template-uid"
	// annotationRole and annotationRoleUID say which role was granted, as kind and name with
	// a slash.
	annotationRole    = "admitkit.dev/role"
	annotationRoleUID = "admitkit.dev/role-uid"
)

// Kind is one of the kinds of access.
type Kind struct {
	Name         string // in names of controllers and metrics
	Prefix       string // of the names of what a request gets
	RequestKind  string // the Kind of requests
	TemplateKind string // the Kind of templates
	// MakesPod says that access is to a Pod that is made for the request, and
	// deleted with it. Otherwise it is to a Pod that a workload runs.
	MakesPod bool
	// GivesRole says that access is to a role, and not to a Pod.
	GivesRole bool
	// NewRequest, NewRequestList and NewTemplate return empty objects.
	NewRequest     func() v1alpha1.Request
	NewRequestList func() client.ObjectList
	NewTemplate    func() v1alpha1.Template
}

// The kinds of access: to a Pod that is made, to a Pod that runs, and to a role.
var (
	PodAccess = Kind{
		Name: "pod", Prefix: v1alpha1.PodAccessPrefix, RequestKind: "PodAccessRequest", TemplateKind: "PodAccessTemplate", MakesPod: true,
		NewRequest:     func() v1alpha1.Request { return &v1alpha1.PodAccessRequest{} },
		NewRequestList: func() client.ObjectList { return &v1alpha1.PodAccessRequestList{} },
		NewTemplate:    func() v1alpha1.Template { return &v1alpha1.PodAccessTemplate{} },
	}
	ExecAccess = Kind{
		Name: "exec", Prefix: v1alpha1.ExecAccessPrefix, RequestKind: "ExecAccessRequest", TemplateKind: "ExecAccessTemplate",
		NewRequest:     func() v1alpha1.Request { return &v1alpha1.ExecAccessRequest{} },
		NewRequestList: func() client.ObjectList { return &v1alpha1.ExecAccessRequestList{} },
		NewTemplate:    func() v1alpha1.Template { return &v1alpha1.ExecAccessTemplate{} },
	}
	RoleAccess = Kind{
		Name: "role", Prefix: v1alpha1.RoleAccessPrefix, RequestKind: "RoleAccessRequest", TemplateKind: "RoleAccessTemplate", GivesRole: true,
		NewRequest:     func() v1alpha1.Request { return &v1alpha1.RoleAccessRequest{} },
		NewRequestList: func() client.ObjectList { return &v1alpha1.RoleAccessRequestList{} },
		NewTemplate:    func() v1alpha1.Template { return &v1alpha1.RoleAccessTemplate{} },
	}
	Kinds = []Kind{PodAccess, ExecAccess, RoleAccess}
)

// Resource returns the key of what a request gets: Role, RoleBinding and access
// Pod share one name. It depends on neither a UID nor chance, so that a manager
// that was killed finds what it made.
func (k Kind) Resource(request types.NamespacedName) types.NamespacedName {
	return types.NamespacedName{Namespace: request.Namespace, Name: k.Prefix + request.Name}
}

// Owner returns the request that an object with this name would belong to.
func (k Kind) Owner(resource types.NamespacedName) (types.NamespacedName, bool) {
	name, found := strings.CutPrefix(resource.Name, k.Prefix)
	return types.NamespacedName{Namespace: resource.Namespace, Name: name}, found && name != ""
}

// Meta returns the metadata of an object that a request gets. The labels are for
// our cache and for people.
func (k Kind) Meta(req v1alpha1.Request) metav1.ObjectMeta {
	resource := k.Resource(client.ObjectKeyFromObject(req))
	return metav1.ObjectMeta{
		Name: resource.Name, Namespace: resource.Namespace,
		Labels:      map[string]string{LabelManagedBy: ManagedBy, LabelRequest: req.GetName()},
		Annotations: map[string]string{AnnotationRequestUID: string(req.GetUID())},
	}
}

// OwnedBy returns the reference that makes a request the owner of an object.
func (k Kind) OwnedBy(req v1alpha1.Request) metav1.OwnerReference {
	owner := metav1.NewControllerRef(req, v1alpha1.GroupVersion.WithKind(k.RequestKind))
	// Blocking the owner's deletion would need a right on its finalizers.
	owner.BlockOwnerDeletion = nil
	return *owner
}

// Owns reports whether an object says that a request of this kind controls it: the
// one with the UID, or any if uid is "".
func (k Kind) Owns(object metav1.Object, uid types.UID) bool {
	owner := metav1.GetControllerOf(object)
	return owner != nil && owner.Kind == k.RequestKind && owner.APIVersion == v1alpha1.GroupVersion.String() && (uid == "" || owner.UID == uid)
}

// EachRequest calls visit for every request of a list.
func EachRequest(list client.ObjectList, visit func(v1alpha1.Request)) {
	switch list := list.(type) {
	case *v1alpha1.PodAccessRequestList:
		for i := range list.Items {
			visit(&list.Items[i])
		}
	case *v1alpha1.ExecAccessRequestList:
		for i := range list.Items {
			visit(&list.Items[i])
		}
	case *v1alpha1.RoleAccessRequestList:
		for i := range list.Items {
			visit(&list.Items[i])
		}
	}
}

// KindOf returns the kind of access whose requests have a Kind.
func KindOf(request string) (Kind, bool) {
	for _, k := range Kinds {
		if k.RequestKind == request {
			return k, true
		}
	}
	return Kind{}, false
}
