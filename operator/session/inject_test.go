package session_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/operator/audit"
	"github.com/admitkit/admitkit/operator/internal/session/protocol"
	"github.com/admitkit/admitkit/operator/session"
	"github.com/admitkit/admitkit/testing/admit"
)

// restricted makes the API server enforce Pod Security's restricted profile in a namespace.
func (i *installation) restricted() {
	i.t.Helper()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: i.Namespace}}
	patch := client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"labels":{"pod-security.kubernetes.io/enforce":"restricted"}}}`))
	if err := i.Admin.Patch(i.t.Context(), namespace, patch); err != nil {
		i.t.Fatal(err)
	}
}

func TestANewPodHasTheRecorderUnderPodSecurity(t *testing.T) {
	t.Parallel()
	i := install(t, nil, audit.Options{})
	i.restricted()
	pod := newPod(i.Namespace, "web")
	secure := &corev1.SecurityContext{
		RunAsNonRoot: new(true), RunAsUser: new(int64(1000)), AllowPrivilegeEscalation: new(false), ReadOnlyRootFilesystem: new(true),
		Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}, SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
	}
	pod.Spec.Containers[0].SecurityContext = secure
	pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: "side", Image: "example.com/side", SecurityContext: secure})
	pod.Spec.InitContainers = []corev1.Container{{Name: "before", Image: "example.com/before", SecurityContext: secure}}
	if err := i.Admin.Create(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	if first := pod.Spec.InitContainers[0]; len(pod.Spec.InitContainers) != 2 || first.Name != "admitkit-session" || first.Image != recorderImage || !slices.Equal(first.Args, []string{"install", "/.admitkit"}) {
		t.Errorf("the init containers are %+v", pod.Spec.InitContainers)
	}
	for _, c := range slices.Concat(pod.Spec.Containers, pod.Spec.InitContainers[1:]) {
		for name, path := range map[string]string{"admitkit-session": "/.admitkit", "admitkit-session-token": "/.admitkit-token"} {
			if !slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == name && m.MountPath == path && m.ReadOnly }) {
				t.Errorf("container %s has %+v", c.Name, c.VolumeMounts)
			}
		}
	}
	for _, volume := range pod.Spec.Volumes {
		if volume.Name == "admitkit-session-token" && volume.Projected.Sources[0].ServiceAccountToken.Audience != session.Audience {
			t.Errorf("the token is %+v", volume.Projected)
		}
	}
	if _, said := pod.Annotations["kubectl.kubernetes.io/default-container"]; said {
		t.Error("of two containers one is the default, which nobody has chosen")
	}
	only := newPod(i.Namespace, "only")
	only.Spec.Containers[0].SecurityContext = secure
	if err := i.Admin.Create(t.Context(), only); err != nil || only.Annotations["kubectl.kubernetes.io/default-container"] != "web" {
		t.Errorf("kubectl would say which container it has chosen: %v, %v", err, only.Annotations)
	}
	// What the API server gives back can be created again: a client may have copied it.
	again := newPod(i.Namespace, "again")
	again.Spec = *pod.Spec.DeepCopy()
	if err := i.Admin.Create(t.Context(), again); err != nil || len(again.Spec.InitContainers) != 2 || len(again.Spec.Volumes) != len(pod.Spec.Volumes) {
		t.Errorf("a copy: %v, %+v", err, again.Spec)
	}
}

func TestNothingTakesTheRecordersPlace(t *testing.T) {
	t.Parallel()
	mount := func(m corev1.VolumeMount) func(*corev1.PodSpec) {
		return func(s *corev1.PodSpec) {
			s.Volumes = append(s.Volumes, corev1.Volume{Name: "mine", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}})
			s.Containers[0].VolumeMounts = append(s.Containers[0].VolumeMounts, m)
		}
	}
	installer := func(change func(*corev1.Container)) func(*corev1.PodSpec) {
		return func(s *corev1.PodSpec) {
			c := corev1.Container{Name: "admitkit-session", Image: recorderImage, Args: []string{"install", "/.admitkit"}, VolumeMounts: []corev1.VolumeMount{{Name: "admitkit-session", MountPath: "/.admitkit"}}}
			change(&c)
			s.InitContainers = append(s.InitContainers, c)
		}
	}
	for what, test := range map[string]struct {
		change func(*corev1.PodSpec)
		why    string
	}{
		"a foreign volume of its name": {func(s *corev1.PodSpec) {
			s.Volumes = []corev1.Volume{{Name: "admitkit-session", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "x"}}}}}
		}, "volume admitkit-session is reserved"},
		"a foreign token": {func(s *corev1.PodSpec) {
			s.Volumes = []corev1.Volume{{Name: "admitkit-session-token", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
		}, "volume admitkit-session-token is reserved"},
		"a writable mount":        {mount(corev1.VolumeMount{Name: "admitkit-session", MountPath: "/.admitkit"}), "in another way"},
		"a mount elsewhere":       {mount(corev1.VolumeMount{Name: "admitkit-session", MountPath: "/x", ReadOnly: true}), "in another way"},
		"a part of it":            {mount(corev1.VolumeMount{Name: "admitkit-session", MountPath: "/.admitkit", SubPath: "x", ReadOnly: true}), "in another way"},
		"a mount over a file":     {mount(corev1.VolumeMount{Name: "mine", MountPath: "/.admitkit/recorder"}), "choose another path"},
		"a mount over the token":  {mount(corev1.VolumeMount{Name: "mine", MountPath: "/.admitkit-token/"}), "choose another path"},
		"a mount by a link":       {mount(corev1.VolumeMount{Name: "mine", MountPath: "/proc/self/root/.admitkit"}), "choose another path"},
		"a mount below a link":    {mount(corev1.VolumeMount{Name: "mine", MountPath: "/a/.admitkit"}), "choose another path"},
		"a file of the kubelet":   {func(s *corev1.PodSpec) { s.Containers[0].TerminationMessagePath = "/.admitkit/recorder" }, "terminationMessagePath /.admitkit/recorder"},
		"another image":           {installer(func(c *corev1.Container) { c.Image = "example.com/mine" }), "init container admitkit-session is reserved"},
		"another program":         {installer(func(c *corev1.Container) { c.Command = []string{"sh"} }), "init container admitkit-session is reserved"},
		"another folder":          {installer(func(c *corev1.Container) { c.Args = []string{"install", "/x"} }), "init container admitkit-session is reserved"},
		"an environment":          {installer(func(c *corev1.Container) { c.Env = []corev1.EnvVar{{Name: "LD_PRELOAD", Value: "x"}} }), "init container admitkit-session is reserved"},
		"nothing of that":         {mount(corev1.VolumeMount{Name: "mine", MountPath: "/.admitkit2"}), ""},
		"the installer, as it is": {installer(func(*corev1.Container) {}), ""},
	} {
		t.Run(what, func(t *testing.T) {
			pod := newPod("", "web")
			test.change(&pod.Spec)
			result := admit.New(t, session.New(newOptions(t))).Strict().Create(pod)
			if result.Allowed != (test.why == "") || !strings.Contains(result.Reason, test.why) {
				t.Errorf("got %t, %q, %v", result.Allowed, result.Reason, result.Err)
			}
		})
	}
}

// takesItsPlace has the API server ask about Pods; TestNothingTakesTheRecordersPlace has what is refused.
func (i *installation) takesItsPlace(t *testing.T) {
	t.Helper()
	pod := newPod(i.Namespace, "mine")
	pod.Spec.Containers[0].TerminationMessagePath = "/.admitkit/recorder"
	if err := i.Admin.Create(t.Context(), pod); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "terminationMessagePath /.admitkit/recorder") {
		t.Errorf("a file of the kubelet: %v", err)
	}
	web := i.pod("changed")
	web.Spec.InitContainers[0].Image = "example.com/mine"
	if err := i.Admin.Update(t.Context(), web); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "is reserved") {
		t.Errorf("another image later: %v", err)
	}
}

// debug adds an ephemeral container to a Pod.
func (i *installation) debug(pod *corev1.Pod, c corev1.EphemeralContainerCommon) error {
	i.t.Helper()
	if err := i.Admin.Get(i.t.Context(), client.ObjectKeyFromObject(pod), pod); err != nil {
		i.t.Fatal(err)
	}
	c.Image = "example.com/debug"
	pod.Spec.EphemeralContainers = append(pod.Spec.EphemeralContainers, corev1.EphemeralContainer{EphemeralContainerCommon: c})
	return i.Admin.SubResource("ephemeralcontainers").Update(i.t.Context(), pod)
}

func TestAnEphemeralContainerBeginsWithTheRecorder(t *testing.T) {
	t.Parallel()
	i := install(t, nil, audit.Options{})
	pod := i.pod("web")
	if err := i.debug(pod, corev1.EphemeralContainerCommon{Name: "debug", Command: []string{"sh", "-c", "echo $$HOME $(date) $PWD"}, Args: []string{"x"}}); err != nil {
		t.Fatal(err)
	}
	// As the kubelet starts it: $$ is $.
	ran := pod.Spec.EphemeralContainers[0].Command
	for at := range ran {
		ran[at] = strings.ReplaceAll(ran[at], "$$", "$")
	}
	given := []string{"sh", "-c", "echo $HOME $(date) $PWD", "x"}
	text, command, ok := protocol.Split(ran)
	if !ok || !slices.Equal(command, given) || len(pod.Spec.EphemeralContainers[0].Args) > 0 || len(pod.Spec.EphemeralContainers[0].VolumeMounts) != 2 {
		t.Fatalf("it is %+v", pod.Spec.EphemeralContainers[0])
	}
	ticket, err := i.key.Verify(text, time.Now())
	if err != nil || ticket.Container != "debug" || ticket.PodUID != string(pod.UID) || ticket.Command != protocol.Sum(given) {
		t.Fatalf("%+v, %v", ticket, err)
	}
	if record := i.sink.last(); record == nil || !slices.Equal(record.Command, given) || record.Session != ticket.ID || record.ID != ticket.ID {
		t.Errorf("audit has %+v", record)
	}
	attach := func(container string) testkit.Answer {
		return testkit.Send(t, i.alice, http.MethodPost, fmt.Sprintf("/api/v1/namespaces/%s/pods/web/attach?stdout=true&container=%s", i.Namespace, container), "", "")
	}
	if answer := attach("debug"); answer.Code == http.StatusForbidden {
		t.Errorf("what is typed there is recorded, and yet: %s", answer)
	}
	if answer := attach("web"); answer.Code != http.StatusForbidden {
		t.Errorf("attach to another container: %s", answer)
	}
	for what, test := range map[string]struct {
		c   corev1.EphemeralContainerCommon
		why string
	}{
		"the image says what it runs":   {corev1.EphemeralContainerCommon{}, "kubectl debug -it web -n " + i.Namespace + " --image=example.com/debug -- sh"},
		"the kubelet knows the command": {corev1.EphemeralContainerCommon{Command: []string{"echo", "$(A)"}, Env: []corev1.EnvVar{{Name: "A", Value: "b"}}}, "Have a shell replace it"},
		"a user starts the recorder":    {corev1.EphemeralContainerCommon{Command: ran}, "by nobody else"},
		"it hides the recorder":         {corev1.EphemeralContainerCommon{Command: []string{"sh"}, VolumeMounts: []corev1.VolumeMount{{Name: "admitkit-session", MountPath: "/x"}}}, "in another way"},
	} {
		test.c.Name = "other"
		if err := i.debug(pod, test.c); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), test.why) {
			t.Errorf("%s: %v", what, err)
		}
	}
	i.takesItsPlace(t)
	open := install(t, func(o *session.Options) { o.Unrecorded = session.Open }, audit.Options{})
	if err := open.debug(open.pod("web"), corev1.EphemeralContainerCommon{Name: "debug"}); err != nil {
		t.Errorf("with Open: %v", err)
	}
}
