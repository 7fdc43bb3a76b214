package admission

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/operator/access/internal/grant"
	"github.com/admitkit/admitkit/operator/access/internal/kube"
	"github.com/admitkit/admitkit/operator/access/internal/pod"
	"github.com/admitkit/admitkit/operator/access/internal/rules"
	"github.com/admitkit/admitkit/operator/access/internal/workload"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/egress"
)

// templateRules has the rules of templates for Pods, and treats Pods that name one.
type templateRules struct{ *kube.Connection }

// validatePodTemplate refuses templates that could give nobody access.
func (a *templateRules) validatePodTemplate(ctx context.Context, t *v1alpha1.PodAccessTemplate, req *extension.Request) error {
	if refused := a.Places.Closed(req.Namespace); refused != nil {
		return extension.Deny(refused.Message)
	}
	if err := t.Unreadable(); err != nil {
		return extension.Deny(err.Error())
	}
	limit, err := a.validateConfig(&t.Spec.AccessConfig)
	if err != nil {
		return err
	}
	if t.Spec.AccessConfig.OnExpiry == v1alpha1.ExpiryEndSession {
		return extension.Deny("spec.accessConfig.onExpiry: EndSession is for exec access: the Pod of pod access is deleted at the end, and its sessions with it; leave it out")
	}
	if t.Spec.ControllerTargetRef == nil && t.Spec.PodSpec == nil {
		return extension.Deny("one of spec.controllerTargetRef and spec.podSpec must be set")
	}
	if err := a.validateEgress(t, req); err != nil {
		return err
	}
	var target *workload.Workload
	if ref := t.Spec.ControllerTargetRef; ref != nil {
		target, err = workload.Find(ctx, a.Live, req.Namespace, *ref)
		if workload.Missing(err) {
			req.Warnf("target %s does not exist yet: the template is checked without it", ref)
			return a.validateWithoutTarget(t, limit)
		}
		if err != nil {
			return err
		}
	}
	made, err := pod.New(rules.PodMeta(t), t, target, limit)
	if err == nil {
		err = rules.FitsEgress(&a.Egress, t, made)
	}
	if err != nil {
		return extension.Denyf("%w", err)
	}
	if target != nil && target.Selector != nil && target.Selects(made.Labels) {
		req.Warnf("podLabels make the access Pod look like one of %s to Services", t.Spec.ControllerTargetRef)
	}
	return nil
}

// validateEgress refuses an egress that cannot be held, and warns of one that says more than it seems to, or that
// nothing holds.
func (a *templateRules) validateEgress(t *v1alpha1.PodAccessTemplate, req *extension.Request) error {
	if err := rules.FitsEgress(&a.Egress, t, nil); err != nil {
		return extension.Denyf("%w", err)
	}
	if t.Spec.Egress == nil {
		return nil
	}
	for _, warning := range egress.Warnings(t.Spec.Egress, &a.Egress) {
		req.Warnf("spec.egress.%s", warning)
	}
	if a.Egress.Mode == egress.ModeOff {
		req.Warnf("spec.egress: nothing holds access Pods to it, because the operator has set --access-network-policy to off")
	}
	return nil
}

// validateWithoutTarget checks a template as far as it does not depend on its target:
// not the names of containers, nor patches.
func (a *templateRules) validateWithoutTarget(t *v1alpha1.PodAccessTemplate, limit time.Duration) error {
	if config := t.Spec.ControllerTargetMutationConfig; config != nil {
		if len(config.PatchSpecOperations) > 0 {
			return nil
		}
		t = t.DeepCopy()
		t.Spec.ControllerTargetMutationConfig.DefaultContainerName = ""
	}
	placeholder := &workload.Workload{Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main"}}}}}
	made, err := pod.New(rules.PodMeta(t), t, placeholder, limit)
	if err == nil {
		err = rules.FitsEgress(&a.Egress, t, made)
	}
	if err != nil {
		return extension.Denyf("%w", err)
	}
	return nil
}

// validateExecTemplate refuses templates that could give nobody access.
func (a *templateRules) validateExecTemplate(ctx context.Context, t *v1alpha1.ExecAccessTemplate, req *extension.Request) error {
	if refused := a.Places.Closed(req.Namespace); refused != nil {
		return extension.Deny(refused.Message)
	}
	if _, err := a.validateConfig(&t.Spec.AccessConfig); err != nil {
		return err
	}
	if t.Spec.AccessConfig.OnExpiry == v1alpha1.ExpiryEndSession && a.Sessions == nil {
		return extension.Deny("spec.accessConfig.onExpiry: " + rules.NoSessions(v1alpha1.ExpiryEndSession))
	}
	_, err := workload.Find(ctx, a.Live, req.Namespace, t.Spec.ControllerTargetRef)
	if workload.Missing(err) {
		req.Warnf("target %s does not exist yet", t.Spec.ControllerTargetRef)
		return nil
	}
	return err
}

// validateConfig returns the longest duration that a template allows.
func (a *templateRules) validateConfig(config *v1alpha1.AccessConfig) (time.Duration, error) {
	limit, err := rules.MaxDuration(config)
	if err != nil {
		return 0, extension.Deny(err.Error())
	}
	if refused := rules.NoCheck(a.CheckNames, config.Check); refused != nil {
		return 0, extension.Deny(refused.Message)
	}
	if config.Session != nil && a.Sessions == nil {
		return 0, extension.Deny("spec.accessConfig.session: " + rules.NoSessions(""))
	}
	example := &metav1.ObjectMeta{Namespace: "namespace", Name: "pod", Labels: map[string]string{}, Annotations: map[string]string{}}
	if _, err := rules.Command(config, example); err != nil {
		return 0, extension.Deny(err.Error())
	}
	return limit, nil
}

// treatPod treats a Pod that names a template when it is created as if it were made
// for a request: harmless, changed, and within the caps. It gives nobody access.
func (a *templateRules) treatPod(ctx context.Context, p *corev1.Pod, req *extension.Request) error {
	name, found := p.Annotations[grant.AnnotationTemplate]
	if !found {
		return nil
	}
	var t v1alpha1.PodAccessTemplate
	err := a.Live.Get(ctx, types.NamespacedName{Namespace: req.Namespace, Name: name}, &t)
	if apierrors.IsNotFound(err) {
		return extension.Denyf("annotation %s: PodAccessTemplate %s/%s does not exist", grant.AnnotationTemplate, req.Namespace, name)
	}
	if err != nil {
		return err
	}
	if t.Spec.Egress != nil {
		return extension.Denyf("annotation %s: PodAccessTemplate %s/%s has spec.egress, to which only the Pods of requests are held; make a request, or leave the annotation out", grant.AnnotationTemplate, req.Namespace, name)
	}
	limit, err := rules.MaxDuration(&t.Spec.AccessConfig)
	if err == nil {
		err = pod.Treat(p, nil, &t, limit)
	}
	if err != nil {
		return extension.Denyf("annotation %s: PodAccessTemplate %s/%s: %w", grant.AnnotationTemplate, req.Namespace, name, err)
	}
	// Even if annotations were purged: it says what the Pod is.
	metav1.SetMetaDataAnnotation(&p.ObjectMeta, grant.AnnotationTemplate, name)
	return nil
}
