package registration

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Kinds are what can be wrong with a configuration: the kinds of a [Repair].
var Kinds = []string{
	"missing", "extra", "entry", "annotations", "labels", "owner", "caBundle", "rules", "target", "failurePolicy", "selectors", "matchConditions", "options",
}

// PathChanged is the kind of a [Repair] that only registers another path.
const PathChanged = "path"

// cause is one thing that is not as desired.
type cause struct {
	kind string // see Repair.Kind
	// detail says what, and what to do about it; "" if the kind says it all.
	detail string
}

// ofPath reports whether a path may not be as desired.
func (c cause) ofPath() bool {
	return slices.Contains([]string{"missing", "entry", "target", PathChanged}, c.kind)
}

// differences returns what is not as desired.
func (r *Registration) differences(live, desired *configuration) []cause {
	switch {
	case live == nil && len(desired.Webhooks) == 0:
		return nil
	case live == nil:
		return []cause{{kind: "missing"}}
	case len(desired.Webhooks) == 0:
		return []cause{{kind: "extra"}}
	}
	var causes []cause
	entries := map[string]*entry{}
	for i := range live.Webhooks {
		entries[live.Webhooks[i].Name] = &live.Webhooks[i]
	}
	for i := range desired.Webhooks {
		want := &desired.Webhooks[i]
		have := entries[want.Name]
		if have == nil {
			causes = append(causes, cause{kind: "entry"})
			continue
		}
		delete(entries, want.Name)
		causes = append(causes, r.entryDifferences(have, want)...)
	}
	for name := range entries {
		if r.ours(name) {
			causes = append(causes, cause{kind: "extra"})
		}
	}
	return append(causes, metadataDifferences(&live.ObjectMeta, &desired.ObjectMeta)...)
}

func metadataDifferences(live, desired *metav1.ObjectMeta) (causes []cause) {
	if detail := mapsDiffer(live.Annotations, desired.Annotations); detail != "" {
		causes = append(causes, cause{"annotations", detail})
	}
	if detail := mapsDiffer(live.Labels, desired.Labels); detail != "" {
		causes = append(causes, cause{"labels", detail})
	}
	for _, owner := range desired.OwnerReferences {
		if !slices.ContainsFunc(live.OwnerReferences, func(have metav1.OwnerReference) bool { return have.UID == owner.UID }) {
			return append(causes, cause{"owner", fmt.Sprintf("%s %s is missing", owner.Kind, owner.Name)})
		}
	}
	return causes
}

// mapsDiffer says which of the desired entries are not there; "" for none.
func mapsDiffer(live, desired map[string]string) string {
	var details []string
	for _, key := range slices.Sorted(maps.Keys(desired)) {
		switch value, has := live[key]; {
		case !has:
			details = append(details, fmt.Sprintf("%s is missing", key))
		case value != desired[key]:
			details = append(details, fmt.Sprintf("%s is %.100q, and should be %.100q", key, value, desired[key]))
		}
	}
	return strings.Join(details, "; ")
}

func (r *Registration) entryDifferences(have, want *entry) []cause {
	same := equality.Semantic.DeepEqual
	haveClient, wantClient := have.ClientConfig, want.ClientConfig
	haveClient.CABundle, wantClient.CABundle = nil, nil
	var causes []cause
	for _, each := range []struct {
		kind string
		same bool
	}{
		{"caBundle", r.ForeignBundle || bytes.Equal(have.ClientConfig.CABundle, want.ClientConfig.CABundle)},
		{"rules", same(have.Rules, want.Rules)},
		{"target", same(plainClient(haveClient), plainClient(wantClient))},
		{PathChanged, same(haveClient, wantClient)},
		{"failurePolicy", same(have.FailurePolicy, want.FailurePolicy)},
		{"matchConditions", same(have.MatchConditions, want.MatchConditions)},
		{"options", same(have.MatchPolicy, want.MatchPolicy) && same(have.ReinvocationPolicy, want.ReinvocationPolicy) &&
			same(have.SideEffects, want.SideEffects) && same(have.TimeoutSeconds, want.TimeoutSeconds) &&
			same(have.AdmissionReviewVersions, want.AdmissionReviewVersions)},
	} {
		if !each.same {
			causes = append(causes, cause{kind: each.kind})
		}
	}
	if detail, differ := r.selectorsDiffer(have, want); differ {
		causes = append(causes, cause{kind: "selectors", detail: detail})
	}
	return causes
}

// selectorsDiffer reports whether the selectors select something else than they should,
// apart from what others may exclude.
func (r *Registration) selectorsDiffer(have, want *entry) (detail string, differ bool) {
	if lacks(have.NamespaceSelector, want.NamespaceSelector) || lacks(have.ObjectSelector, want.ObjectSelector) {
		return fmt.Sprintf("the selectors of %s lack a term", want.Name), true
	}
	if added := strange(have.ObjectSelector, want.ObjectSelector, nil); len(added) > 0 {
		return fmt.Sprintf("the objectSelector of %s has terms that somebody added: %s", want.Name, termTexts(added)), true
	}
	added := strange(have.NamespaceSelector, want.NamespaceSelector, r.Tolerated)
	if len(added) == 0 {
		return "", false
	}
	detail = fmt.Sprintf("the namespaceSelector of %s has terms that somebody added: %s", want.Name, termTexts(added))
	if remedy := tolerating(added); remedy != "" && len(added) <= maxTerms {
		detail += "; if they may stay, start with --tolerate-selector-terms=" + remedy
	}
	return detail, true
}

func (r *Registration) ours(name string) bool { return strings.HasSuffix(name, "."+r.Domain) }
