package rules_test

import (
	"testing"

	"github.com/admitkit/admitkit/operator/access/internal/facts"
	"github.com/admitkit/admitkit/operator/access/internal/factstest"
	"github.com/admitkit/admitkit/operator/access/internal/grant"
	"github.com/admitkit/admitkit/operator/access/internal/rules"
)

func TestARequestOnBehalfOfAUserCountsForThemIfItIsAllowed(t *testing.T) {
	for sentence, test := range map[string]struct {
		change func(*facts.Facts)
		user   string
		want   bool
	}{
		"by who may ask, for who is asked for": {factstest.ForOther("bot", "alice", "bot"), "alice", true},
		"by who may ask, for who asks":         {factstest.ForOther("bot", "alice", "bot"), "bot", true},
		"by who may not ask":                   {factstest.ForOther("mallory", "alice", "bot"), "alice", false},
		"by who may not ask, for who asks":     {factstest.ForOther("mallory", "alice", "bot"), "mallory", true},
		"by who may not ask any more": {func(f *facts.Facts) {
			factstest.ForOther("old", "alice", "bot")(f)
			factstest.SettledOn("web-0", "p")(f)
		}, "alice", true},
		"by who may ask, for longer than it is": {func(f *facts.Facts) {
			factstest.ForOther("bot", "alice", "bot")(f)
			f.Request.GetRequestSpec().Duration = "3h"
		}, "alice", false},
	} {
		t.Run(sentence, func(t *testing.T) {
			f := factstest.About(grant.ExecAccess, test.change)
			if got := rules.CountsFor(f.Template, f.Request, test.user); got != test.want {
				t.Errorf("it counts: %t", got)
			}
		})
	}
}
