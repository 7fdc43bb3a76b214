// Command program does what plain does, with the command line of
// manager/command: start, register, serve, manifests, review and the rest.
package main

import (
	"context"

	corev1 "k8s.io/api/core/v1"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/manager"
	"github.com/admitkit/admitkit/manager/command"
)

func label(_ context.Context, pod *corev1.Pod, _ *extension.Request) error {
	if pod.Labels == nil {
		pod.Labels = map[string]string{}
	}
	pod.Labels["weight"] = "program"
	return nil
}

func main() {
	command.Main(command.New("program", func(mgr *manager.Manager) error {
		return mgr.AddExtension(extension.MutatingFunc(label, extension.Scope{Name: "label"}))
	}))
}
