// Command ordinal tells each Pod of a StatefulSet its ordinal: the containers of
// the Pod db-2 get POD_ORDINAL=2. It takes it from the Pod's name.
//
//	ordinal review -f pod.yaml
package main

import (
	"context"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/manager"
	"github.com/admitkit/admitkit/manager/command"
)

const variable = "POD_ORDINAL"

// addOrdinal leaves a Pod alone whose name does not end in a number, and a
// variable that the author of the Pod has set.
func addOrdinal(_ context.Context, pod *corev1.Pod, _ *extension.Request) error {
	ordinal, found := ordinalOf(pod.Name)
	if !found {
		return nil
	}
	for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			env := &containers[i].Env
			if !slices.ContainsFunc(*env, func(v corev1.EnvVar) bool { return v.Name == variable }) {
				*env = append(*env, corev1.EnvVar{Name: variable, Value: ordinal})
			}
		}
	}
	return nil
}

// ordinalOf returns the number after the last dash of a name.
func ordinalOf(name string) (ordinal string, found bool) {
	dash := strings.LastIndex(name, "-")
	if dash < 0 {
		return "", false
	}
	number, err := strconv.ParseUint(name[dash+1:], 10, 31)
	if err != nil {
		return "", false
	}
	return strconv.FormatUint(number, 10), true
}

func main() {
	command.Main(command.New("ordinal", func(mgr *manager.Manager) error {
		return mgr.AddExtension(extension.MutatingFunc(addOrdinal, extension.Scope{Name: "ordinal"}))
	}))
}
