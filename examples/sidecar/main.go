// Command sidecar puts a TLS proxy beside the containers of each Pod that has the
// label example.com/proxy: a sidecar (an init container that is restarted
// always), with the certificate from a Secret in a volume.
//
//	sidecar start --proxy-image registry.example.com/proxy:1 --proxy-secret proxy-tls ...
package main

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/manager"
	"github.com/admitkit/admitkit/manager/command"
)

const name = "tls-proxy"

// proxy is the sidecar.
type proxy struct {
	image, secret string
}

// Mutate puts the sidecar first: what comes after it can reach it from its start
// on. One that is there is replaced, so that the Pod cannot bring its own.
func (p *proxy) Mutate(_ context.Context, pod *corev1.Pod, _ *extension.Request) error {
	container := corev1.Container{
		Name:          name,
		Image:         p.image,
		RestartPolicy: new(corev1.ContainerRestartPolicyAlways),
		Ports:         []corev1.ContainerPort{{Name: "tls", ContainerPort: 8443}},
		VolumeMounts:  []corev1.VolumeMount{{Name: name, MountPath: "/etc/tls", ReadOnly: true}},
		SecurityContext: &corev1.SecurityContext{
			AllowPrivilegeEscalation: new(false),
			ReadOnlyRootFilesystem:   new(true),
			RunAsNonRoot:             new(true),
			Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		},
	}
	volume := corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{
		SecretName: p.secret, DefaultMode: ptr.To[int32](0o440),
	}}}
	others := slices.DeleteFunc(pod.Spec.InitContainers, func(c corev1.Container) bool { return c.Name == name })
	pod.Spec.InitContainers = append([]corev1.Container{container}, others...)
	pod.Spec.Volumes = slices.DeleteFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == name })
	pod.Spec.Volumes = append(pod.Spec.Volumes, volume)
	return nil
}

func main() {
	p := &proxy{}
	cmd := command.New("sidecar", func(mgr *manager.Manager) error {
		return mgr.AddExtension(extension.Mutating(p, extension.Scope{
			Name: "sidecar",
			ObjectSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
				{Key: "example.com/proxy", Operator: metav1.LabelSelectorOpExists},
			}},
		}))
	})
	cmd.PersistentFlags().StringVar(&p.image, "proxy-image", "registry.example.com/proxy:1", "image of the proxy")
	cmd.PersistentFlags().StringVar(&p.secret, "proxy-secret", "proxy-tls", "Secret with tls.crt and tls.key, in the Pod's namespace")
	command.Main(cmd)
}
