package scan

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/xml"
	"net/http"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/webhook"
)

type passedOn struct{}

func (passedOn) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
}

func TestAScanPassesOnlyOnWhatChangesNothing(t *testing.T) {
	for request, passes := range map[string]bool{
		"GET /api/v1/namespaces/a/pods":                                                                  true,
		"GET /api/v1/namespaces/exec/pods/proxy":                                                         true,
		"GET /api/v1/namespaces/a/pods/b/log":                                                            true,
		"GET /api/v1/namespaces/a/pods/b/exec?command=rm":                                                false,
		"POST /api/v1/namespaces/a/pods/b/exec?command=rm&dryRun=All":                                    false,
		"GET /k8s/clusters/c/api/v1/namespaces/a/pods/b/attach":                                          false,
		"GET /api/v1/namespaces/a/services/b/proxy/delete":                                               false,
		"GET /api/v1/nodes/a/proxy/run":                                                                  false,
		"POST /api/v1/namespaces/a/services/b/proxy/apis/authorization.k8s.io/v1/subjectaccessreviews":   false,
		"POST /apis/authorization.k8s.io/v1/subjectaccessreviews":                                        true,
		"POST /k8s/clusters/c/apis/authorization.k8s.io/v1/namespaces/a/localsubjectaccessreviews":       true,
		"POST /apis/authentication.k8s.io/v1/tokenreviews":                                               true,
		"POST /apis/example.com/v1/tokenreviews":                                                         false,
		"POST /api/v1/namespaces/a/configmaps":                                                           false,
		"POST /api/v1/namespaces/a/configmaps?dryRun=All":                                                true,
		"DELETE /api/v1/namespaces/a/configmaps/b":                                                       false,
		"PATCH /apis/apiregistration.k8s.io/v1/apiservices/v1.example.com/status?fieldManager=dryRunAll": false,
	} {
		method, url, _ := strings.Cut(request, " ")
		req, err := http.NewRequestWithContext(t.Context(), method, "https://cluster.example.com"+url, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := ReadOnly(passedOn{}).RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = answer.Body.Close()
		if passed := answer.StatusCode == http.StatusOK; passed != passes {
			t.Errorf("%s: passed on is %v", request, passed)
		}
	}
}

func TestAScanReadsWhatIsWrittenButNoReports(t *testing.T) {
	webhooks, err := webhook.Group([]*extension.Handler{extension.ValidatingFunc(func(context.Context, runtime.Object, *extension.Request) error { return nil },
		extension.Scope{Name: "all", Rules: extension.Resources("*", "*", []string{"*"}, "CREATE")})}, webhook.Defaults{})
	if err != nil {
		t.Fatal(err)
	}
	all, computed := metav1.Verbs{"create", "get", "list"}, metav1.Verbs{"get", "list"}
	plan := PlanOf(webhooks, []*metav1.APIResourceList{
		{GroupVersion: "v1", APIResources: []metav1.APIResource{{Name: "pods", Kind: "Pod", Verbs: all}, {Name: "componentstatuses", Verbs: computed}}},
		{GroupVersion: "metrics.k8s.io/v1beta1", APIResources: []metav1.APIResource{{Name: "pods", Kind: "PodMetrics", Verbs: computed}}},
		{GroupVersion: "openreports.io/v1alpha1", APIResources: []metav1.APIResource{{Name: "reports", Kind: "Report", Verbs: all}}},
		{GroupVersion: "wgpolicyk8s.io/v1beta1", APIResources: []metav1.APIResource{{Name: "clusterpolicyreports", Kind: "ClusterPolicyReport", Verbs: all}}},
		{GroupVersion: "example.com/v1", APIResources: []metav1.APIResource{{Name: "reports", Kind: "Report", Verbs: metav1.Verbs{"list", "patch"}}}},
	})
	var read, left []string
	for _, pass := range plan.Passes {
		read = append(read, pass.Resource.GroupResource().String())
	}
	for _, l := range plan.Left {
		left = append(left, strings.SplitN(l.Reason, ":", 2)[0])
	}
	if want := []string{"pods", "reports.example.com"}; !slices.Equal(read, want) {
		t.Errorf("it reads %v, want %v", read, want)
	}
	if want := []string{"reports.openreports.io", "clusterpolicyreports.wgpolicyk8s.io"}; !slices.Equal(left, want) {
		t.Errorf("it leaves out %v, want %v", left, want)
	}
}

func TestAResultIsWrittenWhateverTheNames(t *testing.T) {
	const name = "a\nfake: 0 denied\x1b[31m%?#<&\"' "
	r := &Result{
		order: []string{"it"}, Rows: []*Row{{Extension: "it", Objects: 1, Denied: 1}, {Extension: "it", Namespace: "more", Objects: 3, Stuck: 2}, {Extension: "it", Namespace: "fine", Objects: 4}}, More: 2,
		Findings: []Finding{{Extension: "it", APIVersion: "rbac.authorization.k8s.io/v1", Kind: "Role", Resource: "roles.rbac.authorization.k8s.io", Name: name, Outcomes: []Outcome{Denied}, Message: name}},
	}
	write := func(format string) []byte {
		var text bytes.Buffer
		if err := r.Write(&text, format, "program"); err != nil {
			t.Fatal(err)
		}
		return text.Bytes()
	}
	if table := string(write("table")); strings.ContainsAny(table, "\x1b") || strings.Contains(table, "\nfake") || !strings.Contains(table, `Role a\nfake: 0 denied\x1b[31m`) {
		t.Errorf("the table is %q", table)
	}
	var junit struct {
		Failures int `xml:"failures,attr"`
		Suites   []struct {
			Cases []struct {
				Name    string `xml:"name,attr"`
				Failure *struct {
					Message string `xml:"message,attr"`
				} `xml:"failure"`
			} `xml:"testcase"`
		} `xml:"testsuite"`
	}
	if err := xml.Unmarshal(write("junit"), &junit); err != nil || junit.Failures != 2 {
		t.Fatalf("%v: %+v", err, junit)
	}
	for _, test := range junit.Suites[0].Cases {
		if fine := test.Name == "4 objects in namespace fine"; fine != (test.Failure == nil) {
			t.Errorf("%s: %+v", test.Name, test.Failure)
		}
	}
	var log sarifLog
	if err := json.Unmarshal(write("sarif"), &log); err != nil {
		t.Fatal(err)
	}
	if uri := log.Runs[0].Results[0].Locations[0].Physical.Artifact.URI; strings.ContainsAny(uri, "\n\x1b ?#\"<>") {
		t.Errorf("the URI is %q", uri)
	}
}
