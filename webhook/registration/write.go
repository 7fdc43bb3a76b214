package registration

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
)

// apply writes by server-side apply and returns what came of it. A resource
// version in the object makes it fail when someone else wrote.
func apply(ctx context.Context, client rest.Interface, res resource, c *configuration) (*configuration, error) {
	body, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	data, err := raw(client.Patch(types.ApplyPatchType).Resource(res.plural).Name(c.Name).
		Param("fieldManager", FieldManager).Param("force", "true").
		SetHeader("Accept", "application/json").Body(body).Do(ctx))
	if err != nil {
		return nil, fmt.Errorf("applying %s %s: %w", res.kind, c.Name, err)
	}
	return decode(res, c.Name, data)
}

// replace writes a whole object as it was read, but for our entries.
func replace(ctx context.Context, client rest.Interface, res resource, c *configuration) error {
	c.Kind, c.APIVersion = res.kind, "admissionregistration.k8s.io/v1"
	body, err := json.Marshal(c)
	if err != nil {
		return err
	}
	if err := client.Put().Resource(res.plural).Name(c.Name).Param("fieldManager", FieldManager).
		SetHeader("Accept", "application/json").SetHeader("Content-Type", "application/json").Body(body).Do(ctx).Error(); err != nil {
		return fmt.Errorf("replacing %s %s: %w", res.kind, c.Name, err)
	}
	return nil
}

// difference names the first thing that is not as desired; "" if all is.
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
		found := false
		for _, have := range live.OwnerReferences {
			found = found || have.UID == owner.UID
		}
		if !found {
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
