// Command noexec denies terminals in kubectl exec: a command for a script may run
// in a container, a shell for a person may not.
//
// A connection to a Pod is an admission too, with the operation CONNECT. Its object
// is not the Pod but the options of the connection.
package main

import (
	"context"

	corev1 "k8s.io/api/core/v1"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/manager"
	"github.com/admitkit/admitkit/manager/command"
)

// validate denies an exec with a terminal. req.Name is the name of the Pod.
func validate(_ context.Context, exec *corev1.PodExecOptions, req *extension.Request) error {
	if exec.TTY {
		return extension.Denyf("Pod %s: no terminals in kubectl exec: leave out -t", req.Name)
	}
	return nil
}

func main() {
	command.Main(command.New("noexec", func(mgr *manager.Manager) error {
		return mgr.AddExtension(extension.ValidatingFunc(validate, extension.Scope{
			Name:  "noexec",
			Rules: extension.Connect("pods/exec"),
		}))
	}))
}
