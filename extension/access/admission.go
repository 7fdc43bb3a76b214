package access

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/admitkit/admitkit/api/v1alpha1"
	"github.com/admitkit/admitkit/extension"
)

// admissions are the parts of the extension that answer admissions. What decides
// about access has failure policy Fail; sessions in Pods that are not ours, with
// which Fail would stop all of them while no replica runs, have Ignore.
func (a *Access) admissions() []any {
	fail, ignore := admissionregistrationv1.Fail, admissionregistrationv1.Ignore
	write := []admissionregistrationv1.OperationType{admissionregistrationv1.Create, admissionregistrationv1.Update}
	ours := func(name string, resources ...string) extension.Scope {
		return extension.Scope{
			Name: name, FailurePolicy: &fail, NamespaceSelector: a.namespaces(),
			Rules: extension.Resources(v1alpha1.GroupVersion.Group, v1alpha1.GroupVersion.Version, resources, write...),
		}
	}
	sessions := extension.Connect("pods/exec", "pods/attach", "pods/portforward")
	named := func(operator string) []admissionregistrationv1.MatchCondition {
		return []admissionregistrationv1.MatchCondition{{
			Name: "access-pod", Expression: fmt.Sprintf("%srequest.name.startsWith('%s')", operator, podAccess.prefix),
		}}
	}
	return []any{
		extension.Validating(&recordGuard{Access: a}, a.recordScope()),
		extension.Mutating(&stamp[*v1alpha1.PodAccessRequest]{a, podAccess}, ours("pod-access-requester", "podaccessrequests")),
		extension.Mutating(&stamp[*v1alpha1.ExecAccessRequest]{a, execAccess}, ours("exec-access-requester", "execaccessrequests")),
		extension.Validating(&requestRules[*v1alpha1.PodAccessRequest]{a, podAccess}, ours("pod-access-request", "podaccessrequests")),
		extension.Validating(&requestRules[*v1alpha1.ExecAccessRequest]{a, execAccess}, ours("exec-access-request", "execaccessrequests")),
		extension.Validating(extension.ValidatorFunc[*v1alpha1.PodAccessTemplate](a.validatePodTemplate), ours("pod-access-template", "podaccesstemplates")),
		extension.Validating(extension.ValidatorFunc[*v1alpha1.ExecAccessTemplate](a.validateExecTemplate), ours("exec-access-template", "execaccesstemplates")),
		extension.Mutating(extension.MutatorFunc[*corev1.Pod](a.treatPod), extension.Scope{
			Name: "access-pod", FailurePolicy: &fail, Rules: extension.Pods(),
			MatchConditions: []admissionregistrationv1.MatchCondition{{
				Name: "names-a-template", Expression: fmt.Sprintf("has(object.metadata.annotations) && '%s' in object.metadata.annotations", AnnotationTemplate),
			}},
		}),
		extension.Validating(&guard{a}, extension.Scope{
			Name: "access-pod-session", FailurePolicy: &fail, NamespaceSelector: a.namespaces(),
			Rules:           slices.Concat(sessions, extension.Resources("", "v1", []string{"pods/ephemeralcontainers"}, admissionregistrationv1.Update)),
			MatchConditions: named(""),
		}),
		extension.Validating(&guard{a}, extension.Scope{
			Name: "exec-access-session", FailurePolicy: &ignore, Rules: sessions, MatchConditions: named("!"),
		}),
	}
}

// namespaces covers every namespace that requests are granted in, also those
// that webhooks with Fail leave out by default: a request that no webhook has
// seen could name anybody as its requester. No Pod waits for these webhooks, so
// that nothing can lock itself out.
func (a *Access) namespaces() *metav1.LabelSelector {
	if a.options.Namespace != "" {
		return nil // the manager's namespace
	}
	return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
		{Key: corev1.LabelMetadataName, Operator: metav1.LabelSelectorOpExists},
	}}
}

// stamp writes into a request who made it, and how long it lasts.
type stamp[T v1alpha1.Request] struct {
	*Access
	kind kind
}

// Register connects to the cluster.
func (s *stamp[T]) Register(mgr extension.Manager) error { return s.setup(mgr) }

// Mutate replaces whatever a client says about the requester. The template's
// default duration, and that it wants a single use, become part of the request,
// so that no later change of the template prolongs it.
func (s *stamp[T]) Mutate(ctx context.Context, obj T, req *extension.Request) error {
	spec := obj.GetRequestSpec()
	if req.Operation == admissionv1.Update {
		old := s.kind.newRequest()
		if err := req.Old(old); err != nil {
			return err
		}
		// A manifest that is applied again names none of them.
		if spec.Requester == nil {
			spec.Requester = old.GetRequestSpec().Requester
		}
		if spec.Duration == "" {
			spec.Duration = old.GetRequestSpec().Duration
		}
		spec.SingleUse = spec.SingleUse || old.GetRequestSpec().SingleUse
		return nil
	}
	user := req.User()
	spec.Requester = &v1alpha1.Requester{Username: user.Username, UID: user.UID, Groups: user.Groups}
	t := s.kind.newTemplate()
	err := s.live.Get(ctx, types.NamespacedName{Namespace: req.Namespace, Name: spec.TemplateName}, t)
	if apierrors.IsNotFound(err) || spec.TemplateName == "" {
		return nil // the validating step says so
	}
	if err != nil {
		return fmt.Errorf("reading the template: %w", err)
	}
	if spec.Duration == "" {
		spec.Duration = t.GetAccessConfig().DefaultDuration
	}
	spec.SingleUse = spec.SingleUse || t.GetAccessConfig().SingleUse
	return nil
}

// requestRules refuses requests that the template does not allow.
type requestRules[T v1alpha1.Request] struct {
	*Access
	kind kind
}

// Register connects to the cluster.
func (v *requestRules[T]) Register(mgr extension.Manager) error { return v.setup(mgr) }

// Validate decides about a request.
func (v *requestRules[T]) Validate(ctx context.Context, obj T, req *extension.Request) error {
	var err error
	if req.Operation == admissionv1.Update {
		err = v.validateUpdate(ctx, obj, req)
	} else {
		err = v.validateCreate(ctx, obj, req)
	}
	var refused *refusal
	if errors.As(err, &refused) {
		denied.WithLabelValues(v.kind.name, refused.reason).Inc()
		return extension.Deny(refused.message)
	}
	return err
}

func (v *requestRules[T]) validateCreate(ctx context.Context, obj T, req *extension.Request) error {
	spec, user := obj.GetRequestSpec(), req.User()
	// A webhook after ours may have changed it.
	if want := (&v1alpha1.Requester{Username: user.Username, UID: user.UID, Groups: user.Groups}); !apiequality.Semantic.DeepEqual(spec.Requester, want) {
		return refuse(v1alpha1.ReasonRequesterUnknown, "spec.requester is not who makes the request, %q", user.Username)
	}
	if spec.SingleUse && !v.options.SingleUse {
		return refuse(v1alpha1.ReasonSingleUse, "spec.singleUse is held to by the enforcement of the audit extension, which does not run here: "+
			"make a request, by a template, without it")
	}
	t, err := v.template(ctx, req.Namespace, spec.TemplateName)
	if err != nil {
		return err
	}
	if refused := allows(t.GetAccessConfig(), spec.TemplateName, spec); refused != nil {
		return refused
	}
	if obj.GetTargetPod() == "" {
		return nil
	}
	target, err := findWorkload(ctx, v.live, req.Namespace, *t.GetTargetRef())
	if err == nil {
		_, err = target.ownedPod(ctx, v.live, obj.GetTargetPod())
	}
	if missing(err) {
		return refuse(v1alpha1.ReasonUnknownPod, "Pod %s/%s is not known: %v", req.Namespace, obj.GetTargetPod(), err)
	}
	return err
}

func (v *requestRules[T]) template(ctx context.Context, namespace, name string) (v1alpha1.Template, error) {
	t := v.kind.newTemplate()
	err := v.live.Get(ctx, types.NamespacedName{Namespace: namespace, Name: name}, t)
	if apierrors.IsNotFound(err) {
		return nil, refuse(v1alpha1.ReasonTemplateMissing, "%s %s/%s does not exist", v.kind.template, namespace, name)
	}
	if err != nil {
		return nil, fmt.Errorf("reading the template: %w", err)
	}
	return t, nil
}

func (v *requestRules[T]) validateUpdate(ctx context.Context, obj T, req *extension.Request) error {
	old := v.kind.newRequest()
	if err := req.Old(old); err != nil {
		return err
	}
	spec, before := obj.GetRequestSpec(), old.GetRequestSpec()
	switch {
	case spec.TemplateName != before.TemplateName:
		return refuse(reasonChanged, "spec.templateName cannot be changed; make another request")
	case obj.GetTargetPod() != old.GetTargetPod():
		return refuse(reasonChanged, "spec.targetPod cannot be changed; make another request")
	case !apiequality.Semantic.DeepEqual(spec.Requester, before.Requester):
		return refuse(reasonChanged, "spec.requester cannot be changed")
	case spec.Duration == before.Duration:
		return nil
	}
	if user := req.User().Username; before.Requester == nil || user != before.Requester.Username {
		return refuse(v1alpha1.ReasonNotAllowed, "spec.duration can be changed by the requester only, not by %q", user)
	}
	was, err := time.ParseDuration(before.Duration)
	if err != nil {
		return refuse(v1alpha1.ReasonDurationInvalid, "spec.duration: %q, as it was, is no duration; make another request", before.Duration)
	}
	duration, err := time.ParseDuration(spec.Duration)
	if err != nil || duration < 0 {
		return refuse(v1alpha1.ReasonDurationInvalid, "spec.duration: %q is not a duration such as 90m or 1h30m", spec.Duration)
	}
	// Shortening needs no template, which may be gone.
	if duration <= was {
		return nil
	}
	if end, err := v1alpha1.EndOf(old); err != nil || !v.options.Clock.Now().Before(end) {
		return refuse(reasonEnded, "access ended at %s and cannot be extended; make another request", end.UTC().Format(time.RFC3339))
	}
	t, err := v.template(ctx, req.Namespace, spec.TemplateName)
	if err != nil {
		return err
	}
	// As who they are now: they may have left the group since they asked.
	now := spec.DeepCopy()
	now.Requester.Groups = req.User().Groups
	if refused := allows(t.GetAccessConfig(), spec.TemplateName, now); refused != nil {
		return refused
	}
	return nil
}

// validatePodTemplate refuses templates by which nobody could be given access.
func (a *Access) validatePodTemplate(ctx context.Context, t *v1alpha1.PodAccessTemplate, req *extension.Request) error {
	if err := validateConfig(&t.Spec.AccessConfig); err != nil {
		return err
	}
	var target *workload
	if ref := t.Spec.ControllerTargetRef; ref != nil {
		var err error
		target, err = findWorkload(ctx, a.live, req.Namespace, *ref)
		if missing(err) {
			req.Warnf("target %s does not exist yet: the template is checked without it", ref)
			// What can be checked without it.
			target = &workload{template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main"}}}}}
			if config := t.Spec.ControllerTargetMutationConfig; config != nil && len(config.PatchSpecOperations) == 0 {
				t = t.DeepCopy()
				t.Spec.ControllerTargetMutationConfig.DefaultContainerName = ""
			} else if config != nil {
				return nil // a patch is of what is not there
			}
		} else if err != nil {
			return err
		}
	} else if t.Spec.PodSpec == nil {
		return extension.Deny("one of spec.controllerTargetRef and spec.podSpec must be set")
	}
	pod, err := newPod(t, target)
	if err != nil {
		return extension.Denyf("%w", err)
	}
	if target != nil && target.selector != nil && len(pod.Labels) > 0 {
		if selector, err := metav1.LabelSelectorAsSelector(target.selector); err == nil && selector.Matches(labels.Set(pod.Labels)) {
			req.Warnf("podLabels make the access Pod look like one of %s to Services", t.Spec.ControllerTargetRef)
		}
	}
	return nil
}

// validateExecTemplate refuses templates by which nobody could be given access.
func (a *Access) validateExecTemplate(ctx context.Context, t *v1alpha1.ExecAccessTemplate, req *extension.Request) error {
	if err := validateConfig(&t.Spec.AccessConfig); err != nil {
		return err
	}
	if _, err := findWorkload(ctx, a.live, req.Namespace, t.Spec.ControllerTargetRef); missing(err) {
		req.Warnf("target %s does not exist yet", t.Spec.ControllerTargetRef)
	} else if err != nil {
		return err
	}
	return nil
}

func validateConfig(config *v1alpha1.AccessConfig) error {
	if _, err := maxDuration(config); err != nil {
		return extension.Deny(err.Error())
	}
	example := &metav1.ObjectMeta{Namespace: "namespace", Name: "pod", Labels: map[string]string{}, Annotations: map[string]string{}}
	if _, err := accessCommand(config, example); err != nil {
		return extension.Deny(err.Error())
	}
	return nil
}

// treatPod treats a Pod that names a template when it is created as if it were
// made for a request: it is made harmless, mutated, and kept within the caps.
// It decides nothing about who may use it.
func (a *Access) treatPod(ctx context.Context, pod *corev1.Pod, req *extension.Request) error {
	name, found := pod.Annotations[AnnotationTemplate]
	if !found {
		return nil
	}
	var t v1alpha1.PodAccessTemplate
	err := a.live.Get(ctx, types.NamespacedName{Namespace: req.Namespace, Name: name}, &t)
	if apierrors.IsNotFound(err) {
		return extension.Denyf("annotation %s: PodAccessTemplate %s/%s does not exist", AnnotationTemplate, req.Namespace, name)
	}
	if err != nil {
		return err
	}
	limit, err := maxDuration(&t.Spec.AccessConfig)
	if err == nil {
		err = treat(pod, nil, &t)
	}
	if err != nil {
		return extension.Denyf("annotation %s: PodAccessTemplate %s/%s: %w", AnnotationTemplate, req.Namespace, name, err)
	}
	backstop(&pod.Spec, limit)
	// Also where annotations were purged: it says what the Pod is.
	metav1.SetMetaDataAnnotation(&pod.ObjectMeta, AnnotationTemplate, name)
	return nil
}
