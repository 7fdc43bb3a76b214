package recorded

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// The kubelet replaces $(NAME) in the command of a container by a variable, and $$ by $:
// https://kubernetes.io/docs/tasks/inject-data-application/define-command-argument-container/
// In an exec it does not.

// Plainly returns a command as the kubelet would make it without variables.
func Plainly(command []string) []string { return replaced(command, "$$", "$") }

// Escaped returns the command of which the kubelet makes this one.
func Escaped(command []string) []string { return replaced(command, "$", "$$") }

func replaced(command []string, old, by string) []string {
	all := make([]string, len(command))
	for i, argument := range command {
		all[i] = strings.ReplaceAll(argument, old, by)
	}
	return all
}

// Expands reports whether the kubelet would replace a variable of the container in its
// command: the ticket cannot be for a command that only the kubelet knows.
func Expands(c *corev1.EphemeralContainer) bool {
	return slices.ContainsFunc(slices.Concat(c.Command, c.Args), func(argument string) bool {
		if len(c.EnvFrom) > 0 && strings.Contains(argument, "$(") {
			return true
		}
		return slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool { return strings.Contains(argument, "$("+e.Name+")") })
	})
}
