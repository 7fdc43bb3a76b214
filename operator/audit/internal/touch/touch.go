// Package touch marks the Pods of interactive sessions ([Toucher]), keeps the mark
// ([Guard]), and evicts the Pods some time after the first session began ([Evictor]).
package touch

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/operator/audit/internal/act"
)

// The mark on a Pod. Everything that is known about a session is there, and
// nothing in memory. Package audit documents it (audit.LabelTouchedBy).
const (
	Label                = "admitkit.dev/touched-by"
	AnnotationTouchedBy  = "admitkit.dev/touched-by"
	AnnotationTouchedAt  = "admitkit.dev/touched-at"
	AnnotationEvictAfter = "admitkit.dev/evict-after"
)

// Options say what happens to touched Pods. Package audit documents them
// (audit.TouchedPods).
type Options struct {
	EvictAfter    time.Duration
	MaxEvictAfter time.Duration
	Unmanaged     bool
}

// defaultMaxEvictAfter is how far an eviction can be put off by default.
const defaultMaxEvictAfter = 24 * time.Hour

// WithDefaults returns the options with their defaults, or an error that names
// the wrong option.
func (o Options) WithDefaults() (Options, error) {
	if o.EvictAfter < 0 {
		return o, fmt.Errorf("EvictAfter: %s: must not be negative", o.EvictAfter)
	}
	if o.MaxEvictAfter == 0 {
		o.MaxEvictAfter = max(defaultMaxEvictAfter, o.EvictAfter)
	}
	if o.MaxEvictAfter < o.EvictAfter {
		return o, fmt.Errorf("MaxEvictAfter: %s: must not be less than EvictAfter, %s", o.MaxEvictAfter, o.EvictAfter)
	}
	return o, nil
}

// Toucher marks Pods.
type Toucher struct {
	client client.Client
	clock  clock.PassiveClock
}

// New returns a Toucher.
func New(c client.Client, clock clock.PassiveClock) *Toucher {
	return &Toucher{client: c, clock: clock}
}

// touchTimeout bounds how long a session waits for its Pod's mark.
const touchTimeout = 2 * time.Second

// Touch marks the Pod of a session that is about to begin, unless a session before it
// has: the mark says when the first began, and [Guard] lets nobody move it.
//
// It writes to the subresource status, which cannot change the Pod's spec: the
// right to patch Pods themselves would allow any image in any of them.
func (t *Toucher) Touch(ctx context.Context, a *act.Act) error {
	if a.Pod != nil && isMarked(a.Pod) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, touchTimeout)
	defer cancel()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: a.Record.Namespace, Name: a.Record.Pod}}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"labels": map[string]string{Label: dashed(a.Record.User.Username)},
		"annotations": map[string]string{
			AnnotationTouchedBy: a.Record.User.Username, AnnotationTouchedAt: t.clock.Now().UTC().Format(time.RFC3339Nano),
		},
	}})
	if err != nil {
		return err
	}
	err = t.client.Status().Patch(ctx, pod, client.RawPatch(types.MergePatchType, patch))
	if apierrors.IsForbidden(err) && t.client.Get(ctx, client.ObjectKeyFromObject(pod), pod) == nil && isMarked(pod) {
		return nil // another session was first, a moment ago
	}
	if err != nil {
		touchFailed.Inc()
		return fmt.Errorf("marking Pod %s/%s as touched: %w", a.Record.Namespace, a.Record.Pod, err)
	}
	touched.Inc()
	return nil
}

func isMarked(pod *corev1.Pod) bool {
	_, marked := pod.Labels[Label]
	return marked
}

// dashed returns a name as the value of a label: at most 63 letters, digits,
// dashes, underscores and dots, with a letter or digit at both ends. A dash
// replaces every other character.
func dashed(name string) string {
	value := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_' || r == '.' {
			return r
		}
		return '-'
	}, name)
	const limit = 63
	value = strings.Trim(value[:min(len(value), limit)], "-_.")
	if value == "" {
		return "unknown"
	}
	return value
}
