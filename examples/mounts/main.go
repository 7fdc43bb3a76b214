// Command mounts mounts what the annotation example.com/mounts of a Pod lists
// into all its containers: PersistentVolumeClaims, Secrets, ConfigMaps and empty
// folders, one a line:
//
//	example.com/mounts: |
//	  claim/uploads /var/lib/uploads
//	  secret/database /etc/database
//	  configmap/settings /etc/settings
//	  empty/cache /var/cache
//
// It is for platforms that bind services to apps by a line of metadata.
package main

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/manager"
	"github.com/admitkit/admitkit/manager/command"
)

const annotation = "example.com/mounts"

// mount reads every line first: a Pod that is wrong is denied, and says where.
func mount(_ context.Context, pod *corev1.Pod, _ *extension.Request) error {
	for line := range strings.Lines(pod.Annotations[annotation]) {
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		volume, target, err := parse(line)
		if err != nil {
			return extension.Denyf("annotation %s: %q: %w", annotation, line, err)
		}
		add(pod, volume, target)
	}
	return nil
}

// parse reads KIND/NAME PATH.
func parse(line string) (volume corev1.Volume, target string, err error) {
	fields := strings.Fields(line)
	if len(fields) != 2 {
		return volume, "", errors.New("must be KIND/NAME PATH")
	}
	kind, name, _ := strings.Cut(fields[0], "/")
	if problems := validation.IsDNS1123Label(name); len(problems) > 0 {
		return volume, "", fmt.Errorf("name %q: %s", name, problems[0])
	}
	target = fields[1]
	if !path.IsAbs(target) || path.Clean(target) != target || target == "/" {
		return volume, "", fmt.Errorf("path %q: must be absolute, clean and not the root", target)
	}
	switch kind {
	case "claim":
		volume.PersistentVolumeClaim = &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}
	case "secret":
		volume.Secret = &corev1.SecretVolumeSource{SecretName: name}
	case "configmap":
		volume.ConfigMap = &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: name}}
	case "empty":
		volume.EmptyDir = &corev1.EmptyDirVolumeSource{}
	default:
		return volume, "", fmt.Errorf("kind %q: must be claim, secret, configmap or empty", kind)
	}
	volume.Name = kind + "-" + name
	return volume, target, nil
}

// add does nothing twice, since an admission may come twice.
func add(pod *corev1.Pod, volume corev1.Volume, target string) {
	if !slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == volume.Name }) {
		pod.Spec.Volumes = append(pod.Spec.Volumes, volume)
	}
	for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			mounts := &containers[i].VolumeMounts
			if !slices.ContainsFunc(*mounts, func(m corev1.VolumeMount) bool { return m.MountPath == target }) {
				*mounts = append(*mounts, corev1.VolumeMount{Name: volume.Name, MountPath: target})
			}
		}
	}
}

func main() {
	command.Main(command.New("mounts", func(mgr *manager.Manager) error {
		return mgr.AddExtension(extension.MutatingFunc(mount, extension.Scope{Name: "mounts"}))
	}))
}
