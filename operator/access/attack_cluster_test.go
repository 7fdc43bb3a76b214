package access_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/operator/access"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/testing/controlplane"
)

// siege is a namespace in which some may do much besides the engineers alice and bob:
// peter writes Pods and what is below them, nora writes Roles and RoleBindings, tom
// writes templates, gustav deletes requests, and stan writes the status of requests.
type siege struct {
	*testing.T
	namespace                      string
	peter, nora, tom, gustav, stan *controlplane.User
	engineers                      *atomic.Int32
}

// attack is what somebody tries. It returns what went through, "" if nothing did.
type attack func(s siege) (through string)

// rightsOf are the rules of those who may do much.
var rightsOf = map[string][]rbacv1.PolicyRule{
	"peter": {
		allowed("", "pods", "pods/status", "pods/ephemeralcontainers", "pods/resize", "pods/binding", "pods/eviction"),
		allowed("apps", "replicasets", "statefulsets"), allowed("batch", "jobs"),
	},
	"nora":   {{APIGroups: []string{rbacv1.GroupName}, Resources: []string{"roles", "rolebindings"}, Verbs: []string{"*"}}},
	"tom":    {allowed("admitkit.dev", "execaccesstemplates", "podaccesstemplates")},
	"gustav": {allowed("admitkit.dev", "execaccessrequests", "podaccessrequests")},
	"stan":   {allowed("admitkit.dev", "execaccessrequests/status", "podaccessrequests/status")},
}

func allowed(group string, resources ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: resources, Verbs: []string{"get", "list", "create", "update", "patch", "delete", "deletecollection"}}
}

// beleaguer makes a siege with a manager and with templates of both kinds.
func beleaguer(t *testing.T) siege {
	t.Helper()
	s := siege{T: t, namespace: common(t), engineers: &atomic.Int32{}}
	for name, into := range map[string]**controlplane.User{"peter": &s.peter, "nora": &s.nora, "tom": &s.tom, "gustav": &s.gustav, "stan": &s.stan} {
		var err error
		if *into, err = cluster.AddUser(name); err != nil {
			t.Fatal(err)
		}
		testkit.Grant(t, admin, s.namespace, name, rightsOf[name], name)
	}
	for _, name := range []string{"store", "depot"} { // each for one attack: the Pod of depot is deleted
		labels := map[string]string{"app": name}
		testkit.Create(t, admin, &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: name}, Spec: appsv1.StatefulSetSpec{
			Replicas: new(int32(1)), Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: plainPod("", "").Spec},
		}})
	}
	deployment(t, s.namespace, "web", 2)
	for _, name := range []string{"vault", "safe", "victim"} { // no template leads there
		deployment(t, s.namespace, name, 1)
	}
	web, few, strict := s.template("web", ref("Deployment", "web")), s.template("few", ref("Deployment", "web")), s.template("strict", ref("Deployment", "web"))
	store, depot := s.template("store", ref("StatefulSet", "store")), s.template("depot", ref("StatefulSet", "depot"))
	depot.Spec.AccessConfig.Verbs = []v1alpha1.AccessVerb{"exec", "ephemeralcontainers"}
	few.Spec.AccessConfig.MaxConcurrent = 1
	strict.Spec.AccessConfig.AllowedGroups, strict.Spec.AccessConfig.AllowedUsers, strict.Spec.AccessConfig.RequireReason = nil, []string{"root"}, true
	own, pending := podTemplate(s.namespace, "web", ref("Deployment", "web"), "devs"), podTemplate(s.namespace, "pending", ref("Deployment", "web"), "devs")
	pending.Spec.ControllerTargetRef, pending.Spec.MaxCPU = nil, quantity("1")
	pending.Spec.PodSpec = &corev1.PodSpec{SchedulerName: "nobody", Containers: []corev1.Container{{Name: "main", Image: "example.com/main"}}}
	testkit.Create(t, admin, web, store, depot, few, strict, own, pending)
	return s
}

func (s siege) template(name string, target v1alpha1.ControllerTargetRef) *v1alpha1.ExecAccessTemplate {
	return execTemplate(s.namespace, name, target, "devs")
}

// Paths of the API server.
const (
	requests  = "/apis/admitkit.dev/v1alpha1/namespaces/%s/execaccessrequests"
	podReqs   = "/apis/admitkit.dev/v1alpha1/namespaces/%s/podaccessrequests"
	templates = "/apis/admitkit.dev/v1alpha1/namespaces/%s/execaccesstemplates"
	podTmpls  = "/apis/admitkit.dev/v1alpha1/namespaces/%s/podaccesstemplates"
	pods      = "/api/v1/namespaces/%s/pods"
	sets      = "/apis/apps/v1/namespaces/%s/replicasets"
	roles     = "/apis/rbac.authorization.k8s.io/v1/namespaces/%s/roles"
	bindings  = "/apis/rbac.authorization.k8s.io/v1/namespaces/%s/rolebindings"
)

// send sends a request as a user. The path begins with one of those above.
func (s siege) send(user *controlplane.User, method, path, contentType, body string, headers ...string) testkit.Answer {
	s.Helper()
	return testkit.Send(s, user, method, strings.Replace(path, "%s", s.namespace, 1), contentType, body, headers...)
}

// held wants a refusal that says all of the parts; what else there is went through.
func (s siege) held(a testkit.Answer, parts ...string) (through string) {
	s.Helper()
	return a.Held(s, parts...)
}

// ask returns a request for exec access as JSON.
func ask(name, spec string) string {
	return `{"apiVersion":"admitkit.dev/v1alpha1","kind":"ExecAccessRequest","metadata":{"name":"` + name + `"},"spec":` + spec + `}`
}

// made reads a request that was made by an answer.
func (s siege) made(a testkit.Answer) *v1alpha1.ExecAccessRequest {
	s.Helper()
	req := &v1alpha1.ExecAccessRequest{}
	if err := json.Unmarshal([]byte(a.Body), req); a.Code != http.StatusCreated || err != nil {
		s.Fatalf("%v: %s", err, a)
	}
	return req
}

// is reads an object as it is now.
func (s siege) is(object client.Object) {
	s.Helper()
	if err := admin.Get(s.Context(), client.ObjectKeyFromObject(object), object); err != nil {
		s.Fatal(err)
	}
}

// document is an object as JSON, with its kind.
func document(s siege, object client.Object) string {
	s.Helper()
	gvk, err := apiutil.GVKForObject(object, scheme)
	if err != nil {
		s.Fatal(err)
	}
	object.GetObjectKind().SetGroupVersionKind(gvk)
	text, err := json.Marshal(object)
	if err != nil {
		s.Fatal(err)
	}
	return string(text)
}

func (s siege) pod(name string) *corev1.Pod {
	s.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: name}}
	s.is(pod)
	return pod
}

// podOf returns a Pod of a workload that runs.
func (s siege) podOf(app string) *corev1.Pod {
	s.Helper()
	var list corev1.PodList
	if err := admin.List(s.Context(), &list, client.InNamespace(s.namespace), client.MatchingLabels{"app": app}); err != nil {
		s.Fatal(err)
	}
	i := slices.IndexFunc(list.Items, func(p corev1.Pod) bool { return p.DeletionTimestamp.IsZero() && p.Status.Phase == corev1.PodRunning })
	if i < 0 {
		s.Fatalf("no Pod of %s runs", app)
	}
	return &list.Items[i]
}

func (s siege) exec(name, template string) *v1alpha1.ExecAccessRequest {
	s.Helper()
	return granted(s.T, alice, execRequest(s.namespace, name, template))
}

func (s siege) own(name, template string) *v1alpha1.PodAccessRequest {
	s.Helper()
	return granted(s.T, alice, podRequest(s.namespace, name, template))
}

// stays says what went through if a request is not granted any more.
func (s siege) stays(req request) (through string) {
	s.Helper()
	if err := admin.Get(s.Context(), client.ObjectKeyFromObject(req), req); err != nil {
		return err.Error()
	}
	if !req.GetDeletionTimestamp().IsZero() || !req.GetRequestStatus().Ready || gone(s.T, bindingOf(req)) {
		return fmt.Sprintf("the grant is %+v", req.GetRequestStatus())
	}
	return ""
}

// nobodyCan says what a user may do with a Pod.
func (s siege) nobodyCan(user *controlplane.User, pod string) (through string) {
	s.Helper()
	for _, verb := range []string{"exec", "attach", "portforward", "log", "ephemeralcontainers"} {
		for _, how := range []string{"create", "get", "patch", "update"} {
			if can(s.T, user, s.namespace, pod, how, verb) {
				return fmt.Sprintf("%s may %s %s in %s", user.Name, how, verb, pod)
			}
		}
	}
	return ""
}

const nobodysOwner = `[{"apiVersion":"v1","kind":"ConfigMap","name":"gone","uid":"b6e1d1c2-3a0c-4b5e-9d5e-0c6f6a1c0001"}]`

// Each of these was tried on what is there, and the API server's answer or the state of
// the cluster says what came of it.
var attacksOfEngineers = map[string]attack{
	"by the name of another user in a request": func(s siege) string {
		return s.held(s.send(bob, "POST", requests, testkit.AsJSON, ask("as-alice", `{"templateName":"web","requester":{"username":"alice","uid":"1","groups":["system:masters"]}}`)), "spec.requester does not name the user who makes the request")
	},
	"by more groups than one has": func(s siege) string {
		req := s.made(s.send(bob, "POST", requests, testkit.AsJSON, ask("grouped", `{"templateName":"web","requester":{"username":"bob","uid":"1","groups":["system:masters"]}}`)))
		if who := req.Spec.Requester; who.Username != "bob" || who.UID == "1" || slices.Contains(who.Groups, "system:masters") {
			return fmt.Sprintf("the requester is %+v", who)
		}
		return ""
	},
	"by a requester that is there twice": func(s siege) string {
		a := s.send(bob, "POST", requests+"?fieldValidation=Ignore", testkit.AsJSON,
			ask("twice", `{"templateName":"web","requester":{"username":"bob"},"requester":{"username":"alice"},"Requester":{"username":"alice"},"spec":{}}`))
		if a.Code != http.StatusCreated {
			return s.held(a, "spec.requester does not name the user who makes the request")
		}
		if req := s.made(a); req.Spec.Requester.Username != "bob" {
			return fmt.Sprintf("the requester is %+v", req.Spec.Requester)
		}
		return ""
	},
	"by applying a requester with another field manager": func(s siege) string {
		s.exec("applied", "web")
		return s.held(s.send(bob, "PATCH", requests+"/applied?fieldManager=eve&force=true", testkit.AsApply, ask("applied", `{"templateName":"web","requester":{"username":"bob","groups":["devs"]}}`)), "requester cannot be changed")
	},
	"by a request in CBOR": func(s siege) string {
		// {"apiVersion": "admitkit.dev/v1alpha1", "kind": "ExecAccessRequest", "metadata": {"name": "cbor"}, "spec": {"templateName": "strict"}}
		text := func(t string) string { return "\x78" + string(rune(len(t))) + t }
		body := "\xa4" + text("apiVersion") + text("admitkit.dev/v1alpha1") + text("kind") + text("ExecAccessRequest") + text("metadata") + "\xa1" + text("name") + text("cbor") +
			text("spec") + "\xa1" + text("templateName") + text("strict")
		return s.held(s.send(alice, "POST", requests, "application/cbor", "\xd9\xd9\xf7"+body))
	},
	"by another version of the API": func(s siege) string {
		if a := s.send(alice, "POST", strings.Replace(requests, "v1alpha1", "v1", 1), testkit.AsJSON, ask("v1", `{"templateName":"strict"}`)); a.Code != http.StatusNotFound {
			return a.String()
		}
		return ""
	},
	"by the status of a new request": func(s siege) string {
		body := `{"apiVersion":"admitkit.dev/v1alpha1","kind":"ExecAccessRequest","metadata":{"name":"ready"},"spec":{"templateName":"web","duration":"1ns"},` +
			`"status":{"ready":true,"podName":"` + s.podOf("vault").Name + `","podUID":"` + string(s.podOf("vault").UID) + `"}}`
		req := s.made(s.send(alice, "POST", requests, testkit.AsJSON, body))
		await(s.T, req, "has ended", func() bool { return fails(req, "AccessStillValid", "Expired") })
		if req.Status.PodName != "" {
			return fmt.Sprintf("%+v", req.Status)
		}
		return ""
	},
	"by a creation time to come": func(s siege) string {
		body := `{"apiVersion":"admitkit.dev/v1alpha1","kind":"ExecAccessRequest","metadata":{"name":"future","creationTimestamp":"2099-01-01T00:00:00Z","uid":"1"},"spec":{"templateName":"web"}}`
		req := s.made(s.send(alice, "POST", requests, testkit.AsJSON, body))
		if time.Until(req.CreationTimestamp.Time) > time.Hour || req.UID == "1" {
			return fmt.Sprintf("%+v", req.ObjectMeta)
		}
		return ""
	},
	"by durations beyond the end of time": func(s siege) string {
		for i, duration := range []string{"9999999999h", "2562047h47m16.854775807s", "2h0m0.000000001s", "-1h", "1e9h", "Infh", "1h ", "1H", "1h\u0000", "٣h", "0s", "0.0ns"} {
			text, _ := json.Marshal(duration)
			if through := s.held(s.send(alice, "POST", requests, testkit.AsJSON, ask(fmt.Sprint("long-", i), `{"templateName":"web","duration":`+string(text)+`}`)), "spec.duration"); through != "" {
				return duration + ": " + through
			}
		}
		return ""
	},
	"by a longer time, however it is written": func(s siege) string {
		s.exec("longer", "web")
		for contentType, body := range map[string]string{
			testkit.AsMerge: `{"spec":{"duration":"3h"}}`,
			testkit.AsPatch: `[{"op":"test","path":"/spec/templateName","value":"web"},{"op":"replace","path":"/spec/duration","value":"3h"}]`,
			testkit.AsApply: ask("longer", `{"templateName":"web","duration":"3h"}`),
		} {
			force := "?fieldManager=other"
			if contentType == testkit.AsApply {
				force += "&force=true"
			}
			if through := s.held(s.send(alice, "PATCH", requests+"/longer"+force, contentType, body), "exceeds the maximum"); through != "" {
				return through
			}
		}
		return ""
	},
	"by a template of another kind": func(s siege) string {
		req := s.made(s.send(s.engineer("devs"), "POST", requests, testkit.AsJSON, ask("kind", `{"templateName":"pending"}`)))
		await(s.T, req, "waits for one of its kind", func() bool { return fails(req, "TargetTemplateExists", "TemplateMissing") })
		if !gone(s.T, roleOf(req)) {
			return fmt.Sprintf("%+v", req.Status)
		}
		return ""
	},
	"by a template that is a path": func(s siege) string {
		for i, name := range []string{"../../" + s.namespace + "/podaccesstemplates/web", "web/../strict", "web?x=1", "%2e%2e", "..", "web/status", "wEb", "web\n"} {
			text, _ := json.Marshal(name)
			if through := s.held(s.send(alice, "POST", requests, testkit.AsJSON, ask(fmt.Sprint("path-", i), `{"templateName":`+string(text)+`}`))); through != "" {
				return name + ": " + through
			}
		}
		return ""
	},
	"by a Pod of another workload": func(s siege) string {
		return s.held(s.send(alice, "POST", requests, testkit.AsJSON, ask("vault", `{"templateName":"web","targetPod":"`+s.podOf("vault").Name+`"}`)), "is not one of Deployment/web")
	},
	"by a Pod that is a path": func(s siege) string {
		for i, name := range []string{s.podOf("web").Name + "/../" + s.podOf("vault").Name, "../secrets/x", s.podOf("web").Name + "/log", strings.ToUpper(s.podOf("web").Name)} {
			if through := s.held(s.send(alice, "POST", requests, testkit.AsJSON, ask(fmt.Sprint("podpath-", i), `{"templateName":"web","targetPod":"`+name+`"}`))); through != "" {
				return name + ": " + through
			}
		}
		return ""
	},
	"by metadata of another's request": func(s siege) string {
		s.exec("marked", "web")
		for field, metadata := range map[string]string{
			"labels": `{"labels":{"app":"web"}}`, "annotations": `{"annotations":{"example.com/by":"bob"}}`, "finalizers": `{"finalizers":["example.com/keep"]}`,
		} {
			if through := s.held(s.send(bob, "PATCH", requests+"/marked", testkit.AsMerge, `{"metadata":`+metadata+`}`), "metadata."+field, `user "bob" may not delete`); through != "" {
				return through
			}
		}
		if a := s.send(alice, "PATCH", requests+"/marked", testkit.AsMerge, `{"metadata":{"labels":{"ticket":"7"},"finalizers":["example.com/keep"]}}`); a.Code != http.StatusOK {
			s.Errorf("its requester marks it: %s", a)
		}
		// Who puts a finalizer there takes it away again, and nobody else.
		if through := s.held(s.send(bob, "PATCH", requests+"/marked", testkit.AsMerge, `{"metadata":{"finalizers":null}}`), "metadata.finalizers"); through != "" {
			return through
		}
		if a := s.send(alice, "PATCH", requests+"/marked", testkit.AsMerge, `{"metadata":{"finalizers":null}}`); a.Code != http.StatusOK {
			s.Errorf("its requester takes the finalizer away: %s", a)
		}
		return ""
	},
	"by an owner that has another's request deleted": func(s siege) string {
		req := s.exec("garbage", "web")
		if through := s.held(s.send(bob, "PATCH", requests+"/garbage", testkit.AsMerge, `{"metadata":{"ownerReferences":`+nobodysOwner+`}}`), "metadata.ownerReferences", `user "bob" may not delete`); through != "" {
			return through
		}
		return s.stays(req)
	},
	"by an owner that is applied": func(s siege) string {
		req := s.exec("applied-owner", "web")
		body := `{"apiVersion":"admitkit.dev/v1alpha1","kind":"ExecAccessRequest","metadata":{"name":"applied-owner","ownerReferences":` + nobodysOwner + `}}`
		if through := s.held(s.send(bob, "PATCH", requests+"/applied-owner?fieldManager=eve", testkit.AsApply, body), "metadata.ownerReferences"); through != "" {
			return through
		}
		return s.stays(req)
	},
	"by an owner that has the record of one's own access deleted": func(s siege) string {
		own := `{"apiVersion":"admitkit.dev/v1alpha1","kind":"%s","metadata":{%s,"ownerReferences":` + nobodysOwner + `},"spec":{"templateName":"web"}}`
		for _, path := range []string{requests, podReqs} {
			kind := map[string]string{requests: "ExecAccessRequest", podReqs: "PodAccessRequest"}[path]
			for _, name := range []string{`"name":"owned"`, `"generateName":"owned-"`} {
				if through := s.held(s.send(alice, "POST", path, testkit.AsJSON, fmt.Sprintf(own, kind, name)), "metadata.ownerReferences"); through != "" {
					return through
				}
			}
		}
		return ""
	},
	"by deleting the record": func(s siege) string {
		s.exec("kept", "web")
		for _, path := range []string{requests + "/kept", requests, requests + "?fieldSelector=metadata.name%3Dkept"} {
			if through := s.held(s.send(alice, "DELETE", path, testkit.AsJSON, `{"gracePeriodSeconds":0,"propagationPolicy":"Orphan"}`), "forbidden"); through != "" {
				return through
			}
		}
		return ""
	},
	"by taking a revocation back": func(s siege) string {
		req := s.exec("back", "web")
		if a := s.send(alice, "PATCH", requests+"/back", testkit.AsMerge, `{"spec":{"revoked":{"by":"bob","reason":"not me"}}}`); a.Code != http.StatusOK {
			s.Fatal(a)
		}
		s.is(req)
		without := req.DeepCopy()
		without.Spec.Revoked, without.Spec.Duration = nil, "2h"
		for _, try := range []func() testkit.Answer{
			func() testkit.Answer {
				return s.send(alice, "PUT", requests+"/back", testkit.AsJSON, document(s, without))
			},
			func() testkit.Answer {
				return s.send(alice, "PATCH", requests+"/back", testkit.AsMerge, `{"spec":{"revoked":null}}`)
			},
			func() testkit.Answer {
				return s.send(alice, "PATCH", requests+"/back", testkit.AsPatch, `[{"op":"remove","path":"/spec/revoked"}]`)
			},
			func() testkit.Answer {
				return s.send(alice, "PATCH", requests+"/back", testkit.AsMerge, `{"spec":{"revoked":{"at":"2099-01-01T00:00:00Z"}}}`)
			},
		} {
			a := try()
			after := &v1alpha1.ExecAccessRequest{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "back"}}
			if s.is(after); after.Spec.Revoked == nil || after.Spec.Revoked.By != "alice" || !after.Spec.Revoked.At.Equal(req.Spec.Revoked.At) {
				return fmt.Sprintf("%s: %+v", a, after.Spec)
			}
		}
		isGone(s.T, bindingOf(req))
		return ""
	},
	"by extending while it is revoked": func(s siege) string {
		req := s.exec("race", "web")
		var wait sync.WaitGroup
		for i := range 8 {
			wait.Go(func() {
				s.send(alice, "PATCH", requests+"/race", testkit.AsMerge, fmt.Sprintf(`{"spec":{"duration":"1h%dm"}}`, i))
			})
		}
		wait.Go(func() {
			s.send(s.gustav, "PATCH", requests+"/race", testkit.AsMerge, `{"spec":{"revoked":{"reason":"now"}}}`)
		})
		wait.Wait()
		await(s.T, req, "has ended", func() bool { return fails(req, "AccessStillValid", "Revoked") })
		for _, object := range []client.Object{bindingOf(req), roleOf(req)} {
			isGone(s.T, object)
		}
		return ""
	},
	"by revoking another's access": func(s siege) string {
		req := s.exec("theirs", "web")
		for contentType, body := range map[string]string{
			testkit.AsMerge: `{"spec":{"revoked":{"by":"alice","reason":"as alice"}}}`,
			testkit.AsPatch: `[{"op":"add","path":"/spec/revoked","value":{"by":"alice"}}]`,
		} {
			if through := s.held(s.send(bob, "PATCH", requests+"/theirs", contentType, body), `user "bob" neither made the request`); through != "" {
				return through
			}
		}
		return s.stays(req)
	},
	"by changing another's request": func(s siege) string {
		req := s.exec("another", "web")
		s.is(req)
		for change, edit := range map[string]func(*v1alpha1.ExecAccessRequest){
			"shorter":  func(r *v1alpha1.ExecAccessRequest) { r.Spec.Duration = "1s" },
			"nothing":  func(r *v1alpha1.ExecAccessRequest) { r.Spec.Duration = "0s" },
			"reason":   func(r *v1alpha1.ExecAccessRequest) { r.Spec.Reason = "because" },
			"template": func(r *v1alpha1.ExecAccessRequest) { r.Spec.TemplateName = "few" },
			"single":   func(r *v1alpha1.ExecAccessRequest) { r.Spec.SingleUse = true },
			"Pod":      func(r *v1alpha1.ExecAccessRequest) { r.Spec.TargetPod = s.podOf("web").Name },
			"groups":   func(r *v1alpha1.ExecAccessRequest) { r.Spec.Requester.Groups = nil },
		} {
			edited := req.DeepCopy()
			edit(edited)
			s.is(req)
			edited.ResourceVersion = req.ResourceVersion
			if through := s.held(s.send(bob, "PUT", requests+"/another", testkit.AsJSON, document(s, edited))); through != "" {
				s.is(edited)
				if !fmtEqual(edited.Spec, req.Spec) {
					return change + ": " + through
				}
			}
		}
		return s.stays(req)
	},
	"by another Pod of the workload": func(s siege) string {
		req := s.exec("one", "web")
		role := roleOf(req)
		s.is(role)
		for _, rule := range role.Rules {
			if len(rule.ResourceNames) != 1 || rule.ResourceNames[0] != req.Status.PodName {
				return fmt.Sprintf("%+v", role.Rules)
			}
		}
		return s.nobodyCan(mallory, req.Status.PodName)
	},
	"by the access Pod of another": func(s siege) string {
		s.own("private", "web")
		return s.nobodyCan(bob, "podaccess-private")
	},
	"by the name that another had": func(s siege) string {
		mine := s.exec("reused", "web")
		if a := s.send(s.gustav, "DELETE", requests+"/reused", testkit.AsJSON, ""); a.Code != http.StatusOK {
			s.Fatal(a)
		}
		theirs := execRequest(s.namespace, "reused", "store")
		testkit.Create(s.T, as(s.T, bob), theirs)
		await(s.T, theirs, "is ready", func() bool { return theirs.Status.Ready && theirs.UID != mine.UID })
		binding := bindingOf(theirs)
		if s.is(binding); len(binding.Subjects) != 1 || binding.Subjects[0].Name != "bob" || theirs.Status.PodName != "store-0" {
			return fmt.Sprintf("%+v", binding)
		}
		return ""
	},
	"by impersonation without the right": func(s siege) string {
		for _, headers := range [][]string{
			{"Impersonate-User", "alice"},
			{"Impersonate-User", "bob", "Impersonate-Group", "system:masters"},
			{"Impersonate-User", "bob", "Impersonate-Extra-scopes", "all"},
			{"Impersonate-Uid", "1"},
			{"Impersonate-Group", "admins"},
		} {
			if through := s.held(s.send(bob, "POST", requests, testkit.AsJSON, ask("impersonated", `{"templateName":"web"}`), headers...)); through != "" {
				return through
			}
		}
		return ""
	},
	"by the headers of an authenticating proxy": func(s siege) string {
		req := s.made(s.send(bob, "POST", requests, testkit.AsJSON, ask("proxied", `{"templateName":"web"}`), "X-Remote-User", "alice", "X-Remote-Group", "system:masters", "X-Remote-Uid", "1"))
		if req.Spec.Requester.Username != "bob" {
			return fmt.Sprintf("%+v", req.Spec.Requester)
		}
		return ""
	},
	"by a name that looks like another's": func(s siege) string {
		s.exec("lookalike", "web")
		for _, name := range []string{"alice ", " alice", "ALICE", "alice\n", "аlice", "alice\u200b", `alice"`, "alice,bob", "system:alice", "system:serviceaccount:" + s.namespace + ":alice"} {
			user, err := cluster.AddUser(name, "engineers")
			if err != nil {
				s.Fatal(err)
			}
			if through := s.held(s.send(user, "PATCH", requests+"/lookalike", testkit.AsMerge, `{"spec":{"revoked":{}}}`)); through != "" {
				return fmt.Sprintf("%q: %s", name, through)
			}
			if through := s.held(s.send(user, "POST", requests, testkit.AsJSON, ask("from-lookalike", `{"templateName":"web"}`)), "is not allowed"); through != "" {
				return fmt.Sprintf("%q: %s", name, through)
			}
		}
		return ""
	},
	"by the name of the manager, nearly": func(s siege) string {
		for _, name := range []string{managerUser.Name + " ", "System:serviceaccount:admitkit-system:admitkit", managerUser.Name + "\x01", "serviceaccount:admitkit-system:admitkit"} {
			user, err := cluster.AddUser(name, "system:masters")
			if err != nil {
				s.Fatal(err)
			}
			if through := s.held(s.send(user, "POST", roles, testkit.AsJSON, `{"metadata":{"name":"execaccess-manager"},"rules":[]}`), "admitkit alone makes"); through != "" {
				return fmt.Sprintf("%q: %s", name, through)
			}
		}
		return ""
	},
	"by groups that are like those that may ask": func(s siege) string {
		user, err := cluster.AddUser("gregor", "engineers", "devs ", "Devs", "system:devs", "dev", "devs\n", "")
		if err != nil {
			s.Fatal(err)
		}
		return s.held(s.send(user, "POST", requests, testkit.AsJSON, ask("gregor", `{"templateName":"web"}`)), "is not allowed")
	},
	"by more groups than a record holds": func(s siege) string {
		groups := make([]string, 1001)
		for i := range groups {
			groups[i] = fmt.Sprint("group-", i)
		}
		user, err := cluster.AddUser("many", append(groups, "engineers", "devs")...)
		if err != nil {
			s.Fatal(err)
		}
		return s.held(s.send(user, "POST", requests, testkit.AsJSON, ask("many", `{"templateName":"web"}`)), "groups")
	},
	"by a name that is longer than a record holds": func(s siege) string {
		user, err := cluster.AddUser(strings.Repeat("x", 1025), "engineers", "devs")
		if err != nil {
			s.Fatal(err)
		}
		return s.held(s.send(user, "POST", requests, testkit.AsJSON, ask("longname", `{"templateName":"web"}`)), "spec.requester.username")
	},
	"by a reason of nothing, or of too much": func(s siege) string {
		root, err := cluster.AddUser("root", "engineers")
		if err != nil {
			s.Fatal(err)
		}
		for i, reason := range []string{"", " ", "\t\n", "\u00a0\u2003", strings.Repeat("x", 1025)} {
			text, _ := json.Marshal(reason)
			if through := s.held(s.send(root, "POST", requests, testkit.AsJSON, ask(fmt.Sprint("reason-", i), `{"templateName":"strict","reason":`+string(text)+`}`)), "reason"); through != "" {
				return fmt.Sprintf("%.10q: %s", reason, through)
			}
		}
		return ""
	},
	"by a name for which there is no Pod": func(s siege) string {
		for _, name := range []string{strings.Repeat("a", 53), "a..b", "../a", "A", "a_b", "a%2fb"} {
			if through := s.held(s.send(alice, "POST", podReqs, testkit.AsJSON, strings.Replace(ask(name, `{"templateName":"web"}`), "Exec", "Pod", 1))); through != "" {
				return name + ": " + through
			}
		}
		return ""
	},
	"by more requests at once than the template allows": func(s siege) string {
		var wait sync.WaitGroup
		var made atomic.Int32
		for range 12 {
			wait.Go(func() {
				body := strings.Replace(ask("", `{"templateName":"few"}`), `"name":""`, `"generateName":"few-"`, 1)
				if s.send(alice, "POST", requests, testkit.AsJSON, body).Code == http.StatusCreated {
					made.Add(1)
				}
			})
		}
		wait.Wait()
		if made.Load() == 0 {
			s.Fatal("none is made")
		}
		open, decided := 0, 0
		testkit.Eventually(s.T, "each is decided", func(ctx context.Context) bool {
			var list v1alpha1.ExecAccessRequestList
			if admin.List(ctx, &list, client.InNamespace(s.namespace)) != nil {
				return false
			}
			open, decided = 0, 0
			for i := range list.Items {
				req := &list.Items[i]
				switch {
				case req.Spec.TemplateName != "few":
				case holds(req, "AccessResourcesCreated"):
					open, decided = open+1, decided+1
				case fails(req, "AccessResourcesCreated", "TooMany"):
					decided++
				}
			}
			return decided == int(made.Load())
		})
		if open != 1 {
			return fmt.Sprintf("%d of %d are granted", open, made.Load())
		}
		return ""
	},
	"by a dry run": func(s siege) string {
		if a := s.send(alice, "POST", requests+"?dryRun=All", testkit.AsJSON, ask("dry", `{"templateName":"web"}`)); a.Code != http.StatusCreated {
			s.Fatal(a)
		}
		for _, object := range []client.Object{roleOf(execRequest(s.namespace, "dry", "")), bindingOf(execRequest(s.namespace, "dry", ""))} {
			if !gone(s.T, object) {
				return fmt.Sprintf("%T exists", object)
			}
		}
		return ""
	},
	"by an ephemeral container in the next Pod of its name": nextPodsContainers,
	"by writing the status as an engineer": func(s siege) string {
		s.exec("status", "web")
		for _, method := range []string{"PATCH", "PUT"} {
			if through := s.held(s.send(alice, method, requests+"/status/status", testkit.AsMerge, `{"status":{"ready":true}}`), "forbidden"); through != "" {
				return through
			}
		}
		return ""
	},
}

func fmtEqual(a, b any) bool { return fmt.Sprintf("%+v", a) == fmt.Sprintf("%+v", b) }

// nextPodsContainers keeps the RoleBinding from going with its Pod, as a garbage
// collector that is slow would, and adds a container to the next Pod of the name.
func nextPodsContainers(s siege) string {
	req := s.exec("next", "depot")
	keep := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":["example.com/keep"]}}`))
	if err := pastTheWebhooks(s.T).Patch(s.Context(), bindingOf(req), keep); err != nil {
		s.Fatal(err)
	}
	defer func() {
		s.send(s.nora, "PATCH", bindings+"/execaccess-next", testkit.AsMerge, `{"metadata":{"finalizers":null}}`)
		isGone(s.T, bindingOf(req))
	}()
	if err := admin.Delete(s.Context(), s.pod("depot-0")); err != nil {
		s.Fatal(err)
	}
	// kwok may delete the next Pod in place of the first, by its name, until it has it run.
	testkit.Eventually(s.T, "the next Pod runs", func(ctx context.Context) bool {
		var next corev1.Pod
		return admin.Get(ctx, client.ObjectKey{Namespace: s.namespace, Name: "depot-0"}, &next) == nil && string(next.UID) != req.Status.PodUID && next.Status.Phase == corev1.PodRunning
	})
	if !can(s.T, alice, s.namespace, "depot-0", "patch", "ephemeralcontainers") {
		s.Fatal("RBAC refuses already: this would prove nothing")
	}
	return s.held(s.send(alice, "PATCH", pods+"/depot-0/ephemeralcontainers", testkit.AsDetails, `{"spec":{"ephemeralContainers":[{"name":"evil","image":"example.com/evil"}]}}`), "an earlier Pod of this name")
}

// attacksOfWriters are of those who may write Pods, Roles, templates, or parts of requests.
var attacksOfWriters = map[string]attack{
	"by a Pod with the name of an access Pod": func(s siege) string {
		for _, meta := range []string{`"name":"podaccess-mine"`, `"generateName":"podaccess-"`, `"generateName":"podaccess-` + strings.Repeat("x", 60) + `"`} {
			body := `{"apiVersion":"v1","kind":"Pod","metadata":{` + meta + `},"spec":{"containers":[{"name":"a","image":"a"}]}}`
			for _, path := range []string{pods, pods + "?dryRun=All", pods + "?fieldValidation=Ignore"} {
				if through := s.held(s.send(s.peter, "POST", path, testkit.AsJSON, body), "admitkit alone makes"); through != "" {
					return through
				}
			}
		}
		return s.held(s.send(s.peter, "PATCH", pods+"/podaccess-mine?fieldManager=peter", testkit.AsApply, `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"podaccess-mine"},"spec":{"containers":[{"name":"a","image":"a"}]}}`), "admitkit alone makes")
	},
	"by another image in an access Pod": func(s siege) string {
		req := s.own("image", "web")
		path := pods + "/podaccess-image"
		for contentType, body := range map[string]string{
			testkit.AsDetails: `{"spec":{"containers":[{"name":"web","image":"example.com/evil"}]}}`,
			testkit.AsPatch:   `[{"op":"replace","path":"/spec/containers/0/image","value":"example.com/evil"}]`,
			testkit.AsApply:   `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"podaccess-image"},"spec":{"containers":[{"name":"web","image":"example.com/evil"}]}}`,
		} {
			force := ""
			if contentType == testkit.AsApply {
				force = "?fieldManager=peter&force=true"
			}
			if through := s.held(s.send(s.peter, "PATCH", path+force, contentType, body), "admitkit alone makes"); through != "" {
				return through
			}
		}
		pod := s.pod("podaccess-image")
		pod.Spec.Containers[0].Image = "example.com/evil"
		if through := s.held(s.send(s.peter, "PUT", path, testkit.AsJSON, document(s, pod)), "admitkit alone makes"); through != "" {
			return through
		}
		return s.stays(req)
	},
	"by a deletion that gives an access Pod a day to end": func(s siege) string {
		req := s.own("lingering", "web")
		path, day := pods+"/podaccess-lingering", `"gracePeriodSeconds":86400`
		for _, deletion := range []struct{ method, path, body string }{
			{"DELETE", path, `{"kind":"DeleteOptions","apiVersion":"v1",` + day + `}`},
			{"DELETE", path + "?gracePeriodSeconds=86400", ""},
			{"DELETE", path + "?gracePeriodSeconds=2", ""},
			{"DELETE", pods + "?gracePeriodSeconds=86400&fieldSelector=metadata.name%3Dpodaccess-lingering", ""},
			{"POST", path + "/eviction", `{"kind":"Eviction","apiVersion":"policy/v1","metadata":{"name":"podaccess-lingering"},"deleteOptions":{` + day + `}}`},
		} {
			if through := s.held(s.send(s.peter, deletion.method, deletion.path, testkit.AsJSON, deletion.body), "leave out gracePeriodSeconds"); through != "" {
				return through
			}
		}
		return s.stays(req)
	},
	"by another deadline of an access Pod": func(s siege) string {
		s.own("deadline", "web")
		return s.held(s.send(s.peter, "PATCH", pods+"/podaccess-deadline", testkit.AsMerge, `{"spec":{"activeDeadlineSeconds":1}}`), "admitkit alone makes")
	},
	"by more resources of an access Pod than the cap": func(s siege) string {
		req := podRequest(s.namespace, "resized", "pending") // it is not scheduled, so that no kubelet can refuse
		testkit.Create(s.T, as(s.T, alice), req)
		await(s.T, req, "has its Pod", func() bool { return req.Status.PodUID != "" })
		return s.held(s.send(s.peter, "PATCH", pods+"/podaccess-resized/resize", testkit.AsDetails,
			`{"spec":{"containers":[{"name":"main","resources":{"requests":{"cpu":"1"},"limits":{"cpu":"64"}}}]}}`), "admitkit alone makes")
	},
	"by the status of an access Pod, which carries labels": func(s siege) string {
		s.own("labelled", "web")
		for _, metadata := range []string{
			`{"labels":{"app.kubernetes.io/managed-by":null}}`, `{"labels":{"admitkit.dev/access-request":"other"}}`,
			`{"annotations":{"admitkit.dev/request-uid":"1"}}`, `{"finalizers":["example.com/keep"]}`,
		} {
			if through := s.held(s.send(s.peter, "PATCH", pods+"/podaccess-labelled/status", testkit.AsMerge, `{"metadata":`+metadata+`}`), "admitkit alone makes"); through != "" {
				return through
			}
		}
		if a := s.send(s.peter, "PATCH", pods+"/podaccess-labelled/status", testkit.AsMerge, `{"metadata":{"annotations":{"example.com/ip":"10.0.0.1"}},"status":{"message":"well"}}`); a.Code != http.StatusOK {
			s.Errorf("a kubelet could not write: %s", a)
		}
		return ""
	},
	"by adopting an access Pod": func(s siege) string {
		req := s.own("adopted", "web")
		for _, metadata := range []string{`{"ownerReferences":` + nobodysOwner + `}`, `{"finalizers":["example.com/keep"]}`, `{"labels":{"app.kubernetes.io/managed-by":null}}`} {
			if through := s.held(s.send(s.peter, "PATCH", pods+"/podaccess-adopted", testkit.AsMerge, `{"metadata":`+metadata+`}`), "admitkit alone makes"); through != "" {
				return through
			}
		}
		return s.stays(req)
	},
	"by an access Pod that is evicted": func(s siege) string {
		req := s.own("evicted", "web")
		if a := s.send(s.peter, "POST", pods+"/podaccess-evicted/eviction", testkit.AsJSON, `{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":"podaccess-evicted"}}`); a.Code >= 300 {
			s.Fatal(a)
		}
		await(s.T, req, "says that its Pod is gone", func() bool { return fails(req, "AccessResourcesReady", "PodGone") })
		if through := s.held(s.send(s.peter, "POST", pods, testkit.AsJSON, `{"metadata":{"name":"podaccess-evicted"},"spec":{"containers":[{"name":"a","image":"a"}]}}`), "admitkit alone makes"); through != "" {
			return through
		}
		isGone(s.T, bindingOf(req))
		return ""
	},
	"by a ReplicaSet that changes its owner": func(s siege) string {
		web, safe := deploymentOf(s, "web"), s.podOf("safe")
		owner := fmt.Sprintf(`{"metadata":{"ownerReferences":[{"apiVersion":"apps/v1","kind":"Deployment","name":"web","uid":%q,"controller":true}]}}`, web.UID)
		if a := s.send(s.peter, "PATCH", sets+"/"+metav1.GetControllerOf(safe).Name, testkit.AsMerge, owner); a.Code != http.StatusOK {
			s.Fatal(a)
		}
		return s.held(s.send(alice, "POST", requests, testkit.AsJSON, ask("adopted-set", `{"templateName":"web","targetPod":"`+safe.Name+`"}`)), safe.Name)
	},
	"by an owner of the Pod that does not exist": func(s siege) string {
		testkit.Create(s.T, admin, plainPod(s.namespace, "web-lost-1"))
		body := `{"metadata":{"labels":{"app":"web"},"ownerReferences":[{"apiVersion":"apps/v1","kind":"ReplicaSet","name":"web-lost","uid":"b6e1d1c2-3a0c-4b5e-9d5e-0c6f6a1c0002","controller":true}]}}`
		if a := s.send(s.peter, "PATCH", pods+"/web-lost-1", testkit.AsMerge, body); a.Code != http.StatusOK {
			s.Fatal(a)
		}
		return s.held(s.send(alice, "POST", requests, testkit.AsJSON, ask("lost", `{"templateName":"web","targetPod":"web-lost-1"}`)))
	},
	"by a Role with the name of a grant to come": func(s siege) string {
		for _, kind := range []string{roles, bindings} {
			extra := map[string]string{roles: `"rules":[]`, bindings: `"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"Role","name":"nora"}`}[kind]
			for _, meta := range []string{`"name":"execaccess-coming"`, `"generateName":"execaccess-"`, `"name":"podaccess-coming"`} {
				if through := s.held(s.send(s.nora, "POST", kind, testkit.AsJSON, `{"metadata":{`+meta+`},`+extra+`}`), "admitkit alone makes"); through != "" {
					return through
				}
			}
		}
		return ""
	},
	"by a Role that is turned to another Pod": func(s siege) string {
		req := s.exec("turned", "web")
		vault := s.podOf("vault")
		for _, change := range []struct{ path, contentType, body string }{
			{roles, testkit.AsPatch, `[{"op":"replace","path":"/rules/0/resourceNames/0","value":"` + vault.Name + `"}]`},
			{roles, testkit.AsMerge, `{"rules":[{"apiGroups":[""],"resources":["pods/exec"],"verbs":["*"]}]}`},
			{roles, testkit.AsMerge, `{"metadata":{"annotations":{"admitkit.dev/pod-uid":"` + string(vault.UID) + `"},"labels":{"admitkit.dev/pod-uid":"` + string(vault.UID) + `"}}}`},
			{roles, testkit.AsMerge, `{"metadata":{"annotations":{"admitkit.dev/subjects":"[]"}}}`},
			{bindings, testkit.AsMerge, `{"subjects":[{"apiGroup":"rbac.authorization.k8s.io","kind":"User","name":"nora"}]}`},
			{bindings, testkit.AsPatch, `[{"op":"add","path":"/subjects/-","value":{"apiGroup":"rbac.authorization.k8s.io","kind":"Group","name":"system:authenticated"}}]`},
			{bindings, testkit.AsMerge, `{"metadata":{"ownerReferences":` + nobodysOwner + `}}`},
			{bindings, testkit.AsMerge, `{"metadata":{"finalizers":["example.com/keep"]}}`},
		} {
			if through := s.held(s.send(s.nora, "PATCH", change.path+"/execaccess-turned", change.contentType, change.body), "admitkit alone makes"); through != "" {
				return change.body + ": " + through
			}
		}
		return s.stays(req)
	},
	"by a Role in the place of one that is deleted": func(s siege) string {
		req := s.exec("replaced", "web")
		var through string
		for range 5 {
			s.send(s.nora, "DELETE", roles+"/execaccess-replaced", testkit.AsJSON, "")
			through += s.held(s.send(s.nora, "POST", roles, testkit.AsJSON, `{"metadata":{"name":"execaccess-replaced"},"rules":[{"apiGroups":[""],"resources":["*"],"verbs":["*"]}]}`))
		}
		await(s.T, req, "is granted again", func() bool { return !gone(s.T, roleOf(req)) && !gone(s.T, bindingOf(req)) })
		return through
	},
	"by a Role that is deleted before its end, which would evict": deletedBeforeTheEnd,
	"by a template that is widened": func(s siege) string {
		testkit.Create(s.T, admin, s.template("widened", ref("Deployment", "web")))
		req := s.exec("widened", "widened")
		if a := s.send(s.tom, "PATCH", templates+"/widened", testkit.AsMerge, `{"spec":{"accessConfig":{"verbs":["exec","attach","portforward"],"subjects":"Groups","maxDuration":"48h","defaultDuration":"24h"}}}`); a.Code != http.StatusOK {
			s.Fatal(a)
		}
		s.is(req)
		role, binding := roleOf(req), bindingOf(req)
		s.is(role)
		s.is(binding)
		if text := fmt.Sprint(role.Rules); strings.Contains(text, "attach") || binding.Subjects[0].Kind != rbacv1.UserKind || req.Spec.Duration != "1h" {
			return fmt.Sprintf("%+v %+v %+v", role.Rules, binding.Subjects, req.Spec)
		}
		return ""
	},
	"by a template that lasts for ever": func(s siege) string {
		for i, duration := range []string{"9999999999h", "-1h", "0s", "1e3h", ""} {
			text, _ := json.Marshal(duration)
			body := fmt.Sprintf(`{"apiVersion":"admitkit.dev/v1alpha1","kind":"ExecAccessTemplate","metadata":{"name":"ever-%d"},"spec":{"accessConfig":{"allowedGroups":["devs"],"maxDuration":%s,"defaultDuration":%s},"controllerTargetRef":{"apiVersion":"apps/v1","kind":"Deployment","name":"web"}}}`, i, text, text)
			if through := s.held(s.send(s.tom, "POST", templates, testkit.AsJSON, body)); through != "" {
				return duration + ": " + through
			}
		}
		return ""
	},
	"by a template for nobody in particular": func(s siege) string {
		for i, who := range []string{`"allowedGroups":[""]`, `"allowedUsers":["","alice"]`, `"allowedGroups":["devs","devs"]`, `"allowedGroups":[]`, `"allowedGroups":null`} {
			body := fmt.Sprintf(`{"apiVersion":"admitkit.dev/v1alpha1","kind":"ExecAccessTemplate","metadata":{"name":"nobody-%d"},"spec":{"accessConfig":{%s},"controllerTargetRef":{"apiVersion":"apps/v1","kind":"Deployment","name":"web"}}}`, i, who)
			if through := s.held(s.send(s.tom, "POST", templates, testkit.AsJSON, body)); through != "" {
				return who + ": " + through
			}
		}
		return ""
	},
	"by a template whose target is a path": func(s siege) string {
		for i, name := range []string{"web/../vault", "../pods/x", "web/scale", "..", "%2e%2e"} {
			body := fmt.Sprintf(`{"apiVersion":"admitkit.dev/v1alpha1","kind":"ExecAccessTemplate","metadata":{"name":"target-%d"},"spec":{"accessConfig":{"allowedGroups":["devs"]},"controllerTargetRef":{"apiVersion":"apps/v1","kind":"Deployment","name":%q}}}`, i, name)
			if a := s.send(s.tom, "POST", templates, testkit.AsJSON, body); a.Code < 300 {
				if through := s.held(s.send(alice, "POST", requests, testkit.AsJSON, ask(fmt.Sprint("target-", i), fmt.Sprintf(`{"templateName":"target-%d","targetPod":%q}`, i, s.podOf("vault").Name)))); through != "" {
					return name + ": " + through
				}
			}
		}
		return ""
	},
	"by a patch of an access Pod's name, namespace, owner or deadline": func(s siege) string {
		for i, operation := range []string{
			`{"op":"replace","path":"/metadata/name","value":"web-0"}`, `{"op":"add","path":"/metadata/namespace","value":"kube-system"}`,
			`{"op":"add","path":"/metadata/ownerReferences","value":` + nobodysOwner + `}`, `{"op":"add","path":"/metadata/finalizers","value":["example.com/keep"]}`,
			`{"op":"add","path":"/metadata/labels","value":{"app.kubernetes.io/managed-by":"me","admitkit.dev/access-request":"other"}}`,
			`{"op":"add","path":"/spec/activeDeadlineSeconds","value":99999999}`,
		} {
			name := fmt.Sprint("patched-", i)
			body := fmt.Sprintf(`{"apiVersion":"admitkit.dev/v1alpha1","kind":"PodAccessTemplate","metadata":{"name":%q},"spec":{"accessConfig":{"allowedGroups":["devs"]},"controllerTargetRef":{"apiVersion":"apps/v1","kind":"Deployment","name":"web"},"controllerTargetMutationConfig":{"patchSpecOperations":[%s]}}}`, name, operation)
			if a := s.send(s.tom, "POST", podTmpls, testkit.AsJSON, body); a.Code >= 300 {
				continue
			}
			req := s.own(name, name)
			pod := s.pod("podaccess-" + name)
			owner := metav1.GetControllerOf(pod)
			if owner == nil || owner.UID != req.UID || len(pod.OwnerReferences) != 1 || len(pod.Finalizers) != 0 || pod.Labels[access.LabelManagedBy] != "admitkit-access" ||
				pod.Labels[access.LabelRequest] != name || *pod.Spec.ActiveDeadlineSeconds > 24*3600 {
				return fmt.Sprintf("%s: %+v", operation, pod.ObjectMeta)
			}
		}
		return ""
	},
	"by a status that says which Pod, or what to run": func(s siege) string {
		req := podRequest(s.namespace, "said", "pending")
		testkit.Create(s.T, as(s.T, alice), req)
		await(s.T, req, "has its Pod", func() bool { return req.Status.PodUID != "" })
		for _, status := range []string{
			`{"podName":"vault"}`, `{"podUID":"1"}`, `{"podUID":null,"podName":null}`, `{"accessMessage":"kubectl delete ns shop"}`, `{"revokedAt":"2001-01-01T00:00:00Z"}`,
		} {
			if through := s.held(s.send(s.stan, "PATCH", podReqs+"/said/status", testkit.AsMerge, `{"status":`+status+`}`)); through != "" {
				return status + ": " + through
			}
		}
		return ""
	},
	"by a status that says that access has not ended": func(s siege) string {
		req := s.exec("lively", "web")
		if a := s.send(alice, "PATCH", requests+"/lively", testkit.AsMerge, `{"spec":{"revoked":{}}}`); a.Code != http.StatusOK {
			s.Fatal(a)
		}
		await(s.T, req, "has ended", func() bool { return fails(req, "AccessStillValid", "Revoked") })
		if a := s.send(s.stan, "PATCH", requests+"/lively/status", testkit.AsMerge, `{"status":{"ready":true,"expiresAt":"2099-01-01T00:00:00Z","conditions":null}}`); a.Code != http.StatusOK {
			s.Fatal(a)
		}
		await(s.T, req, "says the truth again", func() bool { return fails(req, "AccessStillValid", "Revoked") && !req.Status.Ready })
		if !gone(s.T, bindingOf(req)) || !gone(s.T, roleOf(req)) {
			return "it is granted again"
		}
		return ""
	},
	"by a status that makes a record go": func(s siege) string {
		req := s.exec("recorded", "web")
		if a := s.send(s.stan, "PATCH", requests+"/recorded/status", testkit.AsMerge, `{"status":{"revokedAt":"`+time.Now().UTC().Format(time.RFC3339)+`"}}`); a.Code != http.StatusOK {
			s.Fatal(a)
		}
		await(s.T, req, "has ended", func() bool { return fails(req, "AccessStillValid", "Revoked") })
		if gone(s.T, req.DeepCopy()) {
			return "the record is gone"
		}
		return ""
	},
	"by a request restored from a backup": func(s siege) string {
		req := s.exec("backup", "web")
		s.is(req)
		if a := s.send(s.gustav, "DELETE", requests+"/backup", testkit.AsJSON, ""); a.Code != http.StatusOK {
			s.Fatal(a)
		}
		isGone(s.T, roleOf(req))
		req.ResourceVersion = ""
		return s.held(s.send(s.gustav, "POST", requests, testkit.AsJSON, document(s, req)), "nor restored from a backup")
	},
	"by a request that is deleted and leaves what it got": func(s siege) string {
		req := s.own("orphaned", "web")
		if a := s.send(s.gustav, "DELETE", podReqs+"/orphaned", testkit.AsJSON, `{"propagationPolicy":"Orphan"}`); a.Code != http.StatusOK {
			s.Fatal(a)
		}
		for _, object := range []client.Object{bindingOf(req), roleOf(req), plainPod(s.namespace, "podaccess-orphaned")} {
			isGone(s.T, object)
		}
		return ""
	},
}

func deploymentOf(s siege, name string) *appsv1.Deployment {
	s.Helper()
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: name}}
	s.is(d)
	return d
}

// deletedBeforeTheEnd deletes the Role, which records that the Pod is to be evicted, at
// the moment at which access ends.
func deletedBeforeTheEnd(s siege) string {
	evict := s.template("evict", ref("Deployment", "victim"))
	evict.Spec.AccessConfig.OnExpiry = v1alpha1.ExpiryEvict
	testkit.Create(s.T, admin, evict)
	req := s.exec("evict", "evict")
	// Nothing is granted again meanwhile.
	if a := s.send(s.tom, "PATCH", templates+"/evict", testkit.AsMerge, `{"spec":{"accessConfig":{"allowedGroups":["others"]}}}`); a.Code != http.StatusOK {
		s.Fatal(a)
	}
	if a := s.send(s.nora, "DELETE", roles+"/execaccess-evict", testkit.AsJSON, ""); a.Code != http.StatusOK {
		s.Fatal(a)
	}
	await(s.T, req, "is not granted any more", func() bool { return !req.Status.Ready })
	if a := s.send(alice, "PATCH", requests+"/evict", testkit.AsMerge, `{"spec":{"revoked":{}}}`); a.Code != http.StatusOK {
		s.Fatal(a)
	}
	await(s.T, req, "has ended", func() bool { return fails(req, "AccessStillValid", "Revoked") })
	if testkit.Poll(s.Context(), 30*time.Second, "the Pod is evicted", func(ctx context.Context) error {
		var pod corev1.Pod
		err := admin.Get(ctx, client.ObjectKey{Namespace: s.namespace, Name: req.Status.PodName}, &pod)
		if err == nil && string(pod.UID) == req.Status.PodUID && pod.DeletionTimestamp.IsZero() {
			return errors.New("it is there")
		}
		return client.IgnoreNotFound(err)
	}) != nil {
		return "the Pod is not evicted, and its sessions go on"
	}
	return ""
}

// TestNobodyGetsOrKeepsAccessThatWasNotGranted tries what is written above.
func TestNobodyGetsOrKeepsAccessThatWasNotGranted(t *testing.T) {
	t.Parallel()
	siege := beleaguer(t)
	var tried, through atomic.Int32
	for who, attacks := range map[string]map[string]attack{"engineers": attacksOfEngineers, "writers": attacksOfWriters, "askers": attacksOfAskers} {
		t.Run(who, func(t *testing.T) {
			for name, attack := range attacks {
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					mine := siege
					mine.T = t
					tried.Add(1)
					if what := attack(mine); what != "" {
						through.Add(1)
						t.Errorf("this went through: %s", what)
					}
				})
			}
		})
	}
	testkit.Figure("attack.access_tried", float64(tried.Load()), "attempts")
	testkit.Figure("attack.access_through", float64(through.Load()), "attempts")
}
