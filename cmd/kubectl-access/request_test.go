package main

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/api/v1alpha1"
	"github.com/admitkit/admitkit/testing/controlplane"
)

// anotherTemplate makes a template of Deployment/web for the time of a test.
func anotherTemplate(t *testing.T, name string, change func(*v1alpha1.AccessConfig)) {
	t.Helper()
	made := &v1alpha1.ExecAccessTemplate{}
	if err := admin.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "web"}, made); err != nil {
		t.Fatal(err)
	}
	made.ObjectMeta = metav1.ObjectMeta{Namespace: namespace, Name: name}
	change(&made.Spec.AccessConfig)
	if err := admin.Create(t.Context(), made); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := admin.Delete(context.WithoutCancel(t.Context()), made); err != nil {
			t.Error(err)
		}
	})
}

func TestARefusalIsSaidOnceAndInPlainWords(t *testing.T) {
	anotherTemplate(t, "web-with-reason", func(config *v1alpha1.AccessConfig) { config.RequireReason, config.AllowedUsers = true, nil })
	for sentence, c := range map[string]struct {
		user       *controlplane.User
		args, want string
	}{
		"by the template":   {mallory, "exec web", `refused: user "mallory" is not allowed by template "web", which allows the groups "devs" and the users "carol", "dave", "erin"`},
		"without any users": {mallory, "exec web-with-reason -r x", `refused: user "mallory" is not allowed by template "web-with-reason", which allows the groups "devs" and the users (none)`},
		"without a reason":  {alice, "exec web-with-reason", `refused: template "web-with-reason" requires --reason`},
		"by the schema": {
			alice, "exec web --name " + strings.Repeat("a", 53),
			`refused: the name must have at most 52 characters: those of Role and RoleBinding are made of it`,
		},
		"by RBAC": {
			nil, "exec web --as nobody",
			`you have no right to do this: User "nobody" cannot create resource "execaccessrequests" in API group "admitkit.dev" in the namespace "shop"`,
		},
	} {
		t.Run(sentence, func(t *testing.T) {
			o := kubectlAccess(t, c.user, append(strings.Fields(c.args), "-n", namespace)...).expect(t, codeRefused)
			if want := "error: " + c.want + "\n"; o.stderr != want {
				t.Errorf("standard error is\n%s, want\n%s", o.stderr, want)
			}
		})
	}
	o := kubectlAccess(t, alice, "pod", "privileged", "-n", namespace, "--name", "once-said").expect(t, codeRefused)
	if strings.Count(o.stderr, "PodRefused") != 1 {
		t.Errorf("the refusal is not said once:\n%s", o.stderr)
	}
}

// A kubectl of the tests' own shows what the real one would get.
func TestTheShellConnectsAsTheCommandLineSays(t *testing.T) {
	bin := t.TempDir()
	if err := os.WriteFile(filepath.Join(bin, "kubectl"), []byte("#!/bin/sh\nprintf '%s\\n' \"$@\"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	proxy, used := connectProxy(t)
	config, err := clientcmd.LoadFromFile(cluster.Admin().KubeConfig)
	if err != nil {
		t.Fatal(err)
	}
	flags := []string{
		"--as=alice", "--as-uid=42", "--as-group=devs", "--as-group=system:authenticated", "--as-user-extra=team=a", "--as-user-extra=team=b",
		"--request-timeout=2m", "--proxy-url=" + proxy, "--context=" + config.CurrentContext, "--kubeconfig=" + cluster.Admin().KubeConfig,
		"--disable-compression=true", "--cache-dir=" + t.TempDir(),
	}
	command := cluster.Kubectl(t.Context(), nil, slices.Concat([]string{"access", "exec", "web", "-n", namespace, "--shell"}, flags)...)
	command.Env = append(command.Env, "PATH="+bin+string(os.PathListSeparator)+os.Getenv("PATH"))
	got := strings.Split(ran(t, command, command.Run).expect(t, 0).stdout, "\n")
	for _, flag := range flags {
		if !slices.Contains(got, flag) {
			t.Errorf("kubectl does not get %s, but %q", flag, got)
		}
	}
	if slices.ContainsFunc(got, func(arg string) bool { return strings.HasPrefix(arg, "--tls-server-name") }) {
		t.Errorf("kubectl gets flags that nobody gave: %q", got)
	}
	if used.Load() == 0 {
		t.Error("the request itself does not go through the proxy")
	}
}

// connectProxy runs a proxy, and counts its connections.
func connectProxy(t *testing.T) (url string, used *atomic.Int32) {
	t.Helper()
	used = &atomic.Int32{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		used.Add(1)
		to, err := net.Dial("tcp", r.Host)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		defer func() { _ = to.Close() }()
		w.WriteHeader(http.StatusOK)
		from, buffered, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		go func() { _, _ = io.Copy(to, buffered) }()
		_, _ = io.Copy(from, to)
		_ = from.Close()
	}))
	t.Cleanup(server.Close)
	return server.URL, used
}

func TestResultsArePrintedInTheFormatsOfKubectl(t *testing.T) {
	name := requested(t, "-d", "10m")
	for format, want := range map[string]string{
		`jsonpath={.items[?(@.metadata.name=="` + name + `")].spec.duration}`:                                    "10m",
		`jsonpath-as-json={.items[?(@.metadata.name=="` + name + `")].metadata.name}`:                            `"` + name + `"`,
		`go-template={{range .items}}{{.kind}}/{{.metadata.name}} {{end}}`:                                       "ExecAccessRequest/" + name + " ",
		`custom-columns=REQUEST:.metadata.name,WHO:.spec.requester.username,KIND:{.kind},NONE:.metadata.nothing`: name + `\s+alice\s+ExecAccessRequest\s+<none>\n`,
		"kyaml": `"` + name + `"`,
	} {
		t.Run(format, func(t *testing.T) {
			if o := kubectlAccess(t, alice, "list", "-n", namespace, "-o", format).expect(t, 0); !regexp.MustCompile(want).MatchString(o.stdout) {
				t.Errorf("nothing of %s in:\n%s", want, o.stdout)
			}
		})
	}
	kubectlAccess(t, alice, "list", "-n", namespace, "--template", "{{len .items}}").expect(t, 0)
	kubectlAccess(t, alice, "templates", "-n", namespace, "-o", "custom-columns=NAME:.metadata.name,MAX:.spec.accessConfig.maxDuration").expect(t, 0, "NAME", "MAX", "debug", "2h")
	if o := kubectlAccess(t, alice, "exec", "web", "-n", namespace, "-o", "jsonpath={.status.podName}").expect(t, 0); !strings.HasPrefix(o.stdout, "web-") {
		t.Errorf("the name of the Pod is %q", o.stdout)
	}
	var list struct {
		Items []struct{ Metadata map[string]json.RawMessage }
	}
	for flag, want := range map[string]bool{"--show-managed-fields=false": false, "--show-managed-fields": true} {
		if err := json.Unmarshal([]byte(kubectlAccess(t, alice, "list", "-n", namespace, "-o", "json", flag).stdout), &list); err != nil {
			t.Fatal(err)
		}
		if _, shown := list.Items[0].Metadata["managedFields"]; shown != want {
			t.Errorf("with %s managedFields are shown: %t, want %t", flag, shown, want)
		}
	}
}
