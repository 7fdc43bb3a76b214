package registration

import (
	"bytes"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Kinds are what can be wrong with a configuration: the kinds of a [Repair].
var Kinds = []string{
	"missing", "extra", "entry", "annotations", "labels", "owner", "caBundle", "rules", "target", "failurePolicy", "selectors", "matchConditions", "options",
}

// difference names the first thing that is not as desired, "" if nothing differs.
func (r *Registration) difference(live, desired *configuration) string {
	switch {
	case live == nil && len(desired.Webhooks) == 0:
		return ""
	case live == nil:
		return "missing"
	case len(desired.Webhooks) == 0:
		return "extra"
	}
	entries := map[string]*entry{}
	for i := range live.Webhooks {
		entries[live.Webhooks[i].Name] = &live.Webhooks[i]
	}
	for i := range desired.Webhooks {
		want := &desired.Webhooks[i]
		have := entries[want.Name]
		if have == nil {
			return "entry"
		}
		delete(entries, want.Name)
		if what := r.entryDifference(have, want); what != "" {
			return what
		}
	}
	for name := range entries {
		if r.ours(name) {
			return "extra"
		}
	}
	return metadataDifference(&live.ObjectMeta, &desired.ObjectMeta)
}

func metadataDifference(live, desired *metav1.ObjectMeta) string {
	for key, value := range desired.Annotations {
		if live.Annotations[key] != value {
			return "annotations"
		}
	}
	for key, value := range desired.Labels {
		if live.Labels[key] != value {
			return "labels"
		}
	}
	for _, owner := range desired.OwnerReferences {
		if !slices.ContainsFunc(live.OwnerReferences, func(have metav1.OwnerReference) bool { return have.UID == owner.UID }) {
			return "owner"
		}
	}
	return ""
}

func (r *Registration) entryDifference(have, want *entry) string {
	same := equality.Semantic.DeepEqual
	haveClient, wantClient := have.ClientConfig, want.ClientConfig
	haveClient.CABundle, wantClient.CABundle = nil, nil
	switch {
	case !r.ForeignBundle && !bytes.Equal(have.ClientConfig.CABundle, want.ClientConfig.CABundle):
		return "caBundle"
	case !same(have.Rules, want.Rules):
		return "rules"
	case !same(haveClient, wantClient):
		return "target"
	case !same(have.FailurePolicy, want.FailurePolicy):
		return "failurePolicy"
	case !same(have.NamespaceSelector, want.NamespaceSelector), !same(have.ObjectSelector, want.ObjectSelector):
		return "selectors"
	case !same(have.MatchConditions, want.MatchConditions):
		return "matchConditions"
	case !same(have.MatchPolicy, want.MatchPolicy), !same(have.ReinvocationPolicy, want.ReinvocationPolicy),
		!same(have.SideEffects, want.SideEffects), !same(have.TimeoutSeconds, want.TimeoutSeconds),
		!same(have.AdmissionReviewVersions, want.AdmissionReviewVersions):
		return "options"
	}
	return ""
}

func (r *Registration) ours(name string) bool { return strings.HasSuffix(name, "."+r.Domain) }
