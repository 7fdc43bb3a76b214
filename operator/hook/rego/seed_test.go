package rego

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/admitkit/admitkit/internal/freeport"
	"github.com/admitkit/admitkit/internal/testkit"
)

const (
	root   = "../../../"
	policy = root + "operator/examples/hooks-transient-binding/policy/"
)

func transientBinding(t testing.TB) *Policy {
	t.Helper()
	text, err := os.ReadFile(policy + "controller.rego")
	if err != nil {
		t.Fatal(err)
	}
	return compile(t, V0, string(text))
}

func TestThePolicyOfTheExamplePassesItsOwnTests(t *testing.T) {
	var out strings.Builder
	if err := Test(t.Context(), &out, os.DirFS(policy), TestOptions{Version: V0}); err != nil {
		t.Fatalf("%v\n%s", err, &out)
	}
	if !strings.HasSuffix(out.String(), "\n12 passed, 0 failed\n") {
		t.Errorf("got\n%s", &out)
	}
}

// windows are requests about a binding, by where noon is in its window.
func windows(t testing.TB, now time.Time) map[string][]byte {
	t.Helper()
	requests := map[string][]byte{}
	bound := map[string]any{"oncall": map[string]any{"kind": "RoleBinding"}}
	for name, window := range map[string][2]time.Duration{
		"before": {time.Hour, 2 * time.Hour}, "within": {-time.Hour, time.Hour}, "after": {-2 * time.Hour, -time.Hour},
	} {
		for suffix, children := range map[string]map[string]any{"": {}, ", bound": bound} {
			requests[name+suffix] = request(t, now, window, children)
		}
	}
	return requests
}

func request(t testing.TB, now time.Time, window [2]time.Duration, children map[string]any) []byte {
	t.Helper()
	body, err := json.Marshal(map[string]any{
		"controller": map[string]any{"spec": map[string]any{
			"childResources": []any{map[string]any{"apiVersion": "rbac.authorization.k8s.io/v1", "resource": "rolebindings"}},
		}},
		"parent": map[string]any{
			"apiVersion": "example.com/v1", "kind": "TransientRoleBinding",
			"metadata":   map[string]any{"name": "oncall", "namespace": "apps", "uid": "8c2b"},
			"validFrom":  now.Add(window[0]).Format(time.RFC3339),
			"validUntil": now.Add(window[1]).Format(time.RFC3339),
			"subjects":   []any{map[string]any{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "jane"}},
			"roleRef":    map[string]any{"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "edit"},
			"status": map[string]any{"conditions": []any{map[string]any{
				"type": "Effective", "status": "True", "reason": "Created", "lastTransitionTime": "2026-11-23T11:00:00Z",
			}}},
		},
		"children":   map[string]any{"RoleBinding.rbac.authorization.k8s.io/v1": children},
		"related":    map[string]any{},
		"finalizing": false,
	})
	if err != nil {
		t.Fatal(err)
	}
	return body
}

func TestTheBindingIsThereOnlyWithinItsWindow(t *testing.T) {
	inside := transientBinding(t)
	for name, body := range windows(t, noon) {
		output, err := inside.Evaluate(t.Context(), body, noon)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		var answer struct {
			Children []map[string]any `json:"children"`
			Status   struct {
				Conditions []struct{ Status, LastTransitionTime string } `json:"conditions"`
			} `json:"status"`
		}
		if err := json.Unmarshal(output, &answer); err != nil {
			t.Fatal(err)
		}
		if want := strings.HasPrefix(name, "within"); (len(answer.Children) == 1) != want {
			t.Errorf("%s: got %v", name, answer.Children)
		}
		conditions, bound := answer.Status.Conditions, strings.HasSuffix(name, "bound")
		switch {
		case bound && len(conditions) != 1:
			t.Errorf("%s: got %v, want the condition as it was", name, conditions)
		case !bound && (len(conditions) != 2 || conditions[0].Status != "False" || conditions[0].LastTransitionTime != "2026-11-23T12:00:00Z"):
			t.Errorf("%s: got %v, want a new condition first", name, conditions)
		}
	}
}

func TestAnOPAServerAnswersTheSame(t *testing.T) {
	if testing.Short() {
		t.Skip("it builds OPA")
	}
	server := startOPA(t)
	inside := transientBinding(t)
	now := time.Now()
	requests := windows(t, now)
	for _, name := range slices.Sorted(maps.Keys(requests)) {
		response, err := http.Post(server+"/v0/data/controller", "application/json", bytes.NewReader(requests[name]))
		if err != nil {
			t.Fatal(err)
		}
		theirs, err := io.ReadAll(response.Body)
		_ = response.Body.Close()
		if err != nil || response.StatusCode != http.StatusOK {
			t.Fatalf("%s: %s: %s, %v", name, response.Status, theirs, err)
		}
		ours, err := inside.Evaluate(t.Context(), requests[name], now)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if diff := cmp.Diff(withoutTime(t, theirs), withoutTime(t, ours)); diff != "" {
			t.Errorf("%s: OPA's, and ours:\n%s", name, diff)
		}
	}
	http.DefaultClient.CloseIdleConnections()
	fmt.Printf("FIGURE rego.same_as_opa=%d requests\n", len(requests))
}

// withoutTime removes the time of the newest condition, which OPA's own clock made.
func withoutTime(t *testing.T, document []byte) map[string]any {
	t.Helper()
	var answer map[string]any
	if err := json.Unmarshal(document, &answer); err != nil {
		t.Fatalf("%v: %s", err, document)
	}
	delete(answer, "condition")
	conditions := answer["status"].(map[string]any)["conditions"].([]any)
	delete(conditions[0].(map[string]any), "lastTransitionTime")
	delete(answer, "conditions")
	return answer
}

// startOPA builds OPA, if bin has none, and serves the policy of the example.
func startOPA(t *testing.T) (address string) {
	t.Helper()
	program, err := filepath.Abs(root + "bin/opa")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(program); err != nil {
		build := exec.CommandContext(t.Context(), "go", "build", "-C", root+"hack/opa", "-trimpath", "-o", program, "github.com/open-policy-agent/opa")
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	port := freeport.For(t)
	var log bytes.Buffer
	server := exec.CommandContext(t.Context(), program, "run", "--server", "--v0-compatible", "--disable-telemetry",
		"--addr", fmt.Sprintf("127.0.0.1:%d", port), policy+"controller.rego")
	server.Stdout, server.Stderr = &log, &log
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = server.Process.Kill()
		_ = server.Wait()
		if t.Failed() {
			t.Log(log.String())
		}
	})
	address = fmt.Sprintf("http://127.0.0.1:%d", port)
	for deadline := time.Now().Add(2 * time.Minute); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		response, err := http.Get(address + "/health")
		if err == nil {
			_ = response.Body.Close()
			if response.StatusCode == http.StatusOK {
				return address
			}
		}
	}
	t.Fatal("OPA did not start")
	return ""
}

func TestAnEvaluationTakesMicroseconds(t *testing.T) {
	if testing.Short() {
		t.Skip("make figures runs it")
	}
	inside := transientBinding(t)
	body := windows(t, noon)["within"]
	const rounds = 20_000
	start := time.Now()
	for range rounds {
		if _, err := inside.Evaluate(t.Context(), body, noon); err != nil {
			t.Fatal(err)
		}
	}
	each := time.Since(start) / time.Duration(rounds)
	testkit.Figure("rego.eval_us", float64(each.Nanoseconds())/1000, "us")
	if each > 100*time.Millisecond {
		t.Errorf("an evaluation takes %s", each)
	}
	pool := newPool(t, 1)
	text, err := os.ReadFile(policy + "controller.rego")
	if err != nil {
		t.Fatal(err)
	}
	inPool, err := pool.Compile(Source{Version: V0, Modules: []Module{{Name: "policy.rego", Text: string(text)}}}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	start = time.Now()
	for range rounds {
		if _, err := inPool.Evaluate(t.Context(), body, noon); err != nil {
			t.Fatal(err)
		}
	}
	testkit.Figure("rego.worker_eval_us", float64((time.Since(start)/time.Duration(rounds)).Nanoseconds())/1000, "us")
}
