package access_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/testing/controlplane"
)

// newTemplate makes a template as tom.
func (s siege) newTemplate(name string, change func(*v1alpha1.AccessConfig)) testkit.Answer {
	s.Helper()
	t := s.template(name, ref("Deployment", "web"))
	if change != nil {
		change(&t.Spec.AccessConfig)
	}
	return s.send(s.tom, "POST", templates, testkit.AsJSON, document(s, t))
}

// asker is a user who may ask for alice, by the template that is returned.
func (s siege) asker(name string) (bot *controlplane.User, template string) {
	s.Helper()
	bot, err := cluster.AddUser(name, "engineers")
	if err != nil {
		s.Fatal(err)
	}
	template = "chat-" + name
	if a := s.newTemplate(template, func(c *v1alpha1.AccessConfig) {
		c.AllowedUsers, c.AskFor = []string{"alice", "system:admin"}, &v1alpha1.AskFor{Users: []string{name}}
	}); a.Code != http.StatusCreated {
		s.Fatal(a)
	}
	return bot, template
}

// engineer is a user whom no other attack has. A user may have a few requests only that
// wait for their templates, and the attacks go on at the same time.
func (s siege) engineer(groups ...string) *controlplane.User {
	s.Helper()
	user, err := cluster.AddUser(fmt.Sprint("engineer-", s.engineers.Add(1)), append(groups, "engineers")...)
	if err != nil {
		s.Fatal(err)
	}
	return user
}

// becomes reports whether a request is soon as it is to be: a loaded machine takes its
// time.
func (s siege) becomes(req request, condition func() bool) bool {
	s.Helper()
	return testkit.Poll(s.Context(), 30*time.Second, req.GetName(), func(context.Context) error {
		if s.is(req); !condition() {
			return errors.New("not yet")
		}
		return nil
	}) == nil
}

func (s siege) isRevoked(req *v1alpha1.ExecAccessRequest) bool {
	s.Helper()
	return s.becomes(req, func() bool { return req.Status.RevokedAt != nil })
}

// later waits until a request says that its template is missing.
func (s siege) later(name string) *v1alpha1.ExecAccessRequest {
	s.Helper()
	req := execRequest(s.namespace, name, "")
	await(s.T, req, "waits", func() bool { return fails(req, "TargetTemplateExists", "TemplateMissing") })
	return req
}

// attacksOfAskers are those of who asks for others, and who asks before there is a
// template.
var attacksOfAskers = map[string]attack{
	"by requests for another, who then has no room, before the template comes": func(s siege) string {
		mallory := s.engineer()
		for i := range 5 {
			s.made(s.send(mallory, "POST", requests, testkit.AsJSON, ask(fmt.Sprint("crowd-", i), `{"templateName":"crowded","onBehalfOf":"alice","duration":"2000000h"}`)))
		}
		s.later("crowd-4")
		if a := s.newTemplate("crowded", func(c *v1alpha1.AccessConfig) { c.MaxConcurrent = 5 }); a.Code != http.StatusCreated {
			s.Fatal(a)
		}
		req := execRequest(s.namespace, "crowd-4", "")
		await(s.T, req, "is refused", func() bool { return fails(req, "AccessResourcesCreated", "NotAllowed") })
		if a := s.send(alice, "POST", requests, testkit.AsJSON, ask("crowded-out", `{"templateName":"crowded"}`)); a.Code != http.StatusCreated {
			return a.String()
		}
		mine := execRequest(s.namespace, "crowded-out", "")
		await(s.T, mine, "is granted", func() bool { return mine.Status.Ready })
		return ""
	},
	"by a Pod of another workload, before the template comes": func(s siege) string {
		alice := s.engineer("devs")
		s.made(s.send(alice, "POST", requests, testkit.AsJSON, ask("early-vault", `{"templateName":"vaulted","targetPod":"`+s.podOf("vault").Name+`"}`)))
		req := s.later("early-vault")
		s.newTemplate("vaulted", nil)
		await(s.T, req, "is decided", func() bool { return !fails(req, "TargetTemplateExists", "TemplateMissing") })
		await(s.T, req, "is refused", func() bool { return fails(req, "AccessResourcesCreated", "UnknownPod") })
		return s.nobodyCan(alice, s.podOf("vault").Name)
	},
	"by a Pod that is a path, before the template comes": func(s siege) string {
		alice := s.engineer("devs")
		for i, name := range []string{"../secrets/x", s.podOf("web").Name + "/log", "..", "a%2fb", "a?x"} {
			a := s.send(alice, "POST", requests, testkit.AsJSON, ask(fmt.Sprint("early-path-", i), `{"templateName":"none-at-all","targetPod":"`+name+`"}`))
			if strings.ContainsAny(name, "/%") || name == ".." {
				if through := s.held(a, "spec.targetPod"); through != "" {
					return through
				}
			}
		}
		return ""
	},
	"by a template that asks for a reason, made later": func(s siege) string {
		s.made(s.send(s.engineer("devs"), "POST", requests, testkit.AsJSON, ask("no-reason", `{"templateName":"reasoned","duration":"30m"}`)))
		req := s.later("no-reason")
		s.newTemplate("reasoned", func(c *v1alpha1.AccessConfig) { c.RequireReason = true })
		await(s.T, req, "is refused", func() bool { return fails(req, "AccessResourcesCreated", "ReasonMissing") })
		return ""
	},
	"by a status, written while the template is to come": func(s siege) string {
		mallory := s.engineer()
		s.made(s.send(mallory, "POST", requests, testkit.AsJSON, ask("stuffed", `{"templateName":"stuffed"}`)))
		s.later("stuffed")
		pod := s.podOf("vault")
		a := s.send(s.stan, "PATCH", requests+"/stuffed/status", testkit.AsMerge, `{"status":{"ready":true,"podName":"`+pod.Name+`","podUID":"`+string(pod.UID)+`","conditions":[{"type":"AccessResourcesCreated","status":"True","reason":"Granted","message":"","lastTransitionTime":"2026-01-01T00:00:00Z"}]}}`)
		s.newTemplate("stuffed", nil)
		req := execRequest(s.namespace, "stuffed", "")
		await(s.T, req, "is decided", func() bool { return holds(req, "TargetTemplateExists") })
		if through := s.nobodyCan(mallory, pod.Name); through != "" {
			return through + a.String()
		}
		if !gone(s.T, roleOf(req)) {
			return fmt.Sprintf("%+v", req.Status)
		}
		return ""
	},
	"by a spec that the manager alone completes": func(s siege) string {
		alice := s.engineer("devs")
		s.made(s.send(alice, "POST", requests, testkit.AsJSON, ask("half", `{"templateName":"whole"}`)))
		s.later("half")
		for _, user := range []*controlplane.User{alice, bob, s.gustav} {
			for _, spec := range []string{`{"duration":"1h"}`, `{"duration":"2000000h"}`, `{"singleUse":true}`, `{"onBehalfOf":"alice"}`, `{"templateName":"web"}`, `{"reason":"mine"}`} {
				if spec == `{"singleUse":true}` && user == alice {
					continue
				}
				if through := s.held(s.send(user, "PATCH", requests+"/half", testkit.AsMerge, `{"spec":`+spec+`}`)); through != "" {
					return user.Name + " " + spec + ": " + through
				}
			}
		}
		return ""
	},
	"by a Role that goes together with the template": func(s siege) string {
		for i := range testkit.Long(12, 3) {
			name := fmt.Sprint("twin-", i)
			if a := s.newTemplate(name, nil); a.Code != http.StatusCreated {
				s.Fatal(a)
			}
			req := s.exec(name, name)
			var both sync.WaitGroup
			both.Go(func() {
				for range 10 {
					s.send(s.nora, "DELETE", roles+"/execaccess-"+name, testkit.AsJSON, "")
				}
			})
			both.Go(func() {
				time.Sleep(time.Duration(i) * 2 * time.Millisecond) // another moment each time
				s.send(s.tom, "DELETE", templates+"/"+name, testkit.AsJSON, "")
			})
			both.Wait()
			// One that is made within the second of the request cannot be told from the first.
			if !s.isRevoked(req) {
				return fmt.Sprintf("attempt %d: the template was deleted, and the grant is %+v", i, req.Status)
			}
			s.newTemplate(name, nil)
			s.exec(name+"-next", name) // by then the manager knows the new one
			if s.is(req); req.Status.Ready || !gone(s.T, roleOf(req)) {
				return fmt.Sprintf("attempt %d: the template was deleted and made again, and the grant is %+v", i, req.Status)
			}
		}
		return ""
	},
	"by a template that is deleted and at once made again": func(s siege) string {
		for i := range testkit.Long(12, 3) {
			name := fmt.Sprint("again-", i)
			if a := s.newTemplate(name, nil); a.Code != http.StatusCreated {
				s.Fatal(a)
			}
			req := s.exec(name, name)
			time.Sleep(time.Duration(i%3) * 500 * time.Millisecond) // within the second of the request, and after it
			s.send(s.tom, "DELETE", templates+"/"+name, testkit.AsJSON, "")
			s.newTemplate(name, func(c *v1alpha1.AccessConfig) { c.AllowedGroups = []string{"others"} })
			if !s.isRevoked(req) {
				return fmt.Sprintf("attempt %d: the template was deleted, and the grant is %+v", i, req.Status)
			}
		}
		return ""
	},
	"by a template that is made again, after the Role was deleted": func(s siege) string {
		if a := s.newTemplate("returned", nil); a.Code != http.StatusCreated {
			s.Fatal(a)
		}
		req := s.exec("returned", "returned")
		// Nothing is granted again meanwhile.
		if a := s.send(s.tom, "PATCH", templates+"/returned", testkit.AsMerge, `{"spec":{"accessConfig":{"allowedGroups":["others"]}}}`); a.Code != http.StatusOK {
			s.Fatal(a)
		}
		// A reconciler that has not seen the narrower template yet makes the Role again.
		await(s.T, req, "is not granted any more", func() bool {
			s.send(s.nora, "DELETE", roles+"/execaccess-returned", testkit.AsJSON, "")
			return fails(req, "AccessResourcesCreated", "NotAllowed")
		})
		if a := s.send(s.tom, "DELETE", templates+"/returned", testkit.AsJSON, ""); a.Code != http.StatusOK {
			s.Fatal(a)
		}
		await(s.T, req, "misses its template", func() bool { return fails(req, "TargetTemplateExists", "TemplateMissing") })
		if a := s.newTemplate("returned", nil); a.Code != http.StatusCreated {
			s.Fatal(a)
		}
		if !s.isRevoked(req) || !gone(s.T, roleOf(req)) {
			return fmt.Sprintf("the template that is made again gives it back: %+v", req.Status)
		}
		return ""
	},
	"by requests for others that are written oddly": func(s siege) string {
		bot, template := s.asker("bot-odd")
		for i, name := range []string{"system:admin", "System:admin", " system:admin", "system:admin\u0000", "ALICE", "alice\n", "alice,system:admin", "system:masters", "*", "bot-odd"} {
			text, _ := json.Marshal(name)
			if through := s.held(s.send(bot, "POST", requests, testkit.AsJSON, ask(fmt.Sprint("odd-", i), `{"templateName":"`+template+`","onBehalfOf":`+string(text)+`}`)), "spec.onBehalfOf"); through != "" {
				return name + ": " + through
			}
		}
		a := s.send(bot, "POST", requests+"?fieldValidation=Ignore", testkit.AsJSON, ask("odd-twice", `{"templateName":"`+template+`","onBehalfOf":"alice","onBehalfOf":"system:admin","OnBehalfOf":"system:admin"}`))
		return s.held(a, "spec.onBehalfOf")
	},
	"by another name in a request that was made for alice": func(s siege) string {
		bot, template := s.asker("bot-late")
		s.made(s.send(bot, "POST", requests, testkit.AsJSON, ask("for-alice", `{"templateName":"`+template+`","onBehalfOf":"alice"}`)))
		for _, user := range []*controlplane.User{bot, alice, s.gustav} {
			for contentType, body := range map[string]string{
				testkit.AsPatch: `[{"op":"remove","path":"/spec/onBehalfOf"}]`,
				testkit.AsMerge: `{"spec":{"onBehalfOf":""}}`,
				testkit.AsApply: ask("for-alice", `{"templateName":"`+template+`","onBehalfOf":"bob"}`),
			} {
				if through := s.held(s.send(user, "PATCH", requests+"/for-alice?fieldManager=x"+map[bool]string{true: "&force=true"}[contentType == testkit.AsApply], contentType, body), "onBehalfOf cannot be changed"); through != "" {
					return user.Name + ": " + through
				}
			}
		}
		if through := s.held(s.send(s.stan, "PATCH", requests+"/for-alice/status", testkit.AsMerge, `{"spec":{"onBehalfOf":"bob"},"status":{"accessMessage":"rm -rf /"}}`)); through != "" {
			return through
		}
		return ""
	},
	"by a request for alice that alice lengthens or narrows for others": func(s siege) string {
		bot, template := s.asker("bot-long")
		s.made(s.send(bot, "POST", requests, testkit.AsJSON, ask("long-alice", `{"templateName":"`+template+`","onBehalfOf":"alice"}`)))
		if through := s.held(s.send(alice, "PATCH", requests+"/long-alice", testkit.AsMerge, `{"spec":{"duration":"3h"}}`), "exceeds the maximum"); through != "" {
			return through
		}
		// The bot may not ask any more.
		if a := s.send(s.tom, "PATCH", templates+"/"+template, testkit.AsMerge, `{"spec":{"accessConfig":{"askFor":null}}}`); a.Code != http.StatusOK {
			s.Fatal(a)
		}
		for _, user := range []*controlplane.User{alice, bot} {
			if through := s.held(s.send(user, "PATCH", requests+"/long-alice", testkit.AsMerge, `{"spec":{"duration":"2h"}}`), "spec.onBehalfOf"); through != "" {
				return through
			}
		}
		return ""
	},
	"by templates that let ask for everybody": func(s siege) string {
		for i, config := range []string{
			`{"allowedGroups":["devs"],"askFor":{"users":["bot"]}}`,
			`{"allowedUsers":["alice"],"subjects":"Groups","askFor":{"users":["bot"]}}`,
			`{"allowedUsers":["alice"],"askFor":{}}`,
			`{"allowedUsers":["alice"],"askFor":{"users":[],"groups":[]}}`,
			`{"allowedUsers":["alice"],"askFor":{"users":[""]}}`,
			`{"allowedUsers":[""],"askFor":{"users":["bot"]}}`,
		} {
			body := `{"apiVersion":"admitkit.dev/v1alpha1","kind":"ExecAccessTemplate","metadata":{"name":"all-` + fmt.Sprint(i) + `"},"spec":{"controllerTargetRef":{"apiVersion":"apps/v1","kind":"Deployment","name":"web"},"accessConfig":` + config + `}}`
			if through := s.held(s.send(s.tom, "POST", templates, testkit.AsJSON, body)); through != "" {
				return config + through
			}
		}
		return ""
	},
	"by a request of another for oneself, taken over": func(s siege) string {
		// Somebody asks for bob, before the template, so bob is a party. The other must have asked for whatever bob lengthens.
		s.made(s.send(s.engineer(), "POST", requests, testkit.AsJSON, ask("taken", `{"templateName":"taken","onBehalfOf":"bob"}`)))
		req := s.later("taken")
		s.newTemplate("taken", nil)
		await(s.T, req, "is refused", func() bool { return fails(req, "AccessResourcesCreated", "NotAllowed") })
		return s.held(s.send(bob, "PATCH", requests+"/taken", testkit.AsMerge, `{"spec":{"duration":"2h"}}`), "lets nobody ask for others")
	},
	"by a message that is too long to be written": func(s siege) string {
		var long []string
		for i := range 64 {
			long = append(long, fmt.Sprint(i)+strings.Repeat("\u0001", 1000))
		}
		asker := s.engineer("devs")
		s.made(s.send(asker, "POST", requests, testkit.AsJSON, ask("wordy", `{"templateName":"wordy","onBehalfOf":"nobody"}`)))
		req := s.later("wordy")
		s.newTemplate("wordy", func(c *v1alpha1.AccessConfig) {
			c.AllowedUsers, c.AskFor = long, &v1alpha1.AskFor{Users: []string{asker.Name}}
		})
		if s.becomes(req, func() bool { return !fails(req, "TargetTemplateExists", "TemplateMissing") }) {
			return ""
		}
		c := meta.FindStatusCondition(req.Status.Conditions, "TargetTemplateExists")
		return fmt.Sprintf("the request still says %+v", c)
	},
}
