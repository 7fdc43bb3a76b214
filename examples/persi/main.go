// Command persi mounts the volumes of an app's service bindings: each entry of volume_mounts in
// the environment variable VCAP_SERVICES of a container names a PersistentVolumeClaim (volume_id),
// a folder (container_dir) and a mode, r or rw.
//
// It does what Cloud Foundry's EiriniX extension eirini-persi does, except that it starts no init
// container as root to change the owner of the files: the Pod's fsGroup does that.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/manager"
	"github.com/admitkit/admitkit/manager/command"
)

const variable = "VCAP_SERVICES"

// binding is what VCAP_SERVICES says of one, as far as it concerns volumes.
type binding struct {
	Name        string `json:"name"`
	Credentials struct {
		VolumeID string `json:"volume_id"`
	} `json:"credentials"`
	VolumeMounts []volumeMount `json:"volume_mounts"`
}

type volumeMount struct {
	ContainerDir string `json:"container_dir"`
	Mode         string `json:"mode"`
}

// Persistence is the extension.
type Persistence struct{}

// Handle mounts the volumes into each container that has bindings. A Pod whose bindings cannot be
// read is denied: its app would write where nothing is kept.
func (Persistence) Handle(_ context.Context, mgr extension.Manager, pod *corev1.Pod, req admission.Request) admission.Response {
	for i := range pod.Spec.Containers {
		container := &pod.Spec.Containers[i]
		bindings, err := bindingsOf(container)
		if err != nil {
			return admission.Denied(fmt.Sprintf("container %s: %s: %v", container.Name, variable, err))
		}
		for _, b := range bindings {
			for _, m := range b.VolumeMounts {
				add(pod, container, b.Credentials.VolumeID, m)
			}
		}
	}
	return mgr.PatchFromPod(req, pod)
}

// bindingsOf returns the bindings in the order of their services' names, so that the same
// environment always leads to the same Pod.
func bindingsOf(container *corev1.Container) ([]binding, error) {
	i := slices.IndexFunc(container.Env, func(env corev1.EnvVar) bool { return env.Name == variable })
	if i < 0 {
		return nil, nil
	}
	if container.Env[i].ValueFrom != nil {
		return nil, errors.New("must be a value: the volumes behind a reference are not known yet")
	}
	var services map[string][]binding
	if err := json.Unmarshal([]byte(container.Env[i].Value), &services); err != nil {
		return nil, fmt.Errorf("must be the JSON of service bindings: %w", err)
	}
	var bindings []binding
	for _, service := range slices.Sorted(maps.Keys(services)) {
		for _, b := range services[service] {
			if err := b.check(); err != nil {
				return nil, fmt.Errorf("binding %q of %s: %w", b.Name, service, err)
			}
			bindings = append(bindings, b)
		}
	}
	return bindings, nil
}

// check finds what would otherwise be an error in a field that the user has not written.
func (b binding) check() error {
	for _, m := range b.VolumeMounts {
		if problems := validation.IsDNS1123Label(b.Credentials.VolumeID); len(problems) > 0 {
			return fmt.Errorf("volume_id %q: %s", b.Credentials.VolumeID, problems[0])
		}
		if !path.IsAbs(m.ContainerDir) || path.Clean(m.ContainerDir) == "/" {
			return fmt.Errorf("container_dir %q: must be absolute, and not the root", m.ContainerDir)
		}
		if m.Mode != "" && m.Mode != "r" && m.Mode != "rw" {
			return fmt.Errorf("mode %q: must be r or rw", m.Mode)
		}
	}
	return nil
}

// add does nothing twice, since an admission may come twice. If the Pod has something else of that
// name or at that path, the API server refuses it for the duplicate.
func add(pod *corev1.Pod, container *corev1.Container, claim string, m volumeMount) {
	if !slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
		return v.Name == claim && v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == claim
	}) {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: claim, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
		}})
	}
	mount := corev1.VolumeMount{Name: claim, MountPath: path.Clean(m.ContainerDir), ReadOnly: m.Mode == "r"}
	if !slices.ContainsFunc(container.VolumeMounts, func(have corev1.VolumeMount) bool {
		return have.Name == mount.Name && have.MountPath == mount.MountPath
	}) {
		container.VolumeMounts = append(container.VolumeMounts, mount)
	}
}

func main() {
	command.Main(command.New("persi", func(mgr *manager.Manager) error { return mgr.AddExtension(Persistence{}) }))
}
