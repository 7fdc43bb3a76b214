package workload

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/internal/sandbox/repo"
	"github.com/admitkit/admitkit/operator/sandbox/internal/brokerpolicy"
	"github.com/admitkit/admitkit/operator/sandbox/internal/owned"
)

const (
	defaultSeedTime = 10 * 60
	seedGrace       = 30
	// seedKept is how long the Pod of a seed stays for its log.
	seedKept = 3600
)

// Claim is the PersistentVolumeClaim.
func Claim(ws *v1alpha1.Workspace) (*corev1.PersistentVolumeClaim, error) {
	size := defaultSize.DeepCopy()
	if err := replace(&size, ws.Spec.Storage.Size, nil, "storage.size"); err != nil {
		return nil, err
	}
	return &corev1.PersistentVolumeClaim{ObjectMeta: owned.WorkspaceMeta(ws), Spec: corev1.PersistentVolumeClaimSpec{
		AccessModes: []corev1.PersistentVolumeAccessMode{corev1.PersistentVolumeAccessMode(ws.Spec.Storage.AccessMode)}, StorageClassName: ws.Spec.Storage.Class,
		Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: size}},
	}}, nil
}

// CheckSeed refuses what cannot be fetched. Admission asks it, and the reconciler again: a
// Workspace may be older than the rules.
func CheckSeed(seed *v1alpha1.WorkspaceSeed) error {
	paths := []string{}
	for i := range seed.Repos {
		r := &seed.Repos[i]
		scheme, host, err := repo.Parse(r.URL)
		if err != nil {
			return fmt.Errorf("seed.repos[%d].url: %w", i, err)
		}
		if problem := brokerpolicy.RefuseHost(host); problem != "" {
			return fmt.Errorf("seed.repos[%d].url: the host %.80q %s", i, host, problem)
		}
		if err := checkCredentials(scheme, r); err != nil {
			return fmt.Errorf("seed.repos[%d].%w", i, err)
		}
		path, err := repo.Clean(r.Path)
		if err != nil {
			return fmt.Errorf("seed.repos[%d].path: %w", i, err)
		}
		for j, other := range paths {
			if repo.Within(path, other) {
				return fmt.Errorf("seed.repos[%d].path: %s and %s of repos[%d] lie in each other", i, path, other, j)
			}
		}
		paths = append(paths, path)
	}
	return nil
}

// checkCredentials refuses credentials that the seed could not use.
func checkCredentials(scheme string, r *v1alpha1.WorkspaceRepo) error {
	switch {
	case r.Credential != "" && r.CredentialsFrom != nil:
		return errors.New("credential: cannot be set with credentialsFrom: leave one of them out")
	case r.Credential != "" && scheme == repo.SSH:
		return errors.New("credential: what the broker leases is a password, and ssh needs keys: use a URL that begins with https://, or name a Secret in credentialsFrom")
	case r.CredentialsFrom == nil && scheme == repo.SSH:
		return errors.New("credentialsFrom: ssh needs a Secret with the keys ssh-privatekey and known_hosts")
	}
	return nil
}

// SeedJob is the Job that seeds, by this image unless the seed names its own. It makes one Pod: our program tries again by itself, where that may help.
func SeedJob(ws *v1alpha1.Workspace, image string) (*batchv1.Job, error) {
	pod, err := seedPod(ws, image)
	if err != nil {
		return nil, err
	}
	timeout := int64(defaultSeedTime)
	if t := ws.Spec.Seed.TimeoutSeconds; t != nil {
		timeout = *t
	}
	template := corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: owned.WorkspaceMeta(ws).Labels}, Spec: pod}
	template.Labels[v1alpha1.LabelEgress] = string(ws.UID)
	template.Spec.ActiveDeadlineSeconds = new(timeout + podSlack)
	return &batchv1.Job{ObjectMeta: owned.WorkspaceMeta(ws), Spec: batchv1.JobSpec{
		BackoffLimit: new(int32(0)), ActiveDeadlineSeconds: new(timeout), TTLSecondsAfterFinished: new(int32(seedKept)),
		PodReplacementPolicy: new(batchv1.Failed), Template: template,
	}}, nil
}

// seedPod is the Pod that fetches: as restricted as that of a run.
func seedPod(ws *v1alpha1.Workspace, image string) (corev1.PodSpec, error) {
	seed := ws.Spec.Seed
	volumes := []corev1.Volume{{Name: "workspace", VolumeSource: claimVolume(ws.Name)}, {Name: "tmp", VolumeSource: emptyDir(tmpSize)}}
	mounts := []corev1.VolumeMount{{Name: "workspace", MountPath: repo.Dir}, {Name: "tmp", MountPath: "/tmp"}}
	repos := make([]repo.Repo, 0, len(seed.Repos))
	for i := range seed.Repos {
		r := &seed.Repos[i]
		path, err := repo.Clean(r.Path)
		if err != nil {
			return corev1.PodSpec{}, err
		}
		of := repo.Repo{URL: r.URL, Ref: r.Ref, Path: path, Depth: int(r.Depth)}
		if from := credentialsVolume(ws, r); from != nil {
			of.Credentials = repo.CredentialsDir + "/" + strconv.Itoa(i)
			name := "credentials-" + strconv.Itoa(i)
			volumes = append(volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{Secret: from}})
			mounts = append(mounts, corev1.VolumeMount{Name: name, MountPath: of.Credentials, ReadOnly: true})
		}
		repos = append(repos, of)
	}
	if ca := seed.CAFrom; ca != nil {
		volumes = append(volumes, corev1.Volume{Name: "ca", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
			LocalObjectReference: corev1.LocalObjectReference{Name: ca.Name}, Items: []corev1.KeyToPath{{Key: ca.Key, Path: "ca.crt"}},
		}}})
		mounts = append(mounts, corev1.VolumeMount{Name: "ca", MountPath: "/admitkit/ca", ReadOnly: true})
	}
	text, err := json.Marshal(repos)
	if err != nil {
		return corev1.PodSpec{}, err
	}
	p := Plan{Image: seed.Image, mountPath: repo.Dir, resources: defaultResources, grace: seedGrace}
	if p.Image == "" {
		p.Image, p.args = image, []string{"seed"}
	}
	pod := p.podOf(&v1alpha1.SandboxRun{ObjectMeta: ws.ObjectMeta})
	c := &pod.Containers[0]
	c.Env = []corev1.EnvVar{{Name: "HOME", Value: "/tmp"}, {Name: repo.Env, Value: string(text)}}
	c.VolumeMounts, pod.Volumes = mounts, volumes
	return pod, nil
}

// credentialsVolume has the credentials of a repository as files, nil if it has none.
func credentialsVolume(ws *v1alpha1.Workspace, r *v1alpha1.WorkspaceRepo) *corev1.SecretVolumeSource {
	mode := new(int32(0o440))
	switch {
	case r.CredentialsFrom != nil:
		return &corev1.SecretVolumeSource{SecretName: r.CredentialsFrom.Name, DefaultMode: mode}
	case r.Credential != "":
		return &corev1.SecretVolumeSource{SecretName: owned.CredentialsOfSeed(ws).Name, DefaultMode: mode, Items: []corev1.KeyToPath{
			{Key: r.Credential, Path: "password"}, {Key: r.Credential + owned.SuffixUsername, Path: "username"},
		}}
	}
	return nil
}

func claimVolume(workspace string) corev1.VolumeSource {
	return corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: owned.PrefixWorkspace + workspace}}
}

// SeedEgress is what a seed may reach.
func SeedEgress(seed *v1alpha1.WorkspaceSeed) *v1alpha1.Egress {
	if seed.Egress == nil {
		return &v1alpha1.Egress{DNS: new(false)}
	}
	return seed.Egress
}

// SeedCredentials are the names of the credentials that a seed needs on lease, sorted.
func SeedCredentials(seed *v1alpha1.WorkspaceSeed) (names []string) {
	if seed == nil {
		return nil
	}
	for i := range seed.Repos {
		if name := seed.Repos[i].Credential; name != "" {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}
