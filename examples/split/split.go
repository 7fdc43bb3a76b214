// Package split is an extension in two programs, each with the rights of its
// task: the registrar writes the webhook configurations and has the CA's key, the
// server answers admissions and reads nothing but its serving certificate. Who
// takes over the server, which listens on the network, can neither register
// webhooks nor sign for others.
//
// Both add the same extensions, so that names and paths agree.
package split

import (
	"context"
	"slices"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/manager"
	"github.com/admitkit/admitkit/manager/command"
)

// withoutToken leaves a Pod without a token that does not ask for one.
func withoutToken(_ context.Context, pod *corev1.Pod, _ *extension.Request) error {
	if pod.Spec.AutomountServiceAccountToken == nil {
		pod.Spec.AutomountServiceAccountToken = new(false)
	}
	return nil
}

// Command returns the command line with these subcommands only. The name that is given
// to New is that of the installation, and so the same in both programs.
func Command(name string, subcommands ...string) *cobra.Command {
	cmd := command.New("split", func(mgr *manager.Manager) error {
		return mgr.AddExtension(extension.MutatingFunc(withoutToken, extension.Scope{Name: "without-token"}))
	})
	cmd.Use = name
	for _, sub := range cmd.Commands() {
		if !slices.Contains(subcommands, sub.Name()) {
			cmd.RemoveCommand(sub)
		}
	}
	return cmd
}
