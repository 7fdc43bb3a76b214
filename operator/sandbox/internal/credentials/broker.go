package credentials

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/cert"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/operator/internal/sandbox/broker/protocol"
)

// Broker asks the broker on behalf of runs. Its client is made anew when the authorities change.
type Broker struct {
	// Namespace is the broker's own, "" for none, and URL where it answers.
	Namespace, URL string
	// CAFile has the authorities of its certificate. If it is "", they are in the ConfigMap that the broker writes.
	CAFile string
	// Live reads that.
	Live client.Reader
	// Token returns one that the broker takes.
	Token func(context.Context) (string, error)

	mu    sync.Mutex
	ca    string
	asker *protocol.Client
}

// Client returns a client, and the authorities of the broker in PEM.
func (b *Broker) Client(ctx context.Context) (*protocol.Client, string, error) {
	ca, err := b.authorities(ctx)
	if err != nil {
		return nil, "", err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.asker == nil || b.ca != ca {
		asker, err := protocol.NewClient(protocol.ClientOptions{URL: b.URL, CA: []byte(ca), Token: b.Token})
		if err != nil {
			return nil, "", err
		}
		b.asker, b.ca = asker, ca
	}
	return b.asker, ca, nil
}

func (b *Broker) authorities(ctx context.Context) (string, error) {
	var ca, from string
	if file := b.CAFile; file != "" {
		read, err := os.ReadFile(file) //nolint:gosec // the option names it
		if err != nil {
			return "", fmt.Errorf("the authorities of the broker: %w", err)
		}
		ca, from = string(read), file
	} else {
		config := &corev1.ConfigMap{}
		key := client.ObjectKey{Namespace: b.Namespace, Name: protocol.CAName}
		if err := b.Live.Get(ctx, key, config); err != nil {
			return "", fmt.Errorf("the authorities of the broker, which it writes into ConfigMap %s: %w", key, err)
		}
		ca, from = config.Data[protocol.CAKey], "ConfigMap "+key.String()
	}
	if _, err := cert.ParseCertsPEM([]byte(ca)); err != nil {
		return "", fmt.Errorf("the authorities of the broker: %s: %w", from, err)
	}
	return ca, nil
}

// tokenSeconds is how long a token for the broker is valid: the shortest that the API server gives.
const tokenSeconds = 600

// TokenOf has the API server make tokens of the ServiceAccount as which this process runs, which me names. One that is mounted would be for the API
// server, and nobody else should see that.
func TokenOf(writer client.Client, me func(context.Context) (string, error)) func(context.Context) (string, error) {
	return func(ctx context.Context) (string, error) {
		user, err := me(ctx)
		if err != nil {
			return "", err
		}
		return tokenOf(ctx, writer, user)
	}
}

func tokenOf(ctx context.Context, writer client.Client, me string) (string, error) {
	namespace, name, ok := strings.Cut(strings.TrimPrefix(me, "system:serviceaccount:"), ":")
	if !ok || me == namespace+":"+name {
		return "", fmt.Errorf("the broker takes tokens of ServiceAccounts, and this process is user %q: run it in the cluster", me)
	}
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: []string{protocol.Audience}, ExpirationSeconds: new(int64(tokenSeconds))}}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	if err := writer.SubResource("token").Create(ctx, account, request); err != nil {
		return "", fmt.Errorf("a token for the broker, of ServiceAccount %s/%s: %w", namespace, name, err)
	}
	return request.Status.Token, nil
}
