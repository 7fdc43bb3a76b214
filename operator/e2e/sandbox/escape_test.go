//go:build e2e && linux

package sandbox_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

// result is a line that the program untrusted prints for each way out.
type result struct {
	Name    string
	Escaped bool
	Saw     string
}

// whileDead is the way whose record is written after the others'.
const whileDead = "while the proxy is dead"

// onRecord are the ways whose refusal is an AuditEvent, with what that says. The others end in packets that a network policy
// or the kernel drops, in what a container may not do, or in what the proxy does not read, of which there is no record of ours.
var onRecord = map[string]string{
	"a name that is not listed":                   `"other.example.com", port 443`,
	"an address without a name":                   `"(no name)", port 443`,
	"a Host that is not the name in TLS":          `the Host of a request is \"host.other.example.com\"`,
	"a name in TLS that is not listed":            `"front.other.example.com", port 443`,
	"a second request for another Host":           `the Host of a request is \"second.other.example.com\"`,
	"a URL for another Host":                      `the Host of a request is \"url.other.example.com\"`,
	"HTTP/2 with another authority":               `the Host of a request is \"h2.other.example.com\"`,
	"a WebSocket to another Host":                 `the Host of a request is \"ws.other.example.com\"`,
	"HTTP to a Host that is not listed":           `"other.example.com", port 80`,
	"HTTP to a Host that is listed for TLS alone": `"api.example.com", port 80`,
	"a listed name that leads to the node":        `"inside.example.com", port 443`,
	"the API server by its Service, with a token": `"kubernetes", port 443`,
	"the metadata address":                        `"169.254.169.254", port 80`,
	"the proxy itself, by CONNECT":                `port 80, were refused`,
	whileDead:                                     `"dead.other.example.com", port 443`,
}

// escapes has a run try every way out, and somebody who may do everything in its namespace help it.
func (i *installation) escapes(t *testing.T) {
	env := i.outside(t)
	plain := i.control(t, env)
	i.apply(t, i.template("escape", "escape", env)+runOf("escape", "escape", ""))
	pod := i.podOf(t, "escape")
	tried := map[string]result{}
	lines := follow(t, pod, "sandbox")
	for line := range lines {
		switch {
		case line == "OPEN":
			maps.Copy(tried, i.helpers(t, pod))
			must(t, "kubectl", "delete", "brokerpolicy", "late", "--namespace", agents)
		case line == "KILL":
			for name, text := range onRecord { // what the proxy has not yet reported would be lost
				if name != whileDead {
					awaitRecord(t, "escape", "egress-refused", text)
				}
			}
			killProxyOf(t, pod)
		case strings.HasPrefix(line, "{"):
			r := parse(t, line)
			tried[r.Name] = r
		}
		if line == "TRIED" {
			break
		}
	}
	run := ended(t, "escape") // its proxy has then reported
	if run.Status.Phase != v1alpha1.SandboxSucceeded {
		t.Errorf("the run is %s: %s", run.Status.Phase, run.Status.Output)
	}
	free := map[string]result{}
	for line := range follow(t, plain, "main") {
		if strings.HasPrefix(line, "{") {
			r := parse(t, line)
			free[r.Name] = r
		}
		if line == "TRIED" {
			break
		}
	}
	maps.Copy(free, i.helpers(t, plain))
	compare(t, tried, free)
}

// compare counts the ways that led out. In a plain Pod each must.
func compare(t *testing.T, tried, free map[string]result) {
	t.Helper()
	escaped, records := 0, 0
	for _, name := range slices.Sorted(maps.Keys(free)) {
		if !free[name].Escaped {
			t.Errorf("%s: nothing is there: a plain Pod saw %q", name, free[name].Saw)
		}
		r, was := tried[name]
		if !was {
			t.Errorf("%s: the run did not try it", name)
			continue
		}
		if r.Escaped {
			escaped++
			t.Errorf("%s: the run got out: %q", name, r.Saw)
		}
		how := "no record"
		if text := onRecord[name]; text != "" {
			records++
			if how = "on record"; !recorded(t, "escape", "egress-refused", text) {
				t.Errorf("%s: it is not on record", name)
			}
		}
		t.Logf("%-48s %-9s %s", name, how, r.Saw)
	}
	if len(tried) != len(free) || len(tried) < 25 {
		t.Errorf("the run tried %d ways, a plain Pod %d", len(tried), len(free))
	}
	testkit.Figure("sandbox.escapes_tried", float64(len(tried)), "ways")
	testkit.Figure("sandbox.escaped", float64(escaped), "ways")
	testkit.Figure("sandbox.escapes_on_record", float64(records), "ways")
}

func parse(t *testing.T, line string) (r result) {
	t.Helper()
	if err := json.Unmarshal([]byte(line), &r); err != nil {
		t.Fatalf("%s: %v", line, err)
	}
	return r
}

// outside makes what a run may not reach, and returns what the program must know of it.
func (i *installation) outside(t *testing.T) map[string]string {
	t.Helper()
	labels := map[string]string{"app": "neighbour"}
	neighbour := i.plainPod(elsewhere, "neighbour", labels, "hello")
	service := serviceOf(neighbour, labels, "", corev1.ServicePort{Port: 8081})
	thief := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: elsewhere, Name: "thief"}}
	testkit.Create(t, admin, neighbour, service, thief, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "e2e-thief", Labels: map[string]string{madeHere: ""}}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: elsewhere, Name: "thief"}, {Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: mallory}},
	})
	token, err := clientset.CoreV1().ServiceAccounts(elsewhere).CreateToken(t.Context(), "thief", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	must(t, "kubectl", "wait", "--for=condition=Ready", "pod/neighbour", "--namespace", elsewhere, "--timeout=1m")
	if err := admin.Get(t.Context(), client.ObjectKeyFromObject(neighbour), neighbour); err != nil {
		t.Fatal(err)
	}
	if len(neighbour.Status.PodIPs) != 2 {
		t.Fatalf("a Pod has %v, want an address of IPv4 and one of IPv6", neighbour.Status.PodIPs)
	}
	return map[string]string{
		"PEER": neighbour.Status.PodIPs[0].IP, "PEER6": neighbour.Status.PodIPs[1].IP, "PEER_SERVICE": service.Spec.ClusterIP, "NODE": i.node, "STOLEN": token.Status.Token,
	}
}

// control starts the same program in a Pod that nothing holds: it is root and has what a run has not, beside a process
// that is called as the proxy is, and lets everything through.
func (i *installation) control(t *testing.T, env map[string]string) *corev1.Pod {
	t.Helper()
	ca, err := os.ReadFile(filepath.Join(i.folder, "ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	files := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: elsewhere, Name: "files"}, Data: map[string][]byte{"key": []byte("x"), "ca.crt": ca}}
	pod := i.plainPod(elsewhere, "plain", nil, "escape")
	pod.Spec.ShareProcessNamespace, pod.Spec.RestartPolicy = new(true), corev1.RestartPolicyNever
	pod.Spec.Volumes = []corev1.Volume{{Name: "files", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{
		SecretName: "files", Items: []corev1.KeyToPath{{Key: "key", Path: "ca/tls.key"}, {Key: "key", Path: "token/token"}, {Key: "ca.crt", Path: "ca.crt"}},
	}}}}
	main := &pod.Spec.Containers[0]
	main.SecurityContext.Capabilities = &corev1.Capabilities{Add: []corev1.Capability{"NET_ADMIN", "SYS_PTRACE"}}
	main.VolumeMounts = []corev1.VolumeMount{{Name: "files", MountPath: "/run/admitkit"}}
	main.Env = []corev1.EnvVar{{Name: "SSL_CERT_FILE", Value: "/run/admitkit/ca.crt"}, {Name: "PATIENCE", Value: "2s"}, {Name: "DIAL_TIMEOUT", Value: "1m"}}
	for key, value := range env {
		main.Env = append(main.Env, corev1.EnvVar{Name: key, Value: value})
	}
	pod.Spec.InitContainers = []corev1.Container{{
		Name: "proxy", Image: i.untrusted, Args: []string{"proxy", "egress-proxy"}, RestartPolicy: new(corev1.ContainerRestartPolicyAlways),
	}}
	testkit.Create(t, admin, files, pod)
	return pod
}

// podOf waits for the Pod of a run.
func (i *installation) podOf(t *testing.T, name string) *corev1.Pod {
	t.Helper()
	pod := &corev1.Pod{}
	testkit.Succeeds(t, patience, "the Pod of run "+name+" works", func(ctx context.Context) error {
		run := &v1alpha1.SandboxRun{}
		if err := admin.Get(ctx, client.ObjectKey{Namespace: agents, Name: name}, run); err != nil {
			return err
		}
		if run.Status.PodName == "" {
			return fmt.Errorf("it is %s: %v", run.Status.Phase, run.Status.Conditions)
		}
		return admin.Get(ctx, client.ObjectKey{Namespace: agents, Name: run.Status.PodName}, pod)
	})
	return pod
}

// follow returns the lines of a container's log, as they come.
func follow(t *testing.T, pod *corev1.Pod, container string) func(yield func(string) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	t.Cleanup(cancel)
	var lines *bufio.Scanner
	testkit.Succeeds(t, patience, "Pod "+pod.Name+" has a log", func(context.Context) error {
		stream, err := clientset.CoreV1().Pods(pod.Namespace).GetLogs(pod.Name, &corev1.PodLogOptions{Container: container, Follow: true}).Stream(ctx)
		if err == nil {
			lines = bufio.NewScanner(stream)
			t.Cleanup(func() { _ = stream.Close() })
		}
		return err
	})
	return func(yield func(string) bool) {
		for lines.Scan() {
			if !yield(lines.Text()) {
				return
			}
		}
		t.Errorf("the log of Pod %s ends before all was tried: %v", pod.Name, lines.Err())
	}
}

// killProxyOf kills the proxy of a run, as its node might, for want of memory.
func killProxyOf(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if err != nil {
			t.Fatal(err)
		}
		cgroup, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
		if text, err := os.ReadFile(file); err == nil && strings.HasPrefix(string(text), "/sandbox\x00egress-proxy") && strings.Contains(string(cgroup), string(pod.UID)) {
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				t.Error(err)
			}
			return
		}
	}
	t.Error("no process is the proxy of the run")
}

// mallory may do everything, and admission alone keeps them from helping a run.
const mallory = "mallory"

// helpers are the ways by which somebody with every right could let a Pod out: each must be refused for the Pod of a run,
// and none for another.
func (i *installation) helpers(t *testing.T, pod *corev1.Pod) map[string]result {
	t.Helper()
	as := rest.CopyConfig(config)
	as.Impersonate.UserName = mallory
	them, err := kubernetes.NewForConfig(as)
	if err != nil {
		t.Fatal(err)
	}
	ctx, pods, policies := t.Context(), them.CoreV1().Pods(pod.Namespace), them.NetworkingV1().NetworkPolicies(pod.Namespace)
	open := networkingv1.NetworkPolicySpec{PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeEgress}, Egress: []networkingv1.NetworkPolicyEgressRule{{}}}
	tries := map[string]func() error{
		"a network policy of one's own": func() error {
			_, err := policies.Create(ctx, &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "open"}, Spec: open}, metav1.CreateOptions{})
			return err
		},
		"another label": func() error {
			_, err := pods.Patch(ctx, pod.Name, types.MergePatchType, []byte(`{"metadata":{"labels":{"admitkit.dev/egress":"another"}}}`), metav1.PatchOptions{})
			return err
		},
		"another container, as the user of the proxy": func() error {
			now, err := pods.Get(ctx, pod.Name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			now.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{
				Name: "helper", Image: i.untrusted, Command: []string{"/untrusted", "dial"}, SecurityContext: &corev1.SecurityContext{RunAsUser: new(int64(1337))},
			}}}
			_, err = pods.UpdateEphemeralContainers(ctx, pod.Name, now, metav1.UpdateOptions{})
			return err
		},
		"another image": func() error {
			_, err := pods.Patch(ctx, pod.Name, types.StrategicMergePatchType, []byte(fmt.Sprintf(`{"spec":{"initContainers":[{"name":%q,"image":"example.com/another"}]}}`, pod.Spec.InitContainers[len(pod.Spec.InitContainers)-1].Name)), metav1.PatchOptions{})
			return err
		},
		"a Pod that claims to be of the run": func() error {
			forged := i.plainPod(pod.Namespace, "forged", map[string]string{"admitkit.dev/run": "escape"}, "hello")
			if pod.Namespace != agents {
				delete(forged.Labels, "admitkit.dev/run")
			}
			_, err := pods.Create(ctx, forged, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			return err
		},
		"the policy of the run, deleted": func() error { return i.withPolicy(t, pod, policies.Delete) },
	}
	results := map[string]result{}
	for name, do := range tries {
		err := do()
		r := result{Name: name, Escaped: err == nil, Saw: fmt.Sprint(err)}
		if err != nil && (!apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "admission webhook")) {
			t.Errorf("%s: %v, and not by admission", name, err)
		}
		results[name] = r
	}
	return results
}

// withPolicy deletes the policy of a run, or, where there is no run, another.
func (i *installation) withPolicy(t *testing.T, pod *corev1.Pod, remove func(context.Context, string, metav1.DeleteOptions) error) error {
	t.Helper()
	name := "sandbox-escape"
	if pod.Namespace != agents {
		name = "another"
		testkit.Create(t, admin, &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: name}, Spec: networkingv1.NetworkPolicySpec{PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"no": "pod"}}}})
	}
	return remove(t.Context(), name, metav1.DeleteOptions{})
}
