// Command addenv is the smallest complete extension: it adds an environment
// variable to every container of each new Pod in a namespace.
//
//	addenv start --namespace apps --advertise-host 192.0.2.7
package main

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/manager"
	"github.com/admitkit/admitkit/manager/command"
)

// AddEnv adds an environment variable.
type AddEnv struct {
	Name, Value string
}

// Handle changes the Pod and returns the patch that leads there.
func (e AddEnv) Handle(_ context.Context, mgr extension.Manager, pod *corev1.Pod, req admission.Request) admission.Response {
	for i := range pod.Spec.Containers {
		e.add(&pod.Spec.Containers[i])
	}
	for i := range pod.Spec.InitContainers {
		e.add(&pod.Spec.InitContainers[i])
	}
	return mgr.PatchFromPod(req, pod)
}

// add leaves a variable alone that the author of the Pod has set.
func (e AddEnv) add(container *corev1.Container) {
	for _, env := range container.Env {
		if env.Name == e.Name {
			return
		}
	}
	container.Env = append(container.Env, corev1.EnvVar{Name: e.Name, Value: e.Value})
}

func main() {
	var env AddEnv
	cmd := command.New("addenv", func(mgr *manager.Manager) error { return mgr.AddExtension(env) })
	cmd.PersistentFlags().StringVar(&env.Name, "name", "HELLO", "name of the variable")
	cmd.PersistentFlags().StringVar(&env.Value, "value", "from admitkit", "value of the variable")
	command.Main(cmd)
}
