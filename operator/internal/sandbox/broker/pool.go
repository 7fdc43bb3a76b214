package broker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

// maxPool bounds the tokens of a pool.
const maxPool = 256

// errHeld says that a credential which nobody can revoke is still with a run.
var errHeld = errors.New("the run that has the credential is still there, and cannot be made to forget it")

// poolProvider gives each key of a Secret to one run at a time. That is so across restarts
// and brokers, because a lease has a name by its key.
type poolProvider struct {
	live     client.Client
	runs     runs
	duration time.Duration
}

func (p *poolProvider) keys(ctx context.Context, namespace string, grant *v1alpha1.CredentialGrant) ([]string, bool, error) {
	secret := &corev1.Secret{}
	if err := p.live.Get(ctx, client.ObjectKey{Namespace: namespace, Name: grant.TokenPool.SecretName}, secret); err != nil {
		return nil, true, fmt.Errorf("reading Secret %s/%s: %w", namespace, grant.TokenPool.SecretName, err)
	}
	keys, tokens := slices.Sorted(maps.Keys(secret.Data)), map[string]string{}
	switch {
	case len(keys) == 0:
		return nil, true, fmt.Errorf("Secret %s/%s has no token", namespace, secret.Name)
	case len(keys) > maxPool:
		return nil, true, fmt.Errorf("Secret %s/%s has %d tokens, at most %d are allowed", namespace, secret.Name, len(keys), maxPool)
	}
	for i, key := range keys {
		token := strings.TrimSpace(string(secret.Data[key]))
		if other, taken := tokens[token]; taken || token == "" {
			return nil, true, fmt.Errorf("Secret %s/%s: the key %q has no token of its own (%q has it): two runs would have the same", namespace, secret.Name, key, other)
		}
		tokens[token] = key
		keys[i] = secret.Name + "/" + key
	}
	return keys, true, nil
}

func (p *poolProvider) life() time.Duration { return p.duration }

func (p *poolProvider) issue(ctx context.Context, _ *v1alpha1.CredentialGrant, lease *v1alpha1.CredentialLease) (string, []byte, error) {
	name, key, _ := strings.Cut(lease.Spec.Key, "/")
	value, err := readKey(ctx, p.live, lease.Spec.Run.Namespace, v1alpha1.SecretKey{Name: name, Key: key})
	return value, nil, err
}

// revoke makes the token free for another run. It is still in the memory of the proxy, which
// forgets it at the end of the lease, or in a container, until that has ended.
func (p *poolProvider) revoke(ctx context.Context, lease *v1alpha1.CredentialLease, _ []byte) error {
	var held bool
	var err error
	if lease.Spec.Pod == nil {
		held, err = p.runStays(ctx, lease.Spec.Run)
	} else {
		held, err = p.podStays(ctx, lease.Spec.Run.Namespace, lease.Spec.Pod)
	}
	switch {
	case err != nil:
		return err
	case held && lease.Spec.Pod == nil:
		return errHeld
	case held:
		return fmt.Errorf("the proxy of Pod %s has the token until %s", lease.Spec.Pod.Name, lease.Spec.ExpiresAt.UTC().Format(time.RFC3339))
	}
	return nil
}

// podStays reports whether the containers of a Pod can still run.
func (p *poolProvider) podStays(ctx context.Context, namespace string, of *v1alpha1.LeasePod) (bool, error) {
	pod := &corev1.Pod{}
	err := p.live.Get(ctx, client.ObjectKey{Namespace: namespace, Name: of.Name}, pod)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	return err == nil && pod.UID == of.UID && !hasEnded(pod), err
}

// runStays reports whether a container of a run can still have its token: the run has not come to its end, or one of its
// Pods has not. Those of a run that was cancelled have their grace period, and somebody may have kept one from the
// deletion of its Job.
func (p *poolProvider) runStays(ctx context.Context, of v1alpha1.LeaseRun) (bool, error) {
	found, err := p.runs.get(ctx, of.Kind, of.Namespace, of.Name)
	switch {
	case client.IgnoreNotFound(err) != nil:
		return false, err
	case err == nil && found.UID == of.UID && !found.finished:
		return true, nil
	}
	var pods corev1.PodList
	for more := true; more; more = pods.Continue != "" {
		err := p.live.List(ctx, &pods, client.InNamespace(of.Namespace), client.MatchingLabels{v1alpha1.LabelEgress: string(of.UID)}, client.Limit(podPage), client.Continue(pods.Continue))
		if err != nil {
			return false, fmt.Errorf("listing the Pods of %s %s/%s: %w", of.Kind, of.Namespace, of.Name, err)
		}
		if slices.ContainsFunc(pods.Items, isOfRun) {
			return true, nil
		}
	}
	return false, nil
}

// podPage bounds a page of Pods.
const podPage = 100

// isOfRun reports whether a Pod with the label for policies is one of a run or a seed, and has not ended. Of these two labels
// admission keeps everybody off, so that nobody holds a token by a Pod of their own.
func isOfRun(pod corev1.Pod) bool {
	ours := pod.Labels[v1alpha1.LabelSandboxRun] != "" || pod.Labels[v1alpha1.LabelWorkspace] != ""
	return ours && !hasEnded(&pod)
}

// hasEnded reports whether no container of a Pod runs, or will.
func hasEnded(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}
