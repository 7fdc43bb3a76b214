package workload

import (
	"slices"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/egress"
	"github.com/admitkit/admitkit/operator/sandbox/internal/owned"
)

// Container is the name of the container that does the work.
const Container = "sandbox"

const (
	// nobody is as whom the work runs.
	nobody = 65532
	// promptDir is where the prompt is, in the file promptFile.
	promptDir, promptFile = "/admitkit/prompt", "prompt"
)

// podSlack is how much longer a Pod may run than its Job: the Job ends it first, and says why. Without its Job, which somebody
// may delete, the Pod ends by itself.
const podSlack = 60

// tmpSize is how much /tmp holds.
var tmpSize = resource.MustParse("256Mi")

// Prompt is the Secret of a prompt by value: more people may read ConfigMaps than runs.
func Prompt(run *v1alpha1.SandboxRun, name string) *corev1.Secret {
	meta := owned.Meta(run)
	meta.Name = name
	return &corev1.Secret{ObjectMeta: meta, Type: corev1.SecretTypeOpaque, Immutable: new(true), Data: map[string][]byte{promptFile: []byte(run.Spec.Prompt)}}
}

// Job is the Job of a run. A Pod replaces another only when that has ended, so that two never
// work at a time.
func (p *Plan) Job(run *v1alpha1.SandboxRun) *batchv1.Job {
	template := corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: owned.Meta(run).Labels}, Spec: p.podOf(run)}
	template.Labels[v1alpha1.LabelEgress] = string(run.UID)
	template.Spec.ActiveDeadlineSeconds = new(p.Timeout + podSlack)
	return &batchv1.Job{ObjectMeta: owned.Meta(run), Spec: batchv1.JobSpec{
		BackoffLimit: new(run.Spec.Retries), ActiveDeadlineSeconds: new(p.Timeout), PodReplacementPolicy: new(batchv1.Failed), Template: template,
	}}
}

// podOf is the Pod. It meets the restricted Pod Security standard, and has no token of a ServiceAccount.
func (p *Plan) podOf(run *v1alpha1.SandboxRun) corev1.PodSpec {
	pod := corev1.PodSpec{
		RestartPolicy: corev1.RestartPolicyNever, TerminationGracePeriodSeconds: new(p.grace),
		AutomountServiceAccountToken: new(false), EnableServiceLinks: new(false),
		SecurityContext: &corev1.PodSecurityContext{
			RunAsNonRoot: new(true), RunAsUser: new(int64(nobody)), RunAsGroup: new(int64(nobody)), FSGroup: new(int64(nobody)),
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		},
		Containers: []corev1.Container{{
			Stdin: p.Interactive != nil, TTY: p.Interactive != nil, // so that a shell waits
			Name: Container, Image: p.Image, ImagePullPolicy: pullPolicy(p.Image), Command: p.command, Args: p.args, Env: p.envOf(run), WorkingDir: p.mountPath,
			Resources:                corev1.ResourceRequirements{Requests: p.resources, Limits: p.resources},
			SecurityContext:          restricted(),
			TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
			VolumeMounts: []corev1.VolumeMount{
				{Name: "workspace", MountPath: p.mountPath}, {Name: "tmp", MountPath: "/tmp"}, {Name: "prompt", MountPath: promptDir, ReadOnly: true},
			},
		}},
		Volumes: []corev1.Volume{
			{Name: "workspace", VolumeSource: p.workspaceVolume(run)},
			{Name: "tmp", VolumeSource: emptyDir(tmpSize)},
			{Name: "prompt", VolumeSource: promptVolume(run)},
		},
	}
	p.placed(&pod)
	return pod
}

// restricted is what each container begins from.
func restricted() *corev1.SecurityContext {
	return &corev1.SecurityContext{
		AllowPrivilegeEscalation: new(false), ReadOnlyRootFilesystem: new(true), Privileged: new(false),
		Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
	}
}

// envOf is the environment. What the sandbox sets comes last: of two variables of a name, the later counts.
func (p *Plan) envOf(run *v1alpha1.SandboxRun) (env []corev1.EnvVar) {
	ours := []v1alpha1.SandboxEnv{
		{Name: "HOME", Value: p.mountPath}, {Name: "ADMITKIT_RUN", Value: run.Name}, {Name: "ADMITKIT_PROMPT_FILE", Value: promptDir + "/" + promptFile},
	}
	if run.Spec.Model != "" {
		ours = append(ours, v1alpha1.SandboxEnv{Name: "ADMITKIT_MODEL", Value: run.Spec.Model})
	}
	for _, e := range slices.Concat(p.env, ours) {
		env = append(env, corev1.EnvVar{Name: e.Name, Value: e.Value})
	}
	return env
}

// workspaceVolume is where the work writes.
func (p *Plan) workspaceVolume(run *v1alpha1.SandboxRun) corev1.VolumeSource {
	if ref := run.Spec.WorkspaceRef; ref != nil {
		return claimVolume(ref.Name)
	}
	return emptyDir(p.size)
}

func emptyDir(size resource.Quantity) corev1.VolumeSource {
	return corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: &size}}
}

// promptVolume has the kubelet read the prompt: the manager needs no right to.
func promptVolume(run *v1alpha1.SandboxRun) corev1.VolumeSource {
	of := func(key string) []corev1.KeyToPath { return []corev1.KeyToPath{{Key: key, Path: promptFile}} }
	name, key := run.Status.PromptSecret, promptFile
	if from := run.Spec.PromptFrom; from != nil {
		if c := from.ConfigMapKeyRef; c != nil {
			return corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: c.Name}, Items: of(c.Key)}}
		}
		name, key = from.SecretKeyRef.Name, from.SecretKeyRef.Key
	}
	return corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: name, Items: of(key)}}
}

// pullPolicy pulls always what names no digest: it may be another image tomorrow.
func pullPolicy(image string) corev1.PullPolicy {
	if egress.IsDigestPinned(image) {
		return corev1.PullIfNotPresent
	}
	return corev1.PullAlways
}
