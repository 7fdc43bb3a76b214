// Command wrapper starts the command of each container through a shell that
// limits it first, here its core files and the rights of what it writes:
//
//	command: [serve, --port=80]
//
// becomes
//
//	command: [/bin/sh, -c, 'ulimit -c 0; umask 027; exec "$@"', wrapped, serve, --port=80]
//
// A container that has no command runs what its image says, which nobody knows
// here; it is left alone, and the user is warned.
package main

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/manager"
	"github.com/admitkit/admitkit/manager/command"
)

// wrapping begins the command of a container that is wrapped; exec hands over the
// process, so that signals and the exit code are the program's own.
type wrapping []string

func newWrapping(script string) wrapping {
	return wrapping{"/bin/sh", "-c", script + `; exec "$@"`, "wrapped"}
}

// Mutate leaves args alone: they follow the command as before.
func (w wrapping) Mutate(_ context.Context, pod *corev1.Pod, req *extension.Request) error {
	for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			container := &containers[i]
			switch {
			case len(container.Command) == 0:
				req.Warnf("container %s has no command, so it is not wrapped", container.Name)
			case len(container.Command) < len(w) || !slices.Equal(container.Command[:len(w)], w):
				container.Command = slices.Concat(w, container.Command)
			}
		}
	}
	return nil
}

func main() {
	var script string
	cmd := command.New("wrapper", func(mgr *manager.Manager) error {
		return mgr.AddExtension(extension.Mutating(newWrapping(script), extension.Scope{Name: "wrapper"}))
	})
	cmd.PersistentFlags().StringVar(&script, "script", "ulimit -c 0; umask 027", "what the shell does before the command")
	command.Main(cmd)
}
