package workload

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"

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
	if e := seed.Egress; e != nil {
		if err := checkNames(e); err != nil {
			return fmt.Errorf("seed.egress.%w", err)
		}
	}
	if seed.CAFrom != nil && (len(SeedCredentials(seed)) > 0 || len(hostsOf(seed)) > 0) {
		return errors.New("seed." + CAFromOfProxied)
	}
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
		if err := checkListed(scheme, host, r, hostsOf(seed)); err != nil {
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
		return errors.New("credential: a proxy sets it in a header, and ssh needs keys: use a URL that begins with https://, or name a Secret in credentialsFrom")
	case r.CredentialsFrom == nil && scheme == repo.SSH:
		return errors.New("credentialsFrom: ssh needs a Secret with the keys ssh-privatekey and known_hosts")
	}
	return nil
}

// CAFromOfProxied refuses a ConfigMap with authorities: whoever writes it could have a credential set at a server of their own.
const CAFromOfProxied = "caFrom: the seed has a proxy, which verifies its servers: leave it out, and let the operator name the authorities in --sandbox-proxy-upstream-ca"

func hostsOf(seed *v1alpha1.WorkspaceSeed) []v1alpha1.EgressName {
	if seed.Egress == nil {
		return nil
	}
	return seed.Egress.Hosts
}

// checkListed refuses a repository that the proxy would not let the seed reach, or sign in to.
func checkListed(scheme, host string, r *v1alpha1.WorkspaceRepo, hosts []v1alpha1.EgressName) error {
	u, err := url.Parse(r.URL)
	if len(hosts) == 0 || scheme != repo.HTTPS || err != nil || u.Port() != "" && u.Port() != "443" { // other ports are no matter of the proxy
		return nil //nolint:nilerr // it was parsed before
	}
	of := func(name v1alpha1.EgressName) bool { return name.Allows(host, 443) }
	if !slices.ContainsFunc(hosts, of) {
		return fmt.Errorf("url: egress.hosts does not list %s: add it there", host)
	}
	if r.CredentialsFrom != nil && !slices.ContainsFunc(hosts, func(name v1alpha1.EgressName) bool {
		own := name.OwnCredentials
		return of(name) && own != nil && slices.ContainsFunc(own.Headers, func(header string) bool { return strings.EqualFold(header, "Authorization") })
	}) {
		return fmt.Errorf("credentialsFrom: the proxy of the seed would remove it: let a BrokerPolicy grant it, and name that in credential, or add Authorization to ownCredentials.headers of %s in egress.hosts", host)
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
		if from := r.CredentialsFrom; from != nil {
			of.Credentials = repo.CredentialsDir + "/" + strconv.Itoa(i)
			name := "credentials-" + strconv.Itoa(i)
			volumes = append(volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: from.Name, DefaultMode: new(int32(0o440))}}})
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

func claimVolume(workspace string) corev1.VolumeSource {
	return corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: owned.PrefixWorkspace + workspace}}
}

// SeedEgress is what a seed may reach by address.
func SeedEgress(seed *v1alpha1.WorkspaceSeed) *v1alpha1.Egress {
	if seed.Egress == nil {
		return &v1alpha1.Egress{DNS: new(false)}
	}
	return &seed.Egress.Egress
}

// SeedCredentials are the names of the credentials that a seed needs, each with the hosts at which it does.
func SeedCredentials(seed *v1alpha1.WorkspaceSeed) map[string][]string {
	wanted := map[string][]string{}
	for i := range seed.Repos {
		if r := &seed.Repos[i]; r.Credential != "" {
			_, host, _ := repo.Parse(r.URL) // CheckSeed has
			wanted[r.Credential] = append(wanted[r.Credential], host)
		}
	}
	return wanted
}
