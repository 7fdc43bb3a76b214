// Command ssh gives each Pod of a Cloud Foundry app a key pair of its own, in a Secret that its
// containers have in EIRINI_SSH_KEY and EIRINI_HOST_KEY, and deletes the Secret of a Pod that is gone.
//
// It does what Cloud Foundry's EiriniX extension eirini-ssh does. The Secret comes before the Pod, so
// it has no owner: a Reconciler deletes those that no Pod has, also those of Pods that were refused
// later, or went while nobody watched.
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
	"net/http"
	"slices"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/manager"
	"github.com/admitkit/admitkit/manager/command"
)

const (
	keyLabel  = "example.com/ssh-key" // of a Pod and of its Secret: the Secret's name
	publicKey = "ssh-publickey"
)

// SSH makes the keys.
type SSH struct{}

// Scope says that it makes something, and that it wants to see containers which others add later.
func (SSH) Scope() extension.Scope {
	return extension.Scope{
		Name:               "ssh",
		ObjectSelector:     &metav1.LabelSelector{MatchLabels: map[string]string{extension.LabelSourceType: "APP"}},
		SideEffects:        new(admissionregistrationv1.SideEffectClassNoneOnDryRun),
		ReinvocationPolicy: new(admissionregistrationv1.IfNeededReinvocationPolicy),
	}
}

// Rights are those of the server: it cannot read a Secret.
func (SSH) Rights() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"secrets"}, Verbs: []string{"create"}}}
}

// Handle may come twice. On a reinvocation the Pod has its label; when the API server sends a
// request again, it has the same UID, and so its Secret the name of the one that is there.
func (SSH) Handle(ctx context.Context, mgr extension.Manager, pod *corev1.Pod, req admission.Request) admission.Response {
	if pod.Labels[keyLabel] == "" {
		// The Pod's name would not do: one with a generateName has none yet, and the Secret of a
		// predecessor may still be there.
		metav1.SetMetaDataLabel(&pod.ObjectMeta, keyLabel, "ssh-"+string(req.UID))
		if req.DryRun == nil || !*req.DryRun { // the scope says so: NoneOnDryRun
			if err := createKey(ctx, mgr, req.Namespace, pod.Labels[keyLabel]); err != nil {
				return admission.Errored(http.StatusInternalServerError, err)
			}
		}
	}
	for i := range pod.Spec.Containers {
		addVariable(&pod.Spec.Containers[i], "EIRINI_SSH_KEY", pod.Labels[keyLabel], publicKey)
		addVariable(&pod.Spec.Containers[i], "EIRINI_HOST_KEY", pod.Labels[keyLabel], corev1.SSHAuthPrivateKey)
	}
	return mgr.PatchFromPod(req, pod)
}

func createKey(ctx context.Context, mgr extension.Manager, namespace, name string) error {
	client, err := mgr.GetKubeClient()
	if err != nil {
		return err
	}
	data, err := newKeyPair()
	if err != nil {
		return err
	}
	_, err = client.Secrets(namespace).Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{keyLabel: name}},
		Type:       corev1.SecretTypeSSHAuth,
		Immutable:  new(true),
		Data:       data,
	}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

func addVariable(container *corev1.Container, name, secret, key string) {
	if slices.ContainsFunc(container.Env, func(env corev1.EnvVar) bool { return env.Name == name }) {
		return
	}
	container.Env = append(container.Env, corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{
		SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: secret}, Key: key},
	}})
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
		publicKey:                fmt.Appendf(nil, "%s %s\n", algorithm, base64.StdEncoding.EncodeToString(wire)),
	}, nil
}

func main() {
	cleanup := &Cleanup{}
	cmd := command.New("ssh", func(mgr *manager.Manager) error {
		return errors.Join(mgr.AddExtension(SSH{}), mgr.AddExtension(cleanup))
	})
	cmd.PersistentFlags().DurationVar(&cleanup.patience, "patience", 2*time.Minute,
		"how long a key waits for its Pod; longer than the API server's --request-timeout")
	command.Main(cmd)
}
