package audit_test

import (
	"slices"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/admitkit/admitkit/internal/host"
	"github.com/admitkit/admitkit/operator/audit"
	"github.com/admitkit/admitkit/testing/fakes"
)

func TestNodesProxyIsLeftOutAloneAndAServerSaysSo(t *testing.T) {
	for name, enforcement := range map[string]*audit.Enforcement{"recorded": nil, "enforced": {Namespaces: []string{"shop"}, ExemptGroups: []string{"oncall"}}} {
		covered := func(without bool) (resources, scopes []string) {
			mgr := fakes.NewManager()
			parts, err := host.PartsOf(audit.New(audit.Options{Enforcement: enforcement, WithoutNodeProxy: without}), mgr)
			if err != nil {
				t.Fatal(err)
			}
			for _, handler := range parts.Handlers {
				scopes = append(scopes, host.Open(handler).Scope.Name)
				for _, rule := range host.Open(handler).Scope.Rules {
					resources = append(resources, rule.Resources...)
				}
			}
			return resources, scopes
		}
		want, wantScopes := covered(false)
		got, gotScopes := covered(true)
		if !slices.Contains(want, "nodes/proxy") || slices.Contains(got, "nodes/proxy") {
			t.Errorf("%s: without: %q, with: %q", name, got, want)
		}
		of := func(scope string) bool { return scope == "audit-nodes" || scope == "audit-enforced-nodes" }
		if wantScopes = slices.DeleteFunc(wantScopes, of); !slices.Equal(gotScopes, wantScopes) {
			t.Errorf("%s: the scopes are %q, want %q", name, gotScopes, wantScopes)
		}
		if want = slices.DeleteFunc(want, func(resource string) bool { return resource == "nodes/proxy" }); enforcement == nil && !slices.Equal(got, want) {
			t.Errorf("%s: it covers %q, want %q", name, got, want)
		}
	}
	for _, without := range []bool{true, false} {
		core, logs := observer.New(zap.WarnLevel)
		newAloneWith(t, audit.Options{WithoutNodeProxy: without}, zap.New(core))
		if said := logs.FilterMessageSnippet("nodes/proxy is left out").Len(); (said > 0) != without {
			t.Errorf("without: %t: it is said %d times", without, said)
		}
	}
}
