// Command deployment spreads the Pods of each Deployment over zones. It changes
// the Deployment and not its Pods, so that `kubectl get deployment -o yaml` shows
// what runs, and no webhook is in the way of a Pod.
package main

import (
	"context"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/manager"
	"github.com/admitkit/admitkit/manager/command"
)

// spread leaves a Deployment alone whose author has thought about it, or that has
// no second Pod to spread.
func spread(_ context.Context, deployment *appsv1.Deployment, _ *extension.Request) error {
	replicas := deployment.Spec.Replicas
	pod := &deployment.Spec.Template.Spec
	if replicas == nil || *replicas < 2 || len(pod.TopologySpreadConstraints) > 0 {
		return nil
	}
	pod.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
		MaxSkew:           1,
		TopologyKey:       corev1.LabelTopologyZone,
		WhenUnsatisfiable: corev1.ScheduleAnyway,
		LabelSelector:     deployment.Spec.Selector.DeepCopy(),
		// Counts each revision by itself while a rollout is under way.
		MatchLabelKeys: []string{appsv1.DefaultDeploymentUniqueLabelKey},
	}}
	return nil
}

func main() {
	command.Main(command.New("deployment", func(mgr *manager.Manager) error {
		return mgr.AddExtension(extension.MutatingFunc(spread, extension.Scope{
			Name:  "spread",
			Rules: extension.Resources("apps", "v1", []string{"deployments"}, admissionregistrationv1.Create, admissionregistrationv1.Update),
		}))
	}))
}
