package touch

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestWhenATouchedPodIsEvicted(t *testing.T) {
	created := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	now := created.Add(time.Hour)
	options := &Options{EvictAfter: 30 * time.Minute, MaxEvictAfter: 2 * time.Hour}
	for name, test := range map[string]struct {
		at, after string
		want      time.Time
		problem   bool
	}{
		"after the delay":         {now.Format(time.RFC3339Nano), "", now.Add(30 * time.Minute), false},
		"put off":                 {now.Format(time.RFC3339Nano), "1h", now.Add(time.Hour), false},
		"not brought forward":     {now.Format(time.RFC3339Nano), "1s", now.Add(30 * time.Minute), false},
		"put off beyond the most": {now.Format(time.RFC3339Nano), "100000h", now.Add(2 * time.Hour), true},
		"put off by nonsense":     {now.Format(time.RFC3339Nano), "long", now.Add(30 * time.Minute), true},
		"touched at no time":      {"", "", created.Add(30 * time.Minute), true},
		"touched at nonsense":     {"never", "1h", created.Add(time.Hour), true},
		"touched in the future":   {now.Add(time.Hour).Format(time.RFC3339Nano), "", created.Add(30 * time.Minute), true},
		"a clock that is ahead":   {now.Add(time.Second).Format(time.RFC3339Nano), "", now.Add(30*time.Minute + time.Second), false},
	} {
		meta := &metav1.ObjectMeta{CreationTimestamp: metav1.Time{Time: created}, Annotations: map[string]string{AnnotationTouchedAt: test.at}}
		if test.after != "" {
			meta.Annotations[AnnotationEvictAfter] = test.after
		}
		if due, problem := options.due(meta, now); !due.Equal(test.want) || (problem != "") != test.problem {
			t.Errorf("%s: %s, want %s; %q", name, due, test.want, problem)
		}
	}
}

func TestALabelSaysWhoAsFarAsItCan(t *testing.T) {
	for name, want := range map[string]string{
		"alice": "alice", "alice@example.com": "alice-example.com", "system:serviceaccount:a:b": "system-serviceaccount-a-b",
		"": "unknown", "//": "unknown", "-a-": "a", "Ünal": "nal", strings.Repeat("a", 62) + ":b": strings.Repeat("a", 62),
	} {
		if got := dashed(name); got != want {
			t.Errorf("%q becomes %q, want %q", name, got, want)
		}
	}
}
