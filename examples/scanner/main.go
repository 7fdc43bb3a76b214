// Command scanner lets no Pod start whose images a scanner objects to: it puts an
// init container first, which gets the images as arguments and fails if one of
// them is bad.
//
//	scanner start --scanner-image registry.example.com/scanner:1 ...
package main

import (
	"context"
	"slices"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/manager"
	"github.com/admitkit/admitkit/manager/command"
)

const name = "scan-images"

type scanner struct {
	image string
}

// Mutate replaces a container of that name: the Pod cannot bring its own, and
// when other webhooks have added containers, a second call sees their images.
func (s *scanner) Mutate(_ context.Context, pod *corev1.Pod, _ *extension.Request) error {
	others := slices.DeleteFunc(pod.Spec.InitContainers, func(c corev1.Container) bool { return c.Name == name })
	images := []string{}
	for _, container := range slices.Concat(others, pod.Spec.Containers) {
		if !slices.Contains(images, container.Image) {
			images = append(images, container.Image)
		}
	}
	container := corev1.Container{
		Name:  name,
		Image: s.image,
		Args:  append([]string{"scan", "--"}, images...),
		Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse("1"), corev1.ResourceMemory: resource.MustParse("512Mi"),
		}},
		SecurityContext: &corev1.SecurityContext{AllowPrivilegeEscalation: new(false), RunAsNonRoot: new(true)},
	}
	pod.Spec.InitContainers = append([]corev1.Container{container}, others...)
	return nil
}

func main() {
	s := &scanner{}
	cmd := command.New("scanner", func(mgr *manager.Manager) error {
		// Containers that a later webhook adds are to be scanned too.
		ifNeeded := extension.Scope{Name: "scanner", ReinvocationPolicy: new(admissionregistrationv1.IfNeededReinvocationPolicy)}
		return mgr.AddExtension(extension.Mutating(s, ifNeeded))
	})
	cmd.PersistentFlags().StringVar(&s.image, "scanner-image", "registry.example.com/scanner:1", "image of the scanner")
	command.Main(cmd)
}
