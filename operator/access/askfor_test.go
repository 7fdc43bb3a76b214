package access_test

import (
	"context"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/testing/controlplane"
)

// chat returns templates: by the first bot may ask for alice, for carol and for users whom
// nobody may ask for.
func chat(namespace string, limit int32) []runtime.Object {
	template := execTemplate(namespace, "chat", ref("Deployment", "web"), "devs")
	template.Spec.AccessConfig.AllowedUsers = []string{"alice", "carol", "system:admin", "system:serviceaccount:" + namespace + ":default"}
	template.Spec.AccessConfig.AskFor = &v1alpha1.AskFor{Users: []string{"someone"}, Groups: []string{"bots"}}
	template.Spec.AccessConfig.MaxConcurrent = limit
	return []runtime.Object{template, execTemplate(namespace, "quiet", ref("Deployment", "web"), "devs")}
}

func forUser(namespace, name, user string) *v1alpha1.ExecAccessRequest {
	req := execRequest(namespace, name, "chat")
	req.Spec.OnBehalfOf = user
	return req
}

func TestABotAsksForAnEngineerWhoAloneGetsAccess(t *testing.T) {
	t.Parallel()
	bot, err := cluster.AddUser("bot", "engineers", "bots")
	if err != nil {
		t.Fatal(err)
	}
	namespace := common(t)
	deployment(t, namespace, "web", 1)
	for _, template := range chat(namespace, 100) {
		testkit.Create(t, admin, template.(client.Object))
	}
	req := granted(t, bot, forUser(namespace, "for-alice", "alice"))
	pod := req.Status.PodName
	soonCanExec(t, alice, namespace, pod)
	if canExec(t, bot, namespace, pod) || canExec(t, bob, namespace, pod) {
		t.Error("not alice alone has access")
	}
	if req.Spec.Requester.Username != "bot" {
		t.Errorf("the requester is %+v", req.Spec.Requester)
	}
	for _, user := range []*controlplane.User{bob, mallory} {
		refused(t, patch(t, user, execRequest(namespace, "for-alice", ""), `{"spec":{"duration":"10m"}}`), "requester only")
		refused(t, patch(t, user, execRequest(namespace, "for-alice", ""), `{"spec":{"revoked":{"reason":"mine"}}}`), "neither made the request nor may delete")
	}
	for _, user := range []*controlplane.User{bot, alice, mallory, cluster.Admin()} {
		for _, text := range []string{`{"spec":{"onBehalfOf":"carol"}}`, `{"spec":{"onBehalfOf":null}}`} {
			refused(t, patch(t, user, execRequest(namespace, "for-alice", ""), text), "onBehalfOf cannot be changed")
		}
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
	w := webhooks(t, chat(inShop, 100)...)
	for sentence, test := range map[string]struct {
		user, other string
		parts       []string
	}{
		"a user whom nobody allows":              {"bot", "mallory", []string{`user "mallory" is not one of the allowedUsers`}},
		"a user who is allowed by a group alone": {"bot", "bob", []string{`user "bob" is not one of the allowedUsers`, "does not know the groups"}},
		"an engineer who may not ask for others": {"mallory", "alice", []string{`user "mallory" may not ask for others`, "askFor"}},
		"a member who may not ask for others":    {"bob", "carol", []string{`user "bob" may not ask for others`}},
		"the bot itself":                         {"bot", "bot", []string{`"bot" is who asks`, "leave it out"}},
		"the bot itself, and nobody named":       {"bot", "", []string{`user "bot" is not allowed`}},
		"the group of administrators":            {"bot", "system:masters", []string{`"system:masters" is a user of the system`}},
		"an administrator by certificate":        {"bot", "system:admin", []string{`"system:admin" is a user of the system`}},
		"a ServiceAccount that is allowed":       {"bot", "system:serviceaccount:shop:default", []string{"is a user of the system"}},
		"a group":                                {"bot", "devs", []string{`user "devs" is not one of the allowedUsers`}},
		"a name that only looks like alice":      {"bot", "alice ", []string{`user "alice " is not one of the allowedUsers`}},
	} {
		t.Run(sentence, func(t *testing.T) {
			denied(t, by(w, test.user).Create(forUser(inShop, "refused", test.other)), test.parts...)
		})
	}
	t.Run("a template that says nothing", func(t *testing.T) {
		req := forUser(inShop, "refused", "alice")
		req.Spec.TemplateName = "quiet"
		denied(t, by(w, "bot").Create(req), "lets nobody ask for others")
	})
	t.Run("a template that does not exist yet", func(t *testing.T) {
		req := forUser(inShop, "refused", "system:admin")
		req.Spec.TemplateName = "later"
		denied(t, by(w, "bot").Create(req), "is a user of the system")
	})
}

func TestRequestsForOthersCountForBoth(t *testing.T) {
	t.Parallel()
	w := webhooks(t, chat(inShop, 2)...)
	stored(t, w, "bot", forUser(inShop, "one", "alice"))
	stored(t, w, "bot", forUser(inShop, "two", "carol"))
	denied(t, by(w, "bot").Create(forUser(inShop, "three", "carol")), `a user 2 open requests, and "bot" has 2: one until`)
	stored(t, w, "alice", execRequest(inShop, "own", "chat"))
	denied(t, by(w, "alice").Create(execRequest(inShop, "more", "chat")), `and "alice" has 2: one until`)
}
