package owned

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

// The suffixes of the names of the Secrets of a run, of which the seed of a Workspace has the first.
const (
	SuffixProxy       = "-proxy"
	SuffixCredentials = "-credentials"
)

// The keys of the Secret of a proxy: caKey has what the work trusts, brokerCAKey what the proxy trusts the broker by, and
// upstreamKey what it trusts servers by, besides the authorities of the internet.
const (
	KeyCA         = "ca.crt"
	KeyBrokerCA   = "broker-ca.crt"
	KeyUpstreamCA = "upstream-ca.crt"
)

// PromptName is the name of the Secret with a run's prompt: the same each time, and unknown to whoever has no key.
func PromptName(run *v1alpha1.SandboxRun, key []byte) string {
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(run.UID)) // never an error
	return Name(run).Name + "-prompt-" + hex.EncodeToString(mac.Sum(nil)[:16])
}

// Secret is one of the Secrets of a run or a Workspace, by the metadata of what belongs to it, with this data.
func Secret(meta metav1.ObjectMeta, suffix string, data map[string][]byte) *corev1.Secret {
	meta.Name += suffix
	return &corev1.Secret{ObjectMeta: meta, Type: corev1.SecretTypeOpaque, Data: data}
}
