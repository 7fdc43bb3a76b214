package command_test

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/manager"
	"github.com/admitkit/admitkit/manager/command"
)

// A program with a flag of its own, which reviews a manifest here. Its main
// function calls command.Main.
func ExampleNew() {
	var forbidden string
	cmd := command.New("images", func(mgr *manager.Manager) error {
		check := func(_ context.Context, pod *corev1.Pod, _ *extension.Request) error {
			for _, container := range pod.Spec.Containers {
				if strings.HasPrefix(container.Image, forbidden) {
					return extension.Denyf("container %s: no images from %s", container.Name, forbidden)
				}
			}
			return nil
		}
		return mgr.AddExtension(extension.ValidatingFunc(check, extension.Scope{Name: "images"}))
	})
	cmd.PersistentFlags().StringVar(&forbidden, "forbidden", "", "registry that no image may come from")

	cmd.SetIn(strings.NewReader(`
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  containers: [{name: web, image: "example.com/web:1"}]`))
	cmd.SetArgs([]string{"review", "-f", "-", "--forbidden", "example.com/"})
	err := cmd.ExecuteContext(context.Background())
	fmt.Println(err, command.ExitCode(err))
	// Output:
	// Pod default/web: denied
	// # images, images: denied: container web: no images from example.com/
	// Pod default/web: denied: container web: no images from example.com/
	// 1 of 1 denied 1
}
