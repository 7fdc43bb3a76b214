package audit

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/api/v1alpha1"
)

// What is written on a Pod before an interactive session begins. All that is
// known about the session is there and not in memory.
const (
	// LabelTouchedBy has the user's name, with a dash for each character that a
	// label's value cannot have.
	LabelTouchedBy = "admitkit.dev/touched-by"
	// AnnotationTouchedBy has the user's name as it is.
	AnnotationTouchedBy = "admitkit.dev/touched-by"
	// AnnotationTouchedAt has when the last session began (RFC 3339).
	AnnotationTouchedAt = "admitkit.dev/touched-at"
	// AnnotationEvictAfter puts the eviction off: a Go duration such as 4h, from
	// the beginning of the last session. Whoever may annotate the Pod may set it.
	AnnotationEvictAfter = "admitkit.dev/evict-after"
)

// TouchedPods says what happens to a Pod after an interactive session: an exec
// or attach with a terminal or standard input. What somebody typed into a Pod is
// in no image and no manifest, and goes with the Pod.
//
// Pods are labelled before the session begins. A session whose Pod cannot be
// labelled begins nevertheless; that is logged and counted.
type TouchedPods struct {
	// EvictAfter is how long after the beginning of the last session the Pod is
	// evicted, by the leading replica. PodDisruptionBudgets are respected.
	// Default: never, Pods are labelled only.
	EvictAfter time.Duration
	// MaxEvictAfter is how far the annotation [AnnotationEvictAfter] can put it
	// off. Default: 24 h, or EvictAfter if that is longer.
	MaxEvictAfter time.Duration
	// Unmanaged evicts also Pods that have no controller to replace them.
	// Default: they are labelled only.
	Unmanaged bool
}

// defaultMaxEvictAfter is how far an eviction can be put off by default.
const defaultMaxEvictAfter = 24 * time.Hour

func (t *TouchedPods) setDefaults() error {
	if t.EvictAfter < 0 {
		return fmt.Errorf("TouchedPods.EvictAfter: %s: must not be negative", t.EvictAfter)
	}
	if t.MaxEvictAfter == 0 {
		t.MaxEvictAfter = max(defaultMaxEvictAfter, t.EvictAfter)
	}
	if t.MaxEvictAfter < t.EvictAfter {
		return fmt.Errorf("TouchedPods.MaxEvictAfter: %s: must not be less than EvictAfter, %s", t.MaxEvictAfter, t.EvictAfter)
	}
	return nil
}

// interactive reports whether an act is an interactive session. That an
// ephemeral container is added is none yet: to label its Pod at that moment
// would let the API server's own write of it fail. Who attaches to it begins
// one.
func interactive(a *act) bool {
	r := &a.record
	return (r.Way == v1alpha1.WayExec || r.Way == v1alpha1.WayAttach) && (r.TTY || r.Stdin) && !r.DryRun
}

// toucher labels Pods.
type toucher struct {
	*TouchedPods
	client client.Client
	clock  clock.PassiveClock
}

// touch labels the Pod of a session that is about to begin.
//
// It writes by the subresource status, which cannot change the Pod's spec: with
// the right to patch Pods themselves one could run any image in any of them.
func (t *toucher) touch(ctx context.Context, a *act) error {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: a.record.Namespace, Name: a.record.Pod}}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"labels": map[string]string{LabelTouchedBy: labelValue(a.record.User.Username)},
		"annotations": map[string]string{
			AnnotationTouchedBy: a.record.User.Username, AnnotationTouchedAt: t.clock.Now().UTC().Format(time.RFC3339Nano),
		},
	}})
	if err != nil {
		return err
	}
	if err := t.client.Status().Patch(ctx, pod, client.RawPatch(types.MergePatchType, patch)); err != nil {
		touchFailed.Inc()
		return fmt.Errorf("labelling Pod %s/%s as touched: %w", a.record.Namespace, a.record.Pod, err)
	}
	touched.Inc()
	return nil
}

// evictionDue returns when a labelled Pod is to be evicted, and what is wrong
// with its annotations, if anything is. A Pod that does not say credibly when it
// was touched was touched when it was created: to garble the annotation gains
// nobody time.
func (t *TouchedPods) evictionDue(pod *metav1.ObjectMeta, now time.Time) (due time.Time, problem string) {
	at, err := time.Parse(time.RFC3339Nano, pod.Annotations[AnnotationTouchedAt])
	const skew = time.Minute // between the clocks of replicas
	if err != nil || at.After(now.Add(skew)) {
		problem = fmt.Sprintf("annotation %s: %q is not a time in the past", AnnotationTouchedAt, pod.Annotations[AnnotationTouchedAt])
		at = pod.CreationTimestamp.Time
	}
	after := t.EvictAfter
	if text, found := pod.Annotations[AnnotationEvictAfter]; found {
		longer, err := time.ParseDuration(text)
		switch {
		case err != nil:
			problem = fmt.Sprintf("annotation %s: %q is not a duration such as 90m or 4h", AnnotationEvictAfter, text)
		case longer > t.MaxEvictAfter:
			problem = fmt.Sprintf("annotation %s: %s exceeds the maximum, %s, which counts instead", AnnotationEvictAfter, text, t.MaxEvictAfter)
			after = t.MaxEvictAfter
		default:
			after = max(after, longer)
		}
	}
	return at.Add(after), problem
}

// labelValue makes a label's value of a name: at most 63 letters, digits,
// dashes, underscores and dots, with letters or digits at the ends.
func labelValue(name string) string {
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
