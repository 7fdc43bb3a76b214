package v1alpha1_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

// approvable is a request of alice that two of the group sre, or carol, must approve
// within an hour.
func approvable(made time.Time) *v1alpha1.ExecAccessRequest {
	r := &v1alpha1.ExecAccessRequest{}
	r.UID, r.CreationTimestamp = "uid", metav1.NewTime(made)
	r.Spec.Duration, r.Spec.Requester = "30m", &v1alpha1.Requester{Username: "alice", Groups: []string{"sre"}}
	r.Spec.Approval = &v1alpha1.ApprovalTerms{Required: 2, Groups: []string{"sre"}, Users: []string{"carol"}, Timeout: "1h"}
	return r
}

func decided(by, group string, word v1alpha1.Decision, at time.Time) v1alpha1.AccessDecision {
	d := v1alpha1.AccessDecision{}
	d.UID, d.CreationTimestamp = types.UID(by+at.String()), metav1.NewTime(at)
	d.Spec.Request.UID, d.Spec.Decision = "uid", word
	d.Spec.Decider = &v1alpha1.Requester{Username: by, Groups: []string{group}}
	return d
}

func TestVerdictsAreTheSameInWhateverOrderDecisionsCome(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	made := time.Unix(1_000_000, 0)
	for range 2000 {
		r := approvable(made)
		var all []v1alpha1.AccessDecision
		for i := range random.IntN(8) {
			word := v1alpha1.DecisionApprove
			if random.IntN(6) == 0 {
				word = v1alpha1.DecisionDeny
			}
			at := made.Add(time.Duration(random.IntN(90)) * time.Minute)
			name := []string{"alice", "bob", "sam", "sue", "carol", "system:serviceaccount:a:b"}[random.IntN(6)]
			d := decided(name, []string{"sre", "devs"}[random.IntN(2)], word, at)
			d.UID = types.UID(fmt.Sprint(i))
			all = append(all, d)
		}
		want := v1alpha1.Verdicts(r, all)
		random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		if got := v1alpha1.Verdicts(r, all); !slices.EqualFunc(got, want, func(x, y v1alpha1.Verdict) bool { return x == y || x.Username == y.Username && x.Time.Equal(&y.Time) }) {
			t.Fatalf("%v, and in another order %v", want, got)
		}
		people := map[string]bool{}
		for i, v := range want {
			if people[v.Username] || v.Username == "alice" || v.Time.After(made.Add(time.Hour)) {
				t.Fatalf("verdict %d of %v does not count", i, want)
			}
			if v.Decision == v1alpha1.DecisionDeny && i != len(want)-1 {
				t.Fatalf("a denial is not the last of %v", want)
			}
			people[v.Username] = true
		}
		if denied := len(want) > 0 && want[len(want)-1].Decision == v1alpha1.DecisionDeny; !denied && len(want) > 2 {
			t.Fatalf("more than were required: %v", want)
		}
	}
}

// Whoever can sign in under two spellings of a name is one person all the same. These differ
// in lower case, and are equal to strings.EqualFold.
func TestTwoSpellingsOfANameAreOnePerson(t *testing.T) {
	t.Parallel()
	made := time.Unix(1_000_000, 0)
	for _, names := range [][2]string{{"jessica", "jeſſica"}, {"ΝΊΚΟΣ", "νίκος"}, {"kim", "\u212Aim"}, {"sue", "SUE"}} {
		first := decided(names[0], "sre", v1alpha1.DecisionApprove, made)
		second := decided(names[1], "sre", v1alpha1.DecisionApprove, made)
		if got := v1alpha1.Verdicts(approvable(made), []v1alpha1.AccessDecision{first, second}); len(got) != 1 {
			t.Errorf("%q count as %d people", names, len(got))
		}
	}
}

func TestAccessIsCountedFromTheApprovalAndNotFromLaterThanTheTimeout(t *testing.T) {
	t.Parallel()
	made := time.Unix(1_000_000, 0)
	for name, c := range map[string]struct {
		approved time.Duration // after the request; negative: not at all
		end      time.Duration
	}{
		"not approved, it ends when it can no longer be": {-1, time.Hour},
		"approved, the duration later":                   {10 * time.Minute, 40 * time.Minute},
		"approved after the timeout, as if at it":        {5 * time.Hour, 90 * time.Minute},
	} {
		r := approvable(made)
		if c.approved >= 0 {
			r.Status.ApprovedAt = &metav1.Time{Time: made.Add(c.approved)}
		}
		if end, err := v1alpha1.EndOf(r); err != nil || !end.Equal(made.Add(c.end)) {
			t.Errorf("%s: %s, %v", name, end.Sub(made), err)
		}
	}
	before := approvable(made)
	before.Status.ApprovedAt = &metav1.Time{Time: made.Add(-time.Hour)}
	if end, err := v1alpha1.EndOf(before); err != nil || !end.Equal(made.Add(30*time.Minute)) {
		t.Errorf("approved before it was made: %s, %v", end.Sub(made), err)
	}
	skipped := approvable(made)
	skipped.Spec.Approval.SkippedFor = "oncall"
	if end, err := v1alpha1.EndOf(skipped); err != nil || !end.Equal(made.Add(30*time.Minute)) {
		t.Errorf("without approval: %s, %v", end.Sub(made), err)
	}
}
