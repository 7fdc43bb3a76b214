package access_test

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/internal/freeport"
	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/manager"
	"github.com/admitkit/admitkit/operator/access"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

// asked is what a check is asked, as its documentation says.
type asked struct {
	APIVersion, Kind, Namespace, Name, UID, Check, OnBehalfOf, Reason, Template, TargetPod string
	Requester                                                                              struct {
		Username string
		Groups   []string
	}
	DurationSeconds int64
	From, Until     time.Time
	ApprovedBy      []string
}

// desk is a server with a check for each path, and a namespace with a template for each.
type desk struct {
	*httptest.Server
	namespace string
	options   access.Options
	told      *chronicle

	mu    sync.Mutex
	asked map[string][]asked // by the names of requests
	// opened lets the check "later" answer.
	opened chan struct{}
}

func newDesk(t *testing.T) *desk {
	t.Helper()
	d := &desk{namespace: testkit.ManagerNamespace(t, admin), asked: map[string][]asked{}, opened: make(chan struct{}), told: &chronicle{}}
	d.Server = httptest.NewUnstartedServer(http.HandlerFunc(d.answer))
	d.Config.ErrorLog = log.New(io.Discard, "", 0)
	d.StartTLS()
	t.Cleanup(d.Close)
	ca := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: d.Certificate().Raw}))
	for _, name := range []string{"allow", "deny", "shorten", "lengthen", "garbage", "mended", "hang", "later", "flood", "short-lived"} {
		d.options.Checks = append(d.options.Checks, access.Check{Name: name, URL: d.URL + "/" + name, CABundle: ca, Timeout: metav1.Duration{Duration: time.Second}})
	}
	d.options.Checks = append(d.options.Checks, access.Check{Name: "stranger", URL: d.URL + "/stranger"}) // whose certificate the system does not know
	deployment(t, d.namespace, "web", 1)
	return d
}

// template makes a template that names a check.
func (d *desk) template(t *testing.T, name string, change ...func(*v1alpha1.AccessConfig)) {
	t.Helper()
	template := execTemplate(d.namespace, name, ref("Deployment", "web"), "devs")
	template.Spec.AccessConfig.Check = name
	for _, fn := range change {
		fn(&template.Spec.AccessConfig)
	}
	testkit.Create(t, admin, template)
}

func (d *desk) answer(w http.ResponseWriter, r *http.Request) {
	var q asked
	decoder := json.NewDecoder(r.Body)
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&q); err != nil {
		http.Error(w, err.Error(), http.StatusTeapot)
		return
	}
	d.mu.Lock()
	d.asked[q.Name] = append(d.asked[q.Name], q)
	count := len(d.asked[q.Name])
	d.mu.Unlock()
	switch r.URL.Path {
	case "/allow", "/flood":
		_, _ = fmt.Fprint(w, `{"decision":"Allow","message":"CHG-1"}`)
	case "/deny":
		_, _ = fmt.Fprint(w, `{"decision":"Deny","message":"no change window is open"}`)
	case "/shorten":
		_, _ = fmt.Fprint(w, `{"decision":"Allow","maxDurationSeconds":600}`)
	case "/lengthen":
		_, _ = fmt.Fprint(w, `{"decision":"Allow","maxDurationSeconds":9223372036854775807}`)
	case "/mended":
		if count < 3 {
			http.Error(w, "{}", http.StatusInternalServerError)
			return
		}
		_, _ = fmt.Fprint(w, `{"decision":"Allow"}`)
	case "/hang":
		<-r.Context().Done()
	case "/later":
		select {
		case <-d.opened:
			_, _ = fmt.Fprint(w, `{"decision":"Allow"}`)
		case <-r.Context().Done():
		}
	default:
		_, _ = fmt.Fprint(w, `{"decision":"Allow"`)
	}
}

// questions returns what was asked about a request.
func (d *desk) questions(name string) []asked {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.asked[name])
}

func conditionOf(req request, condition string) metav1.Condition {
	if c := meta.FindStatusCondition(req.GetRequestStatus().Conditions, condition); c != nil {
		return *c
	}
	return metav1.Condition{}
}

// noAnswer waits until a request says why its check has not answered, and wants that
// nothing is granted.
func noAnswer(t *testing.T, req request, why string) {
	t.Helper()
	await(t, req, "says that its check has not answered", func() bool {
		return fails(req, v1alpha1.ConditionChecked, v1alpha1.ReasonCheckFailed) && strings.Contains(conditionOf(req, v1alpha1.ConditionChecked).Message, why)
	})
	notGranted(t, req)
}

func notGranted(t *testing.T, req request) {
	t.Helper()
	if err := admin.Get(t.Context(), client.ObjectKeyFromObject(bindingOf(req)), &rbacv1.RoleBinding{}); err == nil {
		t.Error("access is granted")
	}
	if status := req.GetRequestStatus(); status.PodUID != "" || status.ExpiresAt != nil {
		t.Errorf("the status is %+v", status)
	}
}

// checkCases are the cases of the table, by what they show.
var checkCases = map[string]func(*testing.T, *desk){
	"a check that allows": func(t *testing.T, d *desk) {
		d.template(t, "allow", func(c *v1alpha1.AccessConfig) { c.DefaultDuration = "30m" })
		req := execRequest(d.namespace, "allowed", "allow")
		req.Spec.Reason = "incident 7"
		granted(t, alice, req)
		questions := d.questions(req.Name)
		if len(questions) != 1 {
			t.Fatalf("asked %d times", len(questions))
		}
		q := questions[0]
		if q.APIVersion != "admitkit.dev/v1alpha1" || q.Kind != "ExecAccessRequest" || q.Namespace != d.namespace || q.UID != string(req.UID) || q.Check != "allow" ||
			q.Requester.Username != "alice" || !slices.Contains(q.Requester.Groups, "devs") || q.Reason != "incident 7" || q.Template != "allow" || q.DurationSeconds != 1800 ||
			!q.From.Equal(req.CreationTimestamp.Time) || !q.Until.Equal(req.Status.ExpiresAt.Time) {
			t.Errorf("asked %+v about %+v", q, req)
		}
		if c := req.Status.Check; c == nil || c.Name != "allow" || c.Decision != v1alpha1.CheckAllow || c.Message != "CHG-1" {
			t.Errorf("on record is %+v", c)
		}
		if !holds(req, v1alpha1.ConditionChecked) || !d.told.says(req, "checked", "allowed by the check allow: CHG-1") {
			t.Errorf("it is not told: %+v, %q", req.Status, d.told.of(req))
		}
		// The answer is for good, and for this duration.
		refused(t, patch(t, alice, req, `{"spec":{"duration":"31m"}}`), "duration cannot be extended, because the check allowed this one")
		forged := req.DeepCopy()
		forged.Status.Check.Message = "more"
		refused(t, admin.Status().Update(t.Context(), forged), "status.check cannot be changed")
		if err := patch(t, alice, req, `{"spec":{"duration":"20m"}}`); err != nil {
			t.Error(err)
		}
	},
	"a check that denies": func(t *testing.T, d *desk) {
		d.template(t, "deny")
		req := execRequest(d.namespace, "denied", "deny")
		testkit.Create(t, as(t, alice), req)
		await(t, req, "is denied", func() bool { return fails(req, v1alpha1.ConditionAccessStillValid, v1alpha1.ReasonDenied) })
		const message = "denied by the check deny: no change window is open"
		if said := conditionOf(req, v1alpha1.ConditionChecked); said.Message != message || !d.told.says(req, "denied", message) {
			t.Errorf("it says %+v, and the records %q", said, d.told.of(req))
		}
		notGranted(t, req)
		if n := len(d.questions(req.Name)); n != 1 {
			t.Errorf("asked %d times", n)
		}
	},
	"a check that shortens": func(t *testing.T, d *desk) {
		d.template(t, "shorten")
		req := granted(t, alice, execRequest(d.namespace, "shortened", "shorten"))
		if want := req.CreationTimestamp.Add(10 * time.Minute); !req.Status.ExpiresAt.Time.Equal(want) {
			t.Errorf("access ends at %s, want %s", req.Status.ExpiresAt, want)
		}
		if slices.Contains(d.told.of(req), "end-moved alice") {
			t.Error("the end moved, and never was another")
		}
	},
	"a check that would lengthen": func(t *testing.T, d *desk) {
		d.template(t, "lengthen")
		req := granted(t, alice, execRequest(d.namespace, "lengthened", "lengthen"))
		if want := req.CreationTimestamp.Add(time.Hour); !req.Status.ExpiresAt.Time.Equal(want) {
			t.Errorf("access ends at %s, want %s", req.Status.ExpiresAt, want)
		}
	},
	"a check that answers nonsense": func(t *testing.T, d *desk) {
		d.template(t, "garbage")
		req := execRequest(d.namespace, "nonsense", "garbage")
		testkit.Create(t, as(t, alice), req)
		noAnswer(t, req, "waiting for the check garbage: its answer is not valid")
		testkit.Eventually(t, "it is asked again", func(context.Context) bool { return len(d.questions(req.Name)) > 2 })
		await(t, req, "still waits", func() bool { return true })
		notGranted(t, req)
	},
	"a check that is not who it should be": func(t *testing.T, d *desk) {
		d.template(t, "stranger")
		req := execRequest(d.namespace, "stranger", "stranger")
		testkit.Create(t, as(t, alice), req)
		noAnswer(t, req, "its certificate cannot be trusted")
		if n := len(d.questions(req.Name)); n != 0 {
			t.Errorf("asked %d times", n)
		}
	},
	"a check that fails, and is mended": func(t *testing.T, d *desk) {
		d.template(t, "mended")
		req := granted(t, alice, execRequest(d.namespace, "mended", "mended"))
		if n := len(d.questions(req.Name)); n != 3 {
			t.Errorf("asked %d times", n)
		}
	},
	"a check that gives no answer in time": func(t *testing.T, d *desk) {
		d.template(t, "short-lived")
		req := execRequest(d.namespace, "short-lived", "short-lived")
		testkit.Create(t, as(t, alice), req)
		await(t, req, "waits for the check", func() bool { return meta.FindStatusCondition(req.Status.Conditions, v1alpha1.ConditionChecked) != nil })
		if err := patch(t, alice, req, `{"spec":{"duration":"1s"}}`); err != nil {
			t.Fatal(err)
		}
		await(t, req, "has ended", func() bool { return fails(req, v1alpha1.ConditionAccessStillValid, v1alpha1.ReasonTimedOut) })
		if !fails(req, v1alpha1.ConditionChecked, v1alpha1.ReasonTimedOut) || !d.told.says(req, "timed-out", "its check has not answered until") {
			t.Errorf("it says %+v, and the records %q", req.Status, d.told.of(req))
		}
		notGranted(t, req)
	},
	// More than the workers of the check, and of the reconciler.
	"a check that hangs holds up no other, and no request without a check": func(t *testing.T, d *desk) {
		d.template(t, "hang")
		for i := range 40 {
			testkit.Create(t, as(t, alice), execRequest(d.namespace, fmt.Sprint("hung-", i), "hang"))
		}
		testkit.Eventually(t, "it is asked", func(context.Context) bool {
			d.mu.Lock()
			defer d.mu.Unlock()
			hung := 0
			for name := range d.asked {
				if strings.HasPrefix(name, "hung-") {
					hung++
				}
			}
			return hung >= 8
		})
		d.template(t, "flood")
		testkit.Create(t, admin, execTemplate(d.namespace, "plain", ref("Deployment", "web"), "devs"))
		began := time.Now()
		granted(t, alice, execRequest(d.namespace, "plain", "plain"))
		granted(t, alice, execRequest(d.namespace, "beside", "flood"))
		t.Logf("granted beside 40 that hang within %s", time.Since(began))
		hung := execRequest(d.namespace, "hung-0", "hang")
		noAnswer(t, hung, "it has not answered within 1s")
	},
	"another duration than the one that is asked about": func(t *testing.T, d *desk) {
		d.template(t, "later")
		req := execRequest(d.namespace, "changed", "later")
		testkit.Create(t, as(t, alice), req)
		testkit.Eventually(t, "the check is asked", func(context.Context) bool { return len(d.questions(req.Name)) == 1 })
		if err := patch(t, alice, req, `{"spec":{"duration":"2h"}}`); err != nil {
			t.Fatal(err)
		}
		close(d.opened)
		await(t, req, "is ready", func() bool { return req.Status.Ready })
		if questions := d.questions(req.Name); questions[len(questions)-1].DurationSeconds != 7200 {
			t.Errorf("granted for 2 h, and asked %+v", questions)
		}
	},
	"a template that names a check which there is not": func(t *testing.T, d *desk) {
		template := execTemplate(d.namespace, "unknown", ref("Deployment", "web"), "devs")
		template.Spec.AccessConfig.Check = "unknown"
		refused(t, admin.Create(t.Context(), template), `there is no check "unknown"; there are: allow, deny,`)
		template.Spec.AccessConfig.Check = "https://evil.example.com"
		refused(t, admin.Create(t.Context(), template), "spec.accessConfig.check")
	},
	"an answer that somebody else writes": func(t *testing.T, d *desk) {
		req := execRequest(d.namespace, "forged", "not-yet")
		testkit.Create(t, as(t, alice), req)
		await(t, req, "is looked at", func() bool { return len(req.Status.Conditions) > 0 })
		req.Status.Check = &v1alpha1.CheckResult{Name: "deny", Decision: v1alpha1.CheckAllow, Time: metav1.Now()}
		refused(t, admin.Status().Update(t.Context(), req), "only admitkit writes them")
	},
}

func TestTheOperatorsChecksDecide(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	startOn(t, d.namespace, freeport.For(t), d.options, nil, d.told)
	t.Run("cases", func(t *testing.T) {
		for name, fn := range checkCases {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				fn(t, d)
			})
		}
	})
	testkit.Figure("check.cases", float64(len(checkCases)), "cases")
}

func TestACheckIsAskedAfterApprovalAndNotAgainByAnotherManager(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	zoe, err := cluster.AddUser("zoe", "sre", "deciders")
	if err != nil {
		t.Fatal(err)
	}
	port := freeport.For(t)
	d.told.refuse("granted")
	r := startOn(t, d.namespace, port, d.options, nil, d.told)
	letDecide(t, d.namespace, "deciders")
	d.template(t, "allow", func(c *v1alpha1.AccessConfig) { c.Approval = &v1alpha1.Approval{Required: 1, Groups: []string{"sre"}} })
	d.template(t, "deny")
	req, other := execRequest(d.namespace, "a", "allow"), execRequest(d.namespace, "b", "deny")
	testkit.Create(t, as(t, alice), req, other)
	await(t, other, "is denied", func() bool { return fails(other, v1alpha1.ConditionAccessStillValid, v1alpha1.ReasonDenied) })
	await(t, req, "waits for approval", func() bool { return fails(req, v1alpha1.ConditionApproved, v1alpha1.ReasonWaiting) })
	if n := len(d.questions(req.Name)); n != 0 {
		t.Errorf("asked %d times before it is approved", n)
	}
	approved(t, req, zoe)
	await(t, req, "has its answer", func() bool { return req.Status.Check != nil })
	testkit.Eventually(t, "the grant is held up", func(context.Context) bool { return d.told.hasRefused() })
	r.stop()
	d.told.refuse("")
	logger, _ := testkit.Logger(t)
	next := newManager(t, manager.Options{
		OperatorFingerprint: "admitkit", Namespaces: []string{d.namespace}, Host: "127.0.0.1", Port: port, Serving: manager.ServingOptions{DrainPeriod: new(time.Duration)},
		Logger: logger, RESTConfig: managerUser.Config, RegisterWebHook: new(bool),
	}, d.options, d.told)
	testkit.Start(t, next)
	await(t, req, "is ready", func() bool { return req.Status.Ready })
	// The record of the grant is lost: it is made again, by the same answer.
	if err := admin.Delete(t.Context(), roleOf(req)); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the Role is there again", func(ctx context.Context) bool {
		return admin.Get(ctx, client.ObjectKeyFromObject(roleOf(req)), &rbacv1.Role{}) == nil
	})
	questions := d.questions(req.Name)
	if len(questions) != 1 || !slices.Equal(questions[0].ApprovedBy, []string{"zoe"}) || len(d.questions(other.Name)) != 1 {
		t.Errorf("asked %+v, and %d times about the other", questions, len(d.questions(other.Name)))
	}
	if story := d.told.of(req); !slices.Equal(story, []string{"asked alice", "approved zoe", "checked ", "granted alice"}) {
		t.Errorf("the records are %q", story)
	}
}

func TestAFileOfChecksIsReadStrictly(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "checks.yaml")
	for sentence, c := range map[string]struct{ text, want string }{
		"complete":               {"checks:\n- {name: a, url: 'https://a', timeout: 3s, caFile: ca.crt, tokenFile: /etc/token, certFile: tls.crt, keyFile: tls.key}\n- {name: b, url: 'https://b'}", ""},
		"JSON":                   {`{"checks":[{"name":"a","url":"https://a"}]}`, ""},
		"empty":                  {"", "checks: must name at least one"},
		"an unknown field":       {"checks: [{name: a, url: 'https://a', insecure: true}]", "checks[0].insecure: there is no such field: a check has name, url, timeout"},
		"a duration in days":     {"checks: [{name: a, url: 'https://a'}, {name: b, url: 'https://b', timeout: 1d}]", "checks[1].timeout: must be a duration such as 3s or 500ms"},
		"a number for a name":    {"checks: [{name: 5, url: 'https://s3cr3t'}]", "checks[0].name: must be a string: put it in quotation marks"},
		"an unknown list":        {"check: [{name: a, url: 'https://a'}]", "check: there is no such field: the file has checks only"},
		"one check, in no list":  {"checks: {name: a, url: 'https://a'}", "checks: must be a list, each with name and url"},
		"a list of names":        {"checks: [a]", "checks: must be a list, each with name and url"},
		"no list":                {"[]", "checks: must be a list"},
		"a field twice":          {"checks: [{name: a, name: b, url: 'https://a'}]", `key "name" already set`},
		"two of JSON":            {`{"checks":[{"name":"a","url":"https://a"}]}{"checks":[]}`, "must be one document"},
		"more after its end":     {"checks: [{name: a, url: 'https://a'}]\n...\nchecks: []", "something follows its end"},
		"two documents":          {"checks: [{name: a, url: 'https://a'}]\n---\nchecks: []", "must be one document"},
		"no name":                {"checks: [{url: 'https://a'}]", "checks[0].name"},
		"a name in upper case":   {"checks: [{name: CHANGE, url: 'https://a'}]", "checks[0].name"},
		"a name twice":           {"checks: [{name: a, url: 'https://a'}, {name: a, url: 'https://b'}]", `checks[1].name: "a" is there twice`},
		"no URL":                 {"checks: [{name: a}]", "checks[0].url: must be https"},
		"http":                   {"checks: [{name: a, url: 'http://a'}]", "checks[0].url: must be https"},
		"http on this machine":   {"checks: [{name: a, url: 'http://127.0.0.1:1'}]", "checks[0].url: must be https"},
		"a password in the URL":  {"checks: [{name: a, url: 'https://a:s3cr3t@b'}]", "use tokenFile"},
		"a URL that is none":     {"checks: [{name: a, url: 'https://s3cr3t:x'}]", "checks[0].url: it cannot be parsed"},
		"too long a timeout":     {"checks: [{name: a, url: 'https://a', timeout: 9s}]", "checks[0].timeout: 9s: must be from 0"},
		"a negative timeout":     {"checks: [{name: a, url: 'https://a', timeout: -1s}]", "checks[0].timeout: -1s"},
		"no duration":            {"checks: [{name: a, url: 'https://a', timeout: 5}]", "checks[0].timeout: must be a duration such as 3s or 500ms"},
		"two sources of a CA":    {"checks: [{name: a, url: 'https://a', caFile: x, caBundle: none}]", "checks[0].caFile and caBundle exclude each other"},
		"a certificate alone":    {"checks: [{name: a, url: 'https://a', certFile: x}]", "checks[0].certFile and keyFile need each other"},
		"a CA that is none":      {"checks: [{name: a, url: 'https://a', caBundle: none}]", "checks[0].caBundle: there is no certificate"},
		"more than is sensible":  {"checks:\n" + strings.Repeat("- {name: a, url: 'https://a'}\n", 65), "at most 64"},
		"larger than is allowed": {strings.Repeat("#", 1<<20+1), "more than 1048576 bytes"},
	} {
		if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		checks, err := access.ReadChecks(path)
		switch {
		case c.want == "" && (err != nil || checks[0].Name != "a"):
			t.Errorf("%s: got %+v, %v", sentence, checks, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "s3cr3t")):
			t.Errorf("%s: got %v, want %s", sentence, err, c.want)
		case sentence == "complete" && (checks[0].CAFile != filepath.Join(dir, "ca.crt") || checks[0].TokenFile != "/etc/token" || checks[0].KeyFile != filepath.Join(dir, "tls.key")):
			t.Errorf("the files are %+v", checks[0])
		}
	}
}
