package registration

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/internal/webhookpath"
)

// desired builds an object, given the one in the cluster, nil if there is none.
func (r *Registration) desired(res resource, live *configuration, pem []byte) *configuration {
	entries := r.entries(res)
	revision, since := digest(entries), r.Started.UTC()
	probed := !r.IgnoreUntilProbed || r.Probed()
	if live != nil {
		probed = probed || live.Annotations[ProbedAnnotation] == "true"
		when, err := time.Parse(time.RFC3339Nano, live.Annotations[RevisionTimeAnnotation])
		if err == nil && when.After(since) && !when.After(time.Now().Add(time.Hour)) {
			since = when
			if theirs := live.Annotations[RevisionAnnotation]; theirs != revision && theirs != "" {
				if newer := r.newer(live, theirs); newer != nil {
					revision, entries = theirs, newer
				}
			}
		}
	}
	for i := range entries {
		e := &entries[i]
		e.ClientConfig.CABundle = pem
		if r.ForeignBundle {
			e.ClientConfig.CABundle = nil
		}
		if !probed && !isProbe(e.Name) {
			ignore := admissionregistrationv1.Ignore
			e.FailurePolicy = &ignore
		}
		if r.Paths != nil {
			changePath(&e.ClientConfig, r.Paths.Sign)
		}
	}
	c := &configuration{
		TypeMeta:   metav1.TypeMeta{APIVersion: admissionregistrationv1.SchemeGroupVersion.String(), Kind: res.kind},
		ObjectMeta: metav1.ObjectMeta{Name: r.Name, Labels: r.Labels, Annotations: map[string]string{}},
		Webhooks:   entries,
	}
	maps.Copy(c.Annotations, r.Annotations)
	c.Annotations[OwnerAnnotation] = r.Target.Owner()
	c.Annotations[RevisionAnnotation] = revision
	c.Annotations[RevisionTimeAnnotation] = since.Format(time.RFC3339Nano)
	if r.IgnoreUntilProbed {
		c.Annotations[ProbedAnnotation] = strconv.FormatBool(probed)
	}
	if r.Owner != nil {
		c.OwnerReferences = []metav1.OwnerReference{*r.Owner}
	}
	return c
}

// newer returns our entries in the object as a newer replica registered them, without
// the terms that a platform may have added since; nil if they are not of that revision.
func (r *Registration) newer(live *configuration, revision string) []entry {
	entries := r.plain(live)
	if digest(entries) == revision {
		return entries
	}
	for _, implied := range []bool{false, true} {
		for i := range entries {
			e := &entries[i]
			e.NamespaceSelector = without(e.NamespaceSelector, r.Tolerated, implied)
		}
		if digest(entries) == revision {
			return entries
		}
	}
	return nil
}

// plain returns our entries in the object, at the paths that they have when nobody signs
// these.
func (r *Registration) plain(live *configuration) []entry {
	entries := slices.DeleteFunc(live.DeepCopy().Webhooks, func(e entry) bool { return !r.ours(e.Name) })
	for i := range entries {
		changePath(&entries[i].ClientConfig, webhookpath.Strip)
	}
	return entries
}

// plainClient returns a copy with the path that it has when nobody signs it.
func plainClient(c admissionregistrationv1.WebhookClientConfig) *admissionregistrationv1.WebhookClientConfig {
	plain := c.DeepCopy()
	changePath(plain, webhookpath.Strip)
	return plain
}

// changePath changes the path of a webhook.
func changePath(c *admissionregistrationv1.WebhookClientConfig, change func(string) string) {
	switch {
	case c.Service != nil && c.Service.Path != nil:
		after := change(*c.Service.Path)
		c.Service.Path = &after
	case c.URL != nil:
		u, err := url.Parse(*c.URL)
		if err != nil {
			return // the API server takes none such
		}
		u.Path = change(u.Path)
		after := u.String()
		c.URL = &after
	}
}

// saw tells Paths of those that are registered, and returns them.
func (r *Registration) saw(ctx context.Context, lives []*configuration, crds map[string]*crd) (registered []string, err error) {
	if r.Paths == nil {
		return nil, nil
	}
	note := func(path string) string {
		registered = append(registered, path)
		return path
	}
	for _, live := range lives {
		if live == nil {
			continue
		}
		for _, e := range live.DeepCopy().Webhooks {
			if r.ours(e.Name) {
				changePath(&e.ClientConfig, note)
			}
		}
	}
	for name, live := range crds {
		if !r.lost(name, live) {
			live.Spec.Conversion.changePath(note)
		}
	}
	for _, path := range registered {
		if err := r.Paths.Saw(ctx, path); err != nil {
			return nil, err
		}
	}
	return registered, nil
}

// keepTerms adds the terms that others added to the selectors in the cluster, and that
// may stay.
func (r *Registration) keepTerms(entries []entry, live *configuration) {
	if live == nil {
		return
	}
	for i := range entries {
		e := &entries[i]
		for j := range live.Webhooks {
			if have := &live.Webhooks[j]; have.Name == e.Name {
				e.NamespaceSelector = keep(e.NamespaceSelector, have.NamespaceSelector, r.Tolerated)
				e.ObjectSelector = keep(e.ObjectSelector, have.ObjectSelector, nil)
			}
		}
	}
}

func (r *Registration) entries(res resource) []entry {
	var entries []entry
	for _, w := range r.Webhooks {
		if w.Mutating != (res == mutating) {
			continue
		}
		e := r.entry(w.RegisteredName(), w.Path(), w.Scope)
		if w.Mutating {
			e.ReinvocationPolicy = w.Scope.ReinvocationPolicy
		}
		entries = append(entries, e)
	}
	if r.ProbeNamespace != "" && res == mutating && len(r.Webhooks) > 0 {
		entries = append(entries, r.probeEntry())
	}
	return entries
}

func (r *Registration) entry(name, path string, scope extension.Scope) entry {
	seconds := int32(scope.Timeout / time.Second) //nolint:gosec // whole seconds, 30 at most
	rules := slices.Clone(scope.Rules)
	for i := range rules {
		if rules[i].Scope == nil {
			all := admissionregistrationv1.AllScopes
			rules[i].Scope = &all
		}
	}
	return entry{
		Name:                    name + "." + r.Domain,
		ClientConfig:            r.clientConfig(path),
		Rules:                   rules,
		FailurePolicy:           scope.FailurePolicy,
		MatchPolicy:             scope.MatchPolicy,
		NamespaceSelector:       selector(scope.NamespaceSelector),
		ObjectSelector:          selector(scope.ObjectSelector),
		SideEffects:             scope.SideEffects,
		TimeoutSeconds:          &seconds,
		AdmissionReviewVersions: []string{"v1"},
		MatchConditions:         scope.MatchConditions,
	}
}

func selector(s *metav1.LabelSelector) *metav1.LabelSelector {
	if s == nil {
		return &metav1.LabelSelector{}
	}
	return s
}

func (r *Registration) clientConfig(path string) admissionregistrationv1.WebhookClientConfig {
	if r.Target.ServiceName != "" {
		port := r.Target.ServicePort
		return admissionregistrationv1.WebhookClientConfig{Service: &admissionregistrationv1.ServiceReference{
			Namespace: r.Target.ServiceNamespace, Name: r.Target.ServiceName, Port: &port, Path: &path,
		}}
	}
	address := net.JoinHostPort(r.Target.Host, strconv.Itoa(int(r.Target.Port)))
	u := (&url.URL{Scheme: "https", Host: address, Path: path}).String()
	return admissionregistrationv1.WebhookClientConfig{URL: &u}
}

// digest identifies a set of webhooks. It leaves out the fields that change while
// the webhooks stay the same.
func digest(entries []entry) string {
	entries = slices.Clone(entries)
	for i := range entries {
		entries[i].ClientConfig.CABundle, entries[i].FailurePolicy = nil, nil
	}
	slices.SortFunc(entries, func(a, b entry) int { return strings.Compare(a.Name, b.Name) })
	return content(entries)
}

// content identifies entries with all that they say.
func content(entries []entry) string {
	text, err := json.Marshal(entries)
	if err != nil {
		panic(err) // API types can always be encoded
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:8])
}
