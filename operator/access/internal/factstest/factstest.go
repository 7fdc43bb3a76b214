// Package factstest makes facts about requests, for the tests of what reads them, decides by
// them and applies the decision.
package factstest

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/admitkit/admitkit/operator/access/internal/facts"
	"github.com/admitkit/admitkit/operator/access/internal/grant"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

// Created is when the request of [About] was made.
var Created = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// About returns the facts about a request for an hour, made at created by alice, who
// is allowed to.
func About(k grant.Kind, more ...func(*facts.Facts)) *facts.Facts {
	req, template := k.NewRequest(), k.NewTemplate()
	req.SetNamespace("shop")
	req.SetName("a")
	req.SetUID("1")
	req.SetCreationTimestamp(metav1.NewTime(Created))
	*req.GetRequestSpec() = v1alpha1.RequestSpec{TemplateName: "web", Duration: "1h", Requester: &v1alpha1.Requester{Username: "alice", Groups: []string{"devs"}}}
	template.SetName("web")
	*template.GetAccessConfig() = v1alpha1.AccessConfig{AllowedGroups: []string{"devs"}, DefaultDuration: "1h", MaxDuration: "2h"}
	f := &facts.Facts{
		Kind: k, Key: types.NamespacedName{Namespace: "shop", Name: "a"}, Request: req,
		End: Created.Add(time.Hour), KeepUntil: Created.Add(25 * time.Hour), Template: template,
	}
	if t, ok := template.(*v1alpha1.PodAccessTemplate); ok {
		t.Spec.PodSpec = &corev1.PodSpec{Containers: []corev1.Container{{Name: "main"}}}
	} else {
		f.Chosen = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-0", UID: "p"}}
	}
	for _, change := range more {
		change(f)
	}
	return f
}

// SettledOn says which Pod an earlier grant of the request was about.
func SettledOn(name, uid string) func(*facts.Facts) {
	return func(f *facts.Facts) {
		f.Request.GetRequestStatus().PodName, f.Request.GetRequestStatus().PodUID = name, uid
	}
}

// IsGone deletes the request.
func IsGone(f *facts.Facts) { f.Request = nil }

// SaysEnded has the status of the request say that its access has ended.
func SaysEnded(f *facts.Facts) {
	f.Request.GetRequestStatus().Conditions = []metav1.Condition{{Type: v1alpha1.ConditionAccessStillValid, Status: metav1.ConditionFalse}}
}

// ForOther has a user, of the group devs, ask for another, by a template that lets bots ask
// for alice and system:admin.
func ForOther(user, other string, bots ...string) func(*facts.Facts) {
	return func(f *facts.Facts) {
		spec, config := f.Request.GetRequestSpec(), f.Template.GetAccessConfig()
		spec.Requester.Username, spec.OnBehalfOf = user, other
		config.AllowedUsers, config.AskFor = []string{"alice", "system:admin"}, &v1alpha1.AskFor{Users: bots}
	}
}
