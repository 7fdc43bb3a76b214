// Command library does what plain does, on package manager: without a command
// line, which is the program's own business.
package main

import (
	"context"
	"os"

	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/manager"
)

func label(_ context.Context, pod *corev1.Pod, _ *extension.Request) error {
	if pod.Labels == nil {
		pod.Labels = map[string]string{}
	}
	pod.Labels["weight"] = "library"
	return nil
}

func main() {
	mgr, err := manager.New(manager.Options{Namespaces: []string{os.Getenv("NAMESPACE")}, Watching: manager.WatchingOptions{LeaderElection: true}})
	if err != nil {
		panic(err)
	}
	if err := mgr.AddExtension(extension.MutatingFunc(label, extension.Scope{Name: "label"})); err != nil {
		panic(err)
	}
	if err := mgr.Start(ctrl.SetupSignalHandler()); err != nil {
		panic(err)
	}
}
