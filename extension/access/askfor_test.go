package access_test

import (
	"context"
	"slices"
	"testing"

	"github.com/admitkit/admitkit/api/v1alpha1"
	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/testing/controlplane"
)

// chat returns a namespace with a template by which bot may ask for alice, for carol and for
// users whom nobody may ask for, and bot itself.
func chat(t *testing.T, limit int32) (namespace string, bot *controlplane.User) {
	t.Helper()
	bot, err := cluster.AddUser("bot", "engineers", "bots")
	if err != nil {
		t.Fatal(err)
	}
	namespace = common(t)
	deployment(t, namespace, "web", 1)
	template := execTemplate(namespace, "chat", ref("Deployment", "web"), "devs")
	template.Spec.AccessConfig.AllowedUsers = []string{"alice", "carol", "system:admin", "system:serviceaccount:" + namespace + ":default"}
	template.Spec.AccessConfig.AskFor = &v1alpha1.AskFor{Users: []string{"someone"}, Groups: []string{"bots"}}
	template.Spec.AccessConfig.MaxConcurrent = limit
	testkit.Create(t, admin, template, execTemplate(namespace, "quiet", ref("Deployment", "web"), "devs"))
	return namespace, bot
}

func forUser(namespace, name, user string) *v1alpha1.ExecAccessRequest {
	req := execRequest(namespace, name, "chat")
	req.Spec.OnBehalfOf = user
	return req
}

func TestABotAsksForAnEngineerWhoAloneGetsAccess(t *testing.T) {
	t.Parallel()
	namespace, bot := chat(t, 100)
	req := granted(t, bot, forUser(namespace, "for-alice", "alice"))
	pod := req.Status.PodName
	if !canExec(t, alice, namespace, pod) || canExec(t, bot, namespace, pod) || canExec(t, bob, namespace, pod) {
		t.Error("not alice alone has access")
	}
	if req.Spec.Requester.Username != "bot" {
		t.Errorf("the requester is %+v", req.Spec.Requester)
	}
	for _, user := range []*controlplane.User{bob, mallory} {
		refused(t, patch(t, user, execRequest(namespace, "for-alice", ""), `{"spec":{"duration":"10m"}}`), "requester only")
		refused(t, patch(t, user, execRequest(namespace, "for-alice", ""), `{"spec":{"revoked":{"reason":"mine"}}}`), "neither made the request nor may delete")
	}
	for user, duration := range map[*controlplane.User]string{alice: "90m", bot: "100m"} {
		if err := patch(t, user, execRequest(namespace, "for-alice", ""), `{"spec":{"duration":"`+duration+`"}}`); err != nil {
			t.Error(err)
		}
	}
	if err := patch(t, alice, execRequest(namespace, "for-alice", ""), `{"spec":{"revoked":{}}}`); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "access has ended, and the story says who asked for whom", func(context.Context) bool {
		story := commons.told.of(req)
		return !canExec(t, alice, namespace, pod) && slices.Contains(story, "asked bot") && slices.Contains(story, "granted alice") && slices.Contains(story, "revoked alice") && slices.Contains(story, "ended alice")
	})
	for _, want := range [][]string{{"granted", "alice may access Pod " + pod}, {"granted", "as asked by bot"}, {"asked", "on behalf of alice"}} {
		if !commons.told.says(req, want[0], want[1]) {
			t.Errorf("the record %q does not say %q", want[0], want[1])
		}
	}
}

// An engineer who wants more than they may have tries it by way of a bot.
func TestAskingForOthersGivesNobodyMoreThanTheTemplateAllows(t *testing.T) {
	t.Parallel()
	namespace, bot := chat(t, 100)
	for sentence, test := range map[string]struct {
		user  *controlplane.User
		other string
		parts []string
	}{
		"a user whom nobody allows":              {bot, "mallory", []string{`user "mallory" is not one of the allowedUsers`}},
		"a user who is allowed by a group alone": {bot, "bob", []string{`user "bob" is not one of the allowedUsers`, "does not know the groups"}},
		"an engineer who may not ask for others": {mallory, "alice", []string{`user "mallory" may not ask for others`, "askFor"}},
		"a member who may not ask for others":    {bob, "carol", []string{`user "bob" may not ask for others`}},
		"the bot itself":                         {bot, "bot", []string{`"bot" is who asks`, "leave it out"}},
		"the bot itself, and nobody named":       {bot, "", []string{`user "bot" is not allowed`}},
		"the group of administrators":            {bot, "system:masters", []string{`"system:masters" is a user of the system`}},
		"an administrator by certificate":        {bot, "system:admin", []string{`"system:admin" is a user of the system`}},
		"a ServiceAccount that is allowed":       {bot, "system:serviceaccount:" + namespace + ":default", []string{"is a user of the system"}},
		"a group":                                {bot, "devs", []string{`user "devs" is not one of the allowedUsers`}},
		"a name that only looks like alice":      {bot, "alice ", []string{`user "alice " is not one of the allowedUsers`}},
	} {
		t.Run(sentence, func(t *testing.T) {
			refused(t, as(t, test.user).Create(t.Context(), forUser(namespace, "refused", test.other)), test.parts...)
		})
	}
	t.Run("a template that says nothing", func(t *testing.T) {
		req := forUser(namespace, "refused", "alice")
		req.Spec.TemplateName = "quiet"
		refused(t, as(t, bot).Create(t.Context(), req), "lets nobody ask for others")
	})
	t.Run("a template that does not exist yet", func(t *testing.T) {
		req := forUser(namespace, "refused", "system:admin")
		req.Spec.TemplateName = "later"
		refused(t, as(t, bot).Create(t.Context(), req), "is a user of the system")
	})
	t.Run("another user afterwards", func(t *testing.T) {
		granted(t, bot, forUser(namespace, "fixed", "alice"))
		granted(t, alice, execRequest(namespace, "own", "chat"))
		for _, user := range []*controlplane.User{bot, alice, mallory, cluster.Admin()} {
			for _, text := range []string{`{"spec":{"onBehalfOf":"carol"}}`, `{"spec":{"onBehalfOf":null}}`} {
				refused(t, patch(t, user, execRequest(namespace, "fixed", ""), text), "onBehalfOf cannot be changed")
			}
			refused(t, patch(t, user, execRequest(namespace, "own", ""), `{"spec":{"onBehalfOf":"carol"}}`), "onBehalfOf cannot be changed")
		}
	})
}

func TestRequestsForOthersCountForBoth(t *testing.T) {
	t.Parallel()
	namespace, bot := chat(t, 2)
	granted(t, bot, forUser(namespace, "one", "alice"))
	granted(t, bot, forUser(namespace, "two", "carol"))
	refused(t, as(t, bot).Create(t.Context(), forUser(namespace, "three", "carol")), `a user 2 open requests, and "bot" has 2: one until`)
	granted(t, alice, execRequest(namespace, "own", "chat"))
	refused(t, as(t, alice).Create(t.Context(), execRequest(namespace, "more", "chat")), `and "alice" has 2: one until`)
}
