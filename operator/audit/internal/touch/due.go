package touch

import (
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// due returns when a marked Pod is evicted, and the problem with its annotations,
// if there is one. A Pod without a credible time of its first session counts as
// touched when it was created: a garbled annotation gains nobody time.
func (o *Options) due(pod *metav1.ObjectMeta, now time.Time) (due time.Time, problem string) {
	at, err := time.Parse(time.RFC3339Nano, pod.Annotations[AnnotationTouchedAt])
	const skew = time.Minute // between the clocks of replicas
	if err != nil || at.After(now.Add(skew)) {
		problem = fmt.Sprintf("annotation %s: %q is not a time in the past", AnnotationTouchedAt, pod.Annotations[AnnotationTouchedAt])
		at = pod.CreationTimestamp.Time
	}
	after := o.EvictAfter
	if text, found := pod.Annotations[AnnotationEvictAfter]; found {
		longer, err := time.ParseDuration(text)
		switch {
		case err != nil:
			problem = fmt.Sprintf("annotation %s: %q is not a duration such as 90m or 4h", AnnotationEvictAfter, text)
		case longer > o.MaxEvictAfter:
			problem = fmt.Sprintf("annotation %s: %s exceeds the maximum, %s, which applies instead", AnnotationEvictAfter, text, o.MaxEvictAfter)
			after = o.MaxEvictAfter
		default:
			after = max(after, longer)
		}
	}
	return at.Add(after), problem
}
