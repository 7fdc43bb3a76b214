package session

import (
	"context"
	"path"
	"slices"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/operator/session/internal/recorded"
)

// podGuard refuses Pods in which something else could be run in the recorder's place.
type podGuard struct{ *shared }

var (
	_ extension.Validator[*corev1.Pod] = (*podGuard)(nil)
	_ extension.Witness                = (*podGuard)(nil)
)

func (k *podGuard) scope() extension.Scope {
	scope := k.options.podScope("sessions-keeper", slices.Concat(
		extension.Pods(admissionregistrationv1.Create, admissionregistrationv1.Update),
		extension.Resources("", "v1", []string{"pods/ephemeralcontainers"}, admissionregistrationv1.Update),
	))
	scope.SideEffects = new(admissionregistrationv1.SideEffectClassNoneOnDryRun) // an Event
	return scope
}

// Unseen implements [extension.Witness].
func (*podGuard) Unseen(context.Context, *extension.Request, string) {}

// Validate refuses what could replace the recorder. A Pod without the recorder was made
// before, and stays as it is; what is added to it cannot be recorded.
func (k *podGuard) Validate(ctx context.Context, pod *corev1.Pod, req *extension.Request) error {
	if req.SubResource == ephemeral && !recorded.HasVolume(pod) {
		return k.withoutRecorder(ctx, pod, req)
	}
	if !recorded.CanHaveRecorder(pod) {
		return nil
	}
	creates := req.Operation == "CREATE"
	if !creates && !slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == recorded.VolumeName }) {
		return nil
	}
	if err := checkVolumes(pod.Spec.Volumes); err != nil {
		return err
	}
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		if c.Name == recorded.ContainerName {
			continue
		}
		if err := checkMounts(&c, true); err != nil {
			return err
		}
	}
	if req.SubResource == ephemeral {
		added, err := newEphemeral(pod, req)
		if err != nil {
			return err
		}
		for _, c := range added {
			if err := k.checkEphemeral(ctx, c, req); err != nil {
				return err
			}
		}
	}
	return k.checkInstaller(pod, creates, req)
}

// checkInstaller wants the installer as it is made, and its image to stay.
func (k *podGuard) checkInstaller(pod *corev1.Pod, creates bool, req *extension.Request) error {
	found := installerOf(pod)
	if found == nil {
		return extension.Denyf("init container %s is missing: it brings the recorder of sessions. Does another webhook remove it?", recorded.ContainerName)
	}
	image := k.options.Image
	if !creates {
		old, err := extension.Old[*corev1.Pod](req)
		if err != nil {
			return err
		}
		if before := installerOf(old); before != nil && found.Image == before.Image {
			return nil // only images can change, and this one may be of an earlier version
		}
	}
	want := recorded.Installer(k.options.Image)
	if found.Image != image || len(found.Command) > 0 || !slices.Equal(found.Args, want.Args) || len(found.Env)+len(found.EnvFrom) > 0 ||
		found.Lifecycle != nil || found.RestartPolicy != nil || !apiequality.Semantic.DeepEqual(own(found.VolumeMounts), want.VolumeMounts) {
		return extension.Denyf("init container %s is reserved for the recorder of sessions: leave it out", recorded.ContainerName)
	}
	return nil
}

// own leaves out what the API server's admission mounts into each container.
func own(all []corev1.VolumeMount) []corev1.VolumeMount {
	return slices.DeleteFunc(slices.Clone(all), func(m corev1.VolumeMount) bool {
		return path.Clean(m.MountPath) == "/var/run/secrets/kubernetes.io/serviceaccount"
	})
}

func installerOf(pod *corev1.Pod) *corev1.Container {
	for i := range pod.Spec.InitContainers {
		if c := &pod.Spec.InitContainers[i]; c.Name == recorded.ContainerName {
			return c
		}
	}
	return nil
}

func checkVolumes(volumes []corev1.Volume) error {
	for _, want := range []corev1.Volume{recorded.Volume(), recorded.TokenVolume()} {
		at := slices.IndexFunc(volumes, func(v corev1.Volume) bool { return v.Name == want.Name })
		if at < 0 || !apiequality.Semantic.DeepEqual(volumes[at], want) {
			return extension.Denyf("volume %s is reserved for the recorder of sessions: leave it out", want.Name)
		}
	}
	return nil
}

// checkMounts wants the mounts of a container as they are made, and nothing else there. An
// ephemeral container that is not recorded need not have them.
func checkMounts(c *corev1.Container, required bool) error {
	wants := recorded.Mounts()
	seen := 0
	for _, m := range c.VolumeMounts {
		at := slices.IndexFunc(wants, func(want corev1.VolumeMount) bool { return want.Name == m.Name })
		switch {
		case at >= 0 && isMount(m, wants[at]):
			seen++
		case at >= 0:
			return extension.Denyf("container %s mounts volume %s, which is reserved for the recorder of sessions, in another way: leave the mount out", c.Name, m.Name)
		case reserved(m.MountPath):
			return extension.Denyf("container %s mounts volume %s at %s, which is reserved for the recorder of sessions: choose another path", c.Name, m.Name, m.MountPath)
		}
	}
	if slices.ContainsFunc(c.VolumeDevices, func(d corev1.VolumeDevice) bool { return reserved(d.DevicePath) }) {
		return extension.Denyf("container %s has a device at a path that is reserved for the recorder of sessions: choose another path", c.Name)
	}
	if c.TerminationMessagePath != "" && reserved(c.TerminationMessagePath) { // the kubelet mounts a file there that the container can write
		return extension.Denyf("container %s has the terminationMessagePath %s, which is reserved for the recorder of sessions: choose another path", c.Name, c.TerminationMessagePath)
	}
	if required && seen != len(wants) {
		return extension.Denyf("container %s has no recorder of sessions. Was it added by another webhook?", c.Name)
	}
	return nil
}

// isMount reports whether a mount is as it is made, for all that defaults add.
func isMount(m, want corev1.VolumeMount) bool {
	return m.ReadOnly && path.Clean(m.MountPath) == want.MountPath && m.SubPath == "" && m.SubPathExpr == "" && m.MountPropagation == nil
}

// reserved reports whether a path is the recorder's, one from which it would be hidden, or
// one that may lead there by a link: the runtime follows those in the container's files.
func reserved(at string) bool {
	parts := strings.Split(strings.Trim(path.Clean("/"+at), "/"), "/")
	return parts[0] == "" || parts[0] == "proc" || slices.ContainsFunc([]string{recorded.MountPath, recorded.TokenPath}, func(ours string) bool {
		return slices.Contains(parts, strings.Trim(ours, "/"))
	})
}
