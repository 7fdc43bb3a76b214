package access

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/operator/access/internal/pod"
	"github.com/admitkit/admitkit/operator/access/internal/workload"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/egress"
)

// validatePodTemplate refuses templates that could give nobody access.
func (a *shared) validatePodTemplate(ctx context.Context, t *v1alpha1.PodAccessTemplate, req *extension.Request) error {
	if refused := a.places.closed(req.Namespace); refused != nil {
		return extension.Deny(refused.message)
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
		target, err = workload.Find(ctx, a.live, req.Namespace, *ref)
		if workload.Missing(err) {
			req.Warnf("target %s does not exist yet: the template is checked without it", ref)
			return a.validateWithoutTarget(t, limit)
		}
		if err != nil {
			return err
		}
	}
	made, err := pod.New(podMeta(t), t, target, limit)
	if err == nil {
		err = fitsEgress(&a.options.Egress, t, made)
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
func (a *shared) validateEgress(t *v1alpha1.PodAccessTemplate, req *extension.Request) error {
	if err := fitsEgress(&a.options.Egress, t, nil); err != nil {
		return extension.Denyf("%w", err)
	}
	if t.Spec.Egress == nil {
		return nil
	}
	for _, warning := range egress.Warnings(t.Spec.Egress, &a.options.Egress) {
		req.Warnf("spec.egress.%s", warning)
	}
	if a.options.Egress.Mode == egress.ModeOff {
		req.Warnf("spec.egress: nothing holds access Pods to it, because the operator has set --access-network-policy to off")
	}
	return nil
}

// validateWithoutTarget checks a template as far as it does not depend on its target:
// not the names of containers, nor patches.
func (a *shared) validateWithoutTarget(t *v1alpha1.PodAccessTemplate, limit time.Duration) error {
	if config := t.Spec.ControllerTargetMutationConfig; config != nil {
		if len(config.PatchSpecOperations) > 0 {
			return nil
		}
		t = t.DeepCopy()
		t.Spec.ControllerTargetMutationConfig.DefaultContainerName = ""
	}
	placeholder := &workload.Workload{Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main"}}}}}
	made, err := pod.New(podMeta(t), t, placeholder, limit)
	if err == nil {
		err = fitsEgress(&a.options.Egress, t, made)
	}
	if err != nil {
		return extension.Denyf("%w", err)
	}
	return nil
}

// validateExecTemplate refuses templates that could give nobody access.
func (a *shared) validateExecTemplate(ctx context.Context, t *v1alpha1.ExecAccessTemplate, req *extension.Request) error {
	if refused := a.places.closed(req.Namespace); refused != nil {
		return extension.Deny(refused.message)
	}
	if _, err := a.validateConfig(&t.Spec.AccessConfig); err != nil {
		return err
	}
	if t.Spec.AccessConfig.OnExpiry == v1alpha1.ExpiryEndSession && a.options.Sessions == nil {
		return extension.Deny("spec.accessConfig.onExpiry: " + noSessions(v1alpha1.ExpiryEndSession))
	}
	_, err := workload.Find(ctx, a.live, req.Namespace, t.Spec.ControllerTargetRef)
	if workload.Missing(err) {
		req.Warnf("target %s does not exist yet", t.Spec.ControllerTargetRef)
		return nil
	}
	return err
}

// validateConfig returns the longest duration that a template allows.
func (a *shared) validateConfig(config *v1alpha1.AccessConfig) (time.Duration, error) {
	limit, err := maxDuration(config)
	if err != nil {
		return 0, extension.Deny(err.Error())
	}
	if refused := a.noCheck(config.Check); refused != nil {
		return 0, extension.Deny(refused.message)
	}
	if config.Session != nil && a.options.Sessions == nil {
		return 0, extension.Deny("spec.accessConfig.session: " + noSessions(""))
	}
	example := &metav1.ObjectMeta{Namespace: "namespace", Name: "pod", Labels: map[string]string{}, Annotations: map[string]string{}}
	if _, err := accessCommand(config, example); err != nil {
		return 0, extension.Deny(err.Error())
	}
	return limit, nil
}

// treatPod treats a Pod that names a template when it is created as if it were made
// for a request: harmless, changed, and within the caps. It gives nobody access.
func (a *shared) treatPod(ctx context.Context, p *corev1.Pod, req *extension.Request) error {
	name, found := p.Annotations[AnnotationTemplate]
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
	if t.Spec.Egress != nil {
		return extension.Denyf("annotation %s: PodAccessTemplate %s/%s has spec.egress, to which only the Pods of requests are held; make a request, or leave the annotation out", AnnotationTemplate, req.Namespace, name)
	}
	limit, err := maxDuration(&t.Spec.AccessConfig)
	if err == nil {
		err = pod.Treat(p, nil, &t, limit)
	}
	if err != nil {
		return extension.Denyf("annotation %s: PodAccessTemplate %s/%s: %w", AnnotationTemplate, req.Namespace, name, err)
	}
	// Even if annotations were purged: it says what the Pod is.
	metav1.SetMetaDataAnnotation(&p.ObjectMeta, AnnotationTemplate, name)
	return nil
}
