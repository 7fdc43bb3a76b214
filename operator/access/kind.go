package access

import (
	"fmt"
	"strings"
	"time"

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
	managedBy      = v1alpha1.ManagedByAccess
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
	// annotationMessage has the access command, made when access was granted.
	annotationMessage = "admitkit.dev/access-message"
	// annotationTemplateUID has the UID of the template by which access was granted:
	// another of its name has not allowed it.
	annotationTemplateUID = "admitkit.dev/template-uid"
	// annotationRole and annotationRoleUID say which role was granted, as kind and name with
	// a slash.
	annotationRole    = "admitkit.dev/role"
	annotationRoleUID = "admitkit.dev/role-uid"
)

// kind is one of the kinds of access.
type kind struct {
	name     string // in names of controllers and metrics
	prefix   string // of the names of what a request gets
	request  string // the Kind of requests
	template string // the Kind of templates
	// makesPod says that access is to a Pod that is made for the request, and
	// deleted with it. Otherwise it is to a Pod that a workload runs.
	makesPod bool
	// givesRole says that access is to a role, and not to a Pod.
	givesRole   bool
	newRequest  func() v1alpha1.Request
	requests    func() client.ObjectList
	newTemplate func() v1alpha1.Template
}

var (
	podAccess = kind{
		name: "pod", prefix: v1alpha1.PodAccessPrefix, request: "PodAccessRequest", template: "PodAccessTemplate", makesPod: true,
		newRequest:  func() v1alpha1.Request { return &v1alpha1.PodAccessRequest{} },
		requests:    func() client.ObjectList { return &v1alpha1.PodAccessRequestList{} },
		newTemplate: func() v1alpha1.Template { return &v1alpha1.PodAccessTemplate{} },
	}
	execAccess = kind{
		name: "exec", prefix: v1alpha1.ExecAccessPrefix, request: "ExecAccessRequest", template: "ExecAccessTemplate",
		newRequest:  func() v1alpha1.Request { return &v1alpha1.ExecAccessRequest{} },
		requests:    func() client.ObjectList { return &v1alpha1.ExecAccessRequestList{} },
		newTemplate: func() v1alpha1.Template { return &v1alpha1.ExecAccessTemplate{} },
	}
	roleAccess = kind{
		name: "role", prefix: v1alpha1.RoleAccessPrefix, request: "RoleAccessRequest", template: "RoleAccessTemplate", givesRole: true,
		newRequest:  func() v1alpha1.Request { return &v1alpha1.RoleAccessRequest{} },
		requests:    func() client.ObjectList { return &v1alpha1.RoleAccessRequestList{} },
		newTemplate: func() v1alpha1.Template { return &v1alpha1.RoleAccessTemplate{} },
	}
	kinds = []kind{podAccess, execAccess, roleAccess}
)

// resource returns the key of what a request gets: Role, RoleBinding and access
// Pod share one name. It depends on neither a UID nor chance, so that a manager
// that was killed finds what it made.
func (k kind) resource(request types.NamespacedName) types.NamespacedName {
	return types.NamespacedName{Namespace: request.Namespace, Name: k.prefix + request.Name}
}

// noTemplate refuses a request whose template does not exist.
func (k kind) noTemplate(namespace, name string) *refusal {
	return refuse(v1alpha1.ReasonTemplateMissing, "%s %s/%s does not exist", k.template, namespace, name)
}

// waits says how long a request made at created waits for its template.
func (k kind) waits(created time.Time) string {
	return fmt.Sprintf(": the request waits for it until %s, and is then decided by it like any other", created.Add(v1alpha1.TemplateWait).UTC().Format(time.RFC3339))
}

// owner returns the request that an object with this name would belong to.
func (k kind) owner(resource types.NamespacedName) (types.NamespacedName, bool) {
	name, found := strings.CutPrefix(resource.Name, k.prefix)
	return types.NamespacedName{Namespace: resource.Namespace, Name: name}, found && name != ""
}

// meta returns the metadata of an object that a request gets. The labels are for
// our cache and for people.
func (k kind) meta(req v1alpha1.Request) metav1.ObjectMeta {
	resource := k.resource(client.ObjectKeyFromObject(req))
	return metav1.ObjectMeta{
		Name: resource.Name, Namespace: resource.Namespace,
		Labels:      map[string]string{LabelManagedBy: managedBy, LabelRequest: req.GetName()},
		Annotations: map[string]string{AnnotationRequestUID: string(req.GetUID())},
	}
}

// podMeta is the metadata of an access Pod of a template, as far as it is the same for every
// request.
func podMeta(t *v1alpha1.PodAccessTemplate) metav1.ObjectMeta {
	meta := podAccess.meta(&v1alpha1.PodAccessRequest{})
	if t.Spec.Egress != nil {
		meta.Labels[v1alpha1.LabelEgress] = ""
	}
	return meta
}

// ownedBy returns the reference that makes a request the owner of an object.
func (k kind) ownedBy(req v1alpha1.Request) metav1.OwnerReference {
	owner := metav1.NewControllerRef(req, v1alpha1.GroupVersion.WithKind(k.request))
	// Blocking the owner's deletion would need a right on its finalizers.
	owner.BlockOwnerDeletion = nil
	return *owner
}

// owns reports whether an object says that a request of this kind controls it: the
// one with the UID, or any if uid is "".
func (k kind) owns(object metav1.Object, uid types.UID) bool {
	owner := metav1.GetControllerOf(object)
	return owner != nil && owner.Kind == k.request && owner.APIVersion == v1alpha1.GroupVersion.String() && (uid == "" || owner.UID == uid)
}

// eachRequest calls visit for every request of a list.
func eachRequest(list client.ObjectList, visit func(v1alpha1.Request)) {
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
