package memcluster

import (
	"net/http"
	"slices"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// review answers a SelfSubjectReview, by the rights of the client the reviews of what it
// may do itself, and by the authorizer those of what others may do. Other reviews, such as
// a TokenReview, stay unanswered, which means no.
func (c *Cluster) review(p *call, rights *Rights) (any, error) {
	if p.Method != http.MethodPost {
		return nil, apierrors.NewGenericServerResponse(http.StatusMethodNotAllowed, strings.ToLower(p.Method), schema.GroupResource{}, "", "", 0, false)
	}
	object, err := p.object()
	if err != nil {
		return nil, err
	}
	switch p.resource.Resource {
	case "selfsubjectreviews":
		return object, unstructured.SetNestedField(object.Object, username, "status", "userInfo", "username")
	case "selfsubjectrulesreviews":
		return rulesReview(object, rights)
	case "subjectaccessreviews", "localsubjectaccessreviews", "selfsubjectaccessreviews":
		return c.accessReview(p, object, rights)
	}
	return object, nil
}

func (c *Cluster) accessReview(p *call, object *unstructured.Unstructured, rights *Rights) (any, error) {
	var review authorizationv1.LocalSubjectAccessReview // it has the fields of all three
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &review); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	errs, spec := invalid(p.resource.Resource, &review), review.Spec
	if len(errs) > 0 {
		return nil, apierrors.NewInvalid(schema.GroupKind{Group: p.resource.Group}, "", errs) // without the kind, as an API server does
	}
	if p.resource.Resource == "localsubjectaccessreviews" && review.Namespace != p.namespace {
		return nil, apierrors.NewBadRequest("spec.resourceAttributes.namespace must match namespace: " + p.namespace)
	}
	allowed := c.authorizer != nil && c.authorizer(spec)
	if p.resource.Resource == "selfsubjectaccessreviews" {
		allowed = rights == nil || rights.allows(spec)
	}
	return object, unstructured.SetNestedField(object.Object, allowed, "status", "allowed")
}

// invalid follows k8s.io/kubernetes/pkg/apis/authorization/validation, without selectors.
func invalid(resource string, review *authorizationv1.LocalSubjectAccessReview) (all field.ErrorList) {
	path, spec, local := field.NewPath("spec"), review.Spec, resource == "localsubjectaccessreviews"
	attributes := (*struct{ Path, Verb string })(spec.NonResourceAttributes) // without tags, as in the internal version
	if (spec.ResourceAttributes == nil) == (spec.NonResourceAttributes == nil) {
		all = append(all, field.Invalid(path, attributes, "exactly one of nonResourceAttributes or resourceAttributes must be specified"))
	}
	if spec.User == "" && len(spec.Groups) == 0 && resource != "selfsubjectaccessreviews" {
		all = append(all, field.Invalid(path.Child("user"), spec.User, "at least one of user or group must be specified"))
	}
	metadata, empty := *review.ObjectMeta.DeepCopy(), "must be empty"
	metadata.ManagedFields = nil
	if local {
		metadata.Namespace, empty = "", "must be empty except for namespace"
	}
	if !equality.Semantic.DeepEqual(metadata, metav1.ObjectMeta{}) {
		all = append(all, field.Invalid(field.NewPath("metadata"), review.ObjectMeta, empty))
	}
	if local && spec.ResourceAttributes != nil && spec.ResourceAttributes.Namespace != review.Namespace {
		all = append(all, field.Invalid(field.NewPath("spec.resourceAttributes.namespace"), spec.ResourceAttributes.Namespace, "must match metadata.namespace"))
	}
	if local && spec.NonResourceAttributes != nil {
		all = append(all, field.Invalid(field.NewPath("spec.nonResourceAttributes"), attributes, "disallowed on this kind of request"))
	}
	return all
}

// allows reports whether the rights allow what a review asks about.
func (r *Rights) allows(spec authorizationv1.SubjectAccessReviewSpec) bool {
	if asked := spec.ResourceAttributes; asked != nil {
		return r.allow(right{asked.Verb, asked.Group, asked.Resource, asked.Subresource, asked.Namespace, asked.Name})
	}
	path := spec.NonResourceAttributes.Path
	return slices.ContainsFunc(r.byNamespace[""], func(rule rbacv1.PolicyRule) bool {
		return matches(rule.Verbs, spec.NonResourceAttributes.Verb) && slices.ContainsFunc(rule.NonResourceURLs, func(pattern string) bool {
			start, open := strings.CutSuffix(pattern, "*")
			return pattern == path || open && strings.HasPrefix(path, start)
		})
	})
}

// rulesReview answers with the rights of the client in a namespace.
func rulesReview(object *unstructured.Unstructured, rights *Rights) (any, error) {
	var review authorizationv1.SelfSubjectRulesReview
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &review); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	if review.Spec.Namespace == "" {
		return nil, apierrors.NewBadRequest("no namespace on request")
	}
	all := []string{"*"}
	rules := []rbacv1.PolicyRule{{Verbs: all, APIGroups: all, Resources: all}, {Verbs: all, NonResourceURLs: all}}
	if rights != nil {
		rules = slices.Concat(rights.byNamespace[""], rights.byNamespace[review.Spec.Namespace])
	}
	review.Status.ResourceRules, review.Status.NonResourceRules = []authorizationv1.ResourceRule{}, []authorizationv1.NonResourceRule{}
	for _, rule := range rules {
		if len(rule.Resources) > 0 {
			review.Status.ResourceRules = append(review.Status.ResourceRules, authorizationv1.ResourceRule{
				Verbs: rule.Verbs, APIGroups: rule.APIGroups, Resources: rule.Resources, ResourceNames: rule.ResourceNames,
			})
		}
		if len(rule.NonResourceURLs) > 0 {
			review.Status.NonResourceRules = append(review.Status.NonResourceRules, authorizationv1.NonResourceRule{Verbs: rule.Verbs, NonResourceURLs: rule.NonResourceURLs})
		}
	}
	return review, nil
}
