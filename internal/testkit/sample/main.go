// Command sample is a user's own operator, which the end-to-end tests install. It has
// a number of extensions in one scope. Each of them stamps every new Pod with an
// annotation and an environment variable.
package main

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/manager"
	"github.com/admitkit/admitkit/manager/command"
)

func main() {
	var extensions int
	var scope string
	cmd := command.New("sample", func(mgr *manager.Manager) error {
		for i := range extensions {
			stamp := extension.MutatorFunc[*corev1.Pod](stamp{number: i + 1}.mutate)
			if err := mgr.AddExtension(extension.Mutating(stamp, extension.Scope{Name: scope})); err != nil {
				return err
			}
		}
		return nil
	})
	cmd.PersistentFlags().IntVar(&extensions, "extensions", 1, "number of extensions")
	cmd.PersistentFlags().StringVar(&scope, "scope", "stamp", "name of their scope and webhook")
	command.Main(cmd)
}

type stamp struct{ number int }

func (s stamp) mutate(_ context.Context, pod *corev1.Pod, _ *extension.Request) error {
	metav1.SetMetaDataAnnotation(&pod.ObjectMeta, fmt.Sprintf("sample.admitkit.dev/stamp-%d", s.number), "stamped")
	for i := range pod.Spec.Containers {
		container := &pod.Spec.Containers[i]
		container.Env = append(container.Env, corev1.EnvVar{Name: fmt.Sprintf("STAMP_%d", s.number), Value: "stamped"})
	}
	return nil
}
