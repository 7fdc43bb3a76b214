// Command sshkey gives each Pod with the label example.com/ssh a key pair of its
// own, in a Secret at /etc/ssh-key, and deletes the Secret when the Pod is gone.
//
// The Secret comes before the Pod: it has no owner, and stays if the Pod is refused later.
package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/binary"
	"encoding/pem"
	"errors"
	"fmt"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/utils/ptr"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/manager"
	"github.com/admitkit/admitkit/manager/command"
)

const (
	label  = "example.com/ssh" // of Pods that want a key, and of our Secrets
	volume = "ssh-key"
)

type sshKey struct {
	client corev1client.CoreV1Interface
}

// Register is called before the first admission.
func (s *sshKey) Register(mgr extension.Manager) (err error) {
	s.client, err = mgr.GetKubeClient()
	return err
}

// Rights are what `sshkey manifests` asks for.
func (s *sshKey) Rights() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"secrets"}, Verbs: []string{"get", "create", "delete"}}}
}

// Mutate may come twice. On a reinvocation the Pod has its volume; when the API
// server sends a request again, it has the same UID, and so its Secret the name
// of the one that is there.
func (s *sshKey) Mutate(ctx context.Context, pod *corev1.Pod, req *extension.Request) error {
	if secretOf(pod) != "" {
		return nil
	}
	// A Pod with a generateName has no name yet.
	name := "ssh-" + string(req.UID)
	pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: volume, VolumeSource: corev1.VolumeSource{
		Secret: &corev1.SecretVolumeSource{SecretName: name, DefaultMode: ptr.To[int32](0o400)},
	}})
	for i := range pod.Spec.Containers {
		mounts := &pod.Spec.Containers[i].VolumeMounts
		*mounts = append(*mounts, corev1.VolumeMount{Name: volume, MountPath: "/etc/ssh-key", ReadOnly: true})
	}
	if req.DryRun() {
		return nil // the scope says so: NoneOnDryRun
	}
	data, err := newKeyPair()
	if err != nil {
		return err
	}
	_, err = s.client.Secrets(req.Namespace).Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{label: "key"}},
		Type:       corev1.SecretTypeSSHAuth,
		Immutable:  new(true),
		Data:       data,
	}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// Handle deletes the Secret of a Pod that is gone. That the Pod names a Secret is
// no proof that it is ours: users who write a Pod can name any. Its label is.
func (s *sshKey) Handle(ctx context.Context, mgr extension.Manager, event watch.Event) {
	pod, ok := event.Object.(*corev1.Pod)
	if !ok || event.Type != watch.Deleted || secretOf(pod) == "" {
		return
	}
	name := secretOf(pod)
	secrets := s.client.Secrets(pod.Namespace)
	secret, err := secrets.Get(ctx, name, metav1.GetOptions{})
	if err == nil && secret.Labels[label] == "key" {
		err = secrets.Delete(ctx, name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &secret.UID}})
	}
	if err != nil && !apierrors.IsNotFound(err) {
		mgr.GetLogger().Errorw("the key of a Pod that is gone is left", "namespace", pod.Namespace, "secret", name, "error", err)
	}
}

func secretOf(pod *corev1.Pod) (name string) {
	for _, v := range pod.Spec.Volumes {
		if v.Name == volume && v.Secret != nil {
			return v.Secret.SecretName
		}
	}
	return ""
}

// newKeyPair returns the keys in the formats of OpenSSH (RFC 4253, RFC 5656).
func newKeyPair() (map[string][]byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	private, err := x509.MarshalECPrivateKey(key)
	point, errPoint := key.PublicKey.Bytes()
	if err := errors.Join(err, errPoint); err != nil {
		return nil, err
	}
	const algorithm, curve = "ecdsa-sha2-nistp256", "nistp256"
	wire := []byte{}
	for _, part := range [][]byte{[]byte(algorithm), []byte(curve), point} {
		wire = append(binary.BigEndian.AppendUint32(wire, uint32(len(part))), part...) //nolint:gosec // short parts
	}
	return map[string][]byte{
		corev1.SSHAuthPrivateKey: pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: private}),
		"ssh-publickey":          fmt.Appendf(nil, "%s %s\n", algorithm, base64.StdEncoding.EncodeToString(wire)),
	}, nil
}

func main() {
	keys := &sshKey{}
	command.Main(command.New("sshkey", func(mgr *manager.Manager) error {
		if err := mgr.AddExtension(keys); err != nil { // the Watcher
			return err
		}
		return mgr.AddExtension(extension.Mutating(keys, extension.Scope{
			Name:           "ssh-key",
			ObjectSelector: &metav1.LabelSelector{MatchLabels: map[string]string{label: "true"}},
			SideEffects:    new(admissionregistrationv1.SideEffectClassNoneOnDryRun),
		}))
	}))
}
