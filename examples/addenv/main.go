// Command addenv is the smallest complete extension: it adds an environment
// variable to every container of each new Pod in a namespace.
//
//	addenv -namespace apps -advertise-host 192.0.2.7
package main

import (
	"context"
	"flag"
	"log"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/manager/signals"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/manager"
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
	var options manager.Options
	var env AddEnv
	flag.StringVar(&options.Namespace, "namespace", "default", "namespace whose Pods get the variable")
	flag.StringVar(&options.AdvertiseHost, "advertise-host", "127.0.0.1", "host at which the API server finds this program")
	flag.StringVar(&options.KubeConfig, "kubeconfig", "", "kubeconfig file")
	flag.StringVar(&env.Name, "name", "HELLO", "name of the variable")
	flag.StringVar(&env.Value, "value", "from admitkit", "value of the variable")
	flag.Parse()
	options.OperatorFingerprint = "addenv"
	options.UnregisterOnStop = true // it comes and goes: new Pods must not wait for it

	mgr, err := manager.New(options)
	if err != nil {
		log.Fatal(err)
	}
	if err := mgr.AddExtension(env); err != nil {
		log.Fatal(err)
	}
	if err := mgr.Start(signals.SetupSignalHandler()); err != nil {
		log.Fatal(err)
	}
}
