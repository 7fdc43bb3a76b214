package examples_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/internal/freeport"
	"github.com/admitkit/admitkit/internal/testkit"
)

func (e *example) newPod(name string, annotations map[string]string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: e.namespace, Name: name, Annotations: annotations},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "registry.example.com/web:1"}}},
	}
}

func expect[T any](t *testing.T, what string, got, want T) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

func ordinalAddsTheOrdinal(t *testing.T, e *example) {
	e.start(t)
	expect(t, "env of db-2", e.pod(t, "pod.yaml").Spec.Containers[0].Env, []corev1.EnvVar{{Name: "POD_ORDINAL", Value: "2"}})
	other := e.newPod("db", nil)
	e.create(t, other)
	expect(t, "env of db", other.Spec.Containers[0].Env, nil)
}

// The test of the example itself says more.
func tenantMarksWhatItsNamespaceHas(t *testing.T, e *example) {
	namespace, err := e.client.CoreV1().Namespaces().Get(t.Context(), e.namespace, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	namespace.Labels["example.admitkit.dev/tenant"] = "shop"
	if _, err := e.client.CoreV1().Namespaces().Update(t.Context(), namespace, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	e.start(t)
	pod := e.newPod("web", nil)
	e.create(t, pod)
	expect(t, "tenant of web", pod.Labels["example.admitkit.dev/tenant"], "shop")
}

func persiMountsTheVolumesOfBindings(t *testing.T, e *example) {
	e.start(t)
	pod := e.pod(t, "pod.yaml")
	app, proxy := pod.Spec.Containers[0], pod.Spec.Containers[1]
	expect(t, "mounts", app.VolumeMounts, []corev1.VolumeMount{
		{Name: "b1f8a4c2", MountPath: "/var/vcap/data/pictures"}, {Name: "c07e55d1", MountPath: "/usr/share/fonts", ReadOnly: true},
	})
	expect(t, "mounts without bindings", proxy.VolumeMounts, nil)
	var claims []string
	for _, volume := range pod.Spec.Volumes {
		claims = append(claims, volume.PersistentVolumeClaim.ClaimName)
	}
	expect(t, "claims", claims, []string{"b1f8a4c2", "c07e55d1"})

	bound := func(name, services string) *corev1.Pod {
		pod := e.newPod(name, nil)
		pod.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "VCAP_SERVICES", Value: services}}
		return pod
	}
	const entry = `{"nfs": [{"name": "b", "credentials": {"volume_id": %q}, "volume_mounts": [{"container_dir": %q, "mode": %q}]}]}`
	for services, reason := range map[string]string{
		"":                                  "container web: VCAP_SERVICES: must be the JSON of service bindings: unexpected end",
		`{"nfs": [`:                         "container web: VCAP_SERVICES: must be the JSON",
		`{"nfs": {}}`:                       "must be the JSON",
		fmt.Sprintf(entry, "", "/a", "r"):   `binding "b" of nfs: volume_id ""`,
		fmt.Sprintf(entry, "a", "a", "r"):   `binding "b" of nfs: container_dir "a": must be absolute`,
		fmt.Sprintf(entry, "a", "/../", ""): "and not the root",
		fmt.Sprintf(entry, "a", "/a", "ro"): `mode "ro": must be r or rw`,
	} {
		denies(t, e.kube.Create(t.Context(), bound("bad", services)), reason)
	}
	byReference := bound("bad", "")
	byReference.Spec.Containers[0].Env[0].ValueFrom = &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"}}
	denies(t, e.kube.Create(t.Context(), byReference), "must be a value")

	// What the Pod has for itself is not replaced silently.
	taken := bound("bad", fmt.Sprintf(entry, "a", "/a", "rw"))
	taken.Spec.Volumes = []corev1.Volume{{Name: "a", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
	denies(t, e.kube.Create(t.Context(), taken), "Duplicate value")
	e.create(t, bound("twice", `{"a": [{"credentials": {"volume_id": "one"}, "volume_mounts": [{"container_dir": "/a"}, {"container_dir": "/b"}]}], "b": null}`))
	e.create(t, bound("none", `{}`))
}

func sshMakesAndDeletesKeys(t *testing.T, e *example) {
	secrets := e.client.CoreV1().Secrets(e.namespace)
	keys := func() []corev1.Secret {
		list, err := secrets.List(t.Context(), metav1.ListOptions{LabelSelector: "example.com/ssh-key"})
		if err != nil {
			t.Fatal(err)
		}
		return list.Items
	}
	var survivor *corev1.Pod
	t.Run("while it runs", func(t *testing.T) {
		metrics := fmt.Sprintf("127.0.0.1:%d", freeport.For(t))
		e.start(t, "--patience=3s", "--metrics-address="+metrics)
		if err := e.kube.Create(t.Context(), e.samples(t, "pod.yaml")[0], client.DryRunAll); err != nil {
			t.Fatal(err)
		}
		expect(t, "keys after a dry run", len(keys()), 0)

		// A webhook that comes later, by its configuration's name, changes the Pod, so that the first is called again.
		e.startAs(t, "sidecar", freeport.For(t), []string{"system:masters"}, "start", "--unregister-on-stop", "--fingerprint=with-sidecar", "--leaf-secret-name=")
		before := answered(t, metrics)
		pod := e.pod(t, "pod.yaml")
		expect(t, "init containers of the sidecar", len(pod.Spec.InitContainers), 1)
		expect(t, "calls for one Pod", answered(t, metrics)-before, 2)
		key := keys()
		expect(t, "keys of one Pod", len(key), 1)
		if public := string(key[0].Data["ssh-publickey"]); !strings.HasPrefix(public, "ecdsa-sha2-nistp256 AAAA") {
			t.Errorf("the public key is %q", public)
		}
		var from []string
		for _, env := range pod.Spec.Containers[0].Env {
			from = append(from, env.Name+"="+env.ValueFrom.SecretKeyRef.Name+"/"+env.ValueFrom.SecretKeyRef.Key)
		}
		expect(t, "environment", from, []string{"EIRINI_SSH_KEY=" + key[0].Name + "/ssh-publickey", "EIRINI_HOST_KEY=" + key[0].Name + "/ssh-privatekey"})

		// A Pod that names somebody else's Secret must not get it deleted.
		e.create(t, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: e.namespace, Name: "foreign"}})
		thief := e.newPod("thief", nil)
		thief.Labels = map[string]string{"example.com/ssh-key": "foreign"}
		e.create(t, thief)

		refused := e.samples(t, "pod.yaml")[0] // for its name, which comes after the admission
		denies(t, e.kube.Create(t.Context(), refused), "already exists")
		expect(t, "keys after a Pod that was refused", len(keys()), 2)

		survivor = e.newPod("survivor", nil)
		survivor.Labels = pod.Labels
		delete(survivor.Labels, "example.com/ssh-key")
		e.create(t, survivor)
		remove(t, e, thief, pod)
		testkit.Eventually(t, "only the key of the Pod that is there is left", func(context.Context) bool {
			left := keys()
			return len(left) == 1 && left[0].Name == survivor.Labels["example.com/ssh-key"]
		})
		if _, err := secrets.Get(t.Context(), "foreign", metav1.GetOptions{}); err != nil {
			t.Errorf("somebody else's Secret: %v", err)
		}
	})
	t.Run("while it was down", func(t *testing.T) {
		expect(t, "keys while it is down", len(keys()), 1)
		remove(t, e, survivor)
		e.start(t, "--patience=3s")
		testkit.Eventually(t, "the key of a Pod that went meanwhile is deleted", func(context.Context) bool { return len(keys()) == 0 })
	})
}

func remove(t *testing.T, e *example, pods ...*corev1.Pod) {
	t.Helper()
	for _, pod := range pods {
		if err := e.kube.Delete(t.Context(), pod, client.GracePeriodSeconds(0)); err != nil {
			t.Fatal(err)
		}
	}
}

var answers = regexp.MustCompile(`(?m)^admitkit_admission_requests_total\{[^}]*webhook="mutate/ssh"\} (\d+)$`)

// answered returns how many admissions the extension ssh has answered.
func answered(t *testing.T, metrics string) (n int) {
	t.Helper()
	response, err := http.Get("http://" + metrics + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	for _, match := range answers.FindAllStringSubmatch(string(text), -1) {
		calls, err := strconv.Atoi(match[1])
		if err != nil {
			t.Fatal(err)
		}
		n += calls
	}
	return n
}

func sidecarAddsAProxy(t *testing.T, e *example) {
	e.start(t, "--proxy-secret=certificate")
	pod := e.pod(t, "pod.yaml")
	proxy := pod.Spec.InitContainers[0]
	expect(t, "restart policy", *proxy.RestartPolicy, corev1.ContainerRestartPolicyAlways)
	expect(t, "mount", proxy.VolumeMounts[0].Name, "tls-proxy")
	expect(t, "Secret", pod.Spec.Volumes[0].Secret.SecretName, "certificate")
	other := e.newPod("other", nil)
	e.create(t, other)
	expect(t, "init containers without the label", other.Spec.InitContainers, nil)
}

func scannerScansEveryImage(t *testing.T, e *example) {
	e.start(t)
	pod := e.pod(t, "pod.yaml")
	expect(t, "first container", pod.Spec.InitContainers[0].Name, "scan-images")
	expect(t, "arguments", pod.Spec.InitContainers[0].Args, []string{"scan", "--", "registry.example.com/web:1", "registry.example.com/cache:1"})
}

func dnsSetsOptions(t *testing.T, e *example) {
	e.start(t, "--option=ndots=1,timeout=3")
	var options []string
	for _, option := range e.pod(t, "pod.yaml").Spec.DNSConfig.Options {
		text := option.Name
		if option.Value != nil {
			text += "=" + *option.Value
		}
		options = append(options, text)
	}
	expect(t, "options", options, []string{"edns0", "ndots=1", "timeout=3"})
}

func wrapperWrapsCommands(t *testing.T, e *example) {
	e.start(t, "--script=nice -n 5 true")
	pod := e.pod(t, "pod.yaml")
	expect(t, "command", pod.Spec.Containers[0].Command, []string{"/bin/sh", "-c", `nice -n 5 true; exec "$@"`, "wrapped", "serve"})
	expect(t, "args", pod.Spec.Containers[0].Args, []string{"--port=80"})
	expect(t, "command of an image", pod.Spec.Containers[1].Command, nil)
}

func labelsAreRequired(t *testing.T, e *example) {
	e.start(t)
	workloads := e.samples(t, "workloads.yaml")
	e.create(t, workloads[0])
	denies(t, e.kube.Create(t.Context(), workloads[1]), "missing team")
}

func digestDeniesTags(t *testing.T, e *example) {
	e.start(t)
	pods := e.samples(t, "pods.yaml")
	e.create(t, pods[0])
	denies(t, e.kube.Create(t.Context(), pods[1]), `spec.containers[0]: image "registry.example.com/web:1" is not pinned`)
	for digest, pinned := range map[string]bool{
		"sha512:" + strings.Repeat("ab", 64):           true,
		"blake3:" + strings.Repeat("0", 64):            true,
		"multihash+base58:" + strings.Repeat("Qm", 23): true,
		"sha256:" + strings.Repeat("ab", 31):           false,
		"sha256:" + strings.Repeat("AB", 32):           false,
		"latest":                                       false,
	} {
		pod := e.newPod("image", nil)
		pod.Spec.Containers[0].Image = "registry.example.com/web@" + digest
		if err := e.kube.Create(t.Context(), pod, client.DryRunAll); (err == nil) != pinned {
			t.Errorf("%s: %v", digest, err)
		}
	}
	// kubectl debug.
	pod := pods[0].(*corev1.Pod)
	pod.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "debug", Image: "busybox"}}}
	_, err := e.client.CoreV1().Pods(e.namespace).UpdateEphemeralContainers(t.Context(), pod.Name, pod, metav1.UpdateOptions{})
	denies(t, err, `spec.ephemeralContainers[0]: image "busybox" is not pinned`)
}

func noexecDeniesTerminals(t *testing.T, e *example) {
	e.start(t)
	pod := e.newPod("web", nil)
	e.create(t, pod)
	connect := func(options *corev1.PodExecOptions) error {
		return e.client.CoreV1().RESTClient().Post().Namespace(e.namespace).Resource("pods").Name(pod.Name).SubResource("exec").
			VersionedParams(options, clientgoscheme.ParameterCodec).Do(t.Context()).Error()
	}
	denies(t, connect(&corev1.PodExecOptions{Command: []string{"sh"}, Stdin: true, TTY: true}), "Pod web: no terminals")
	// The Pod has no node, so what is admitted fails later.
	denies(t, connect(&corev1.PodExecOptions{Command: []string{"id"}, Stdout: true}), "does not have a host assigned")
}

func deploymentSpreadsPods(t *testing.T, e *example) {
	e.start(t)
	deployment := e.samples(t, "deployment.yaml")[0].(*appsv1.Deployment)
	e.create(t, deployment)
	constraints := deployment.Spec.Template.Spec.TopologySpreadConstraints
	if len(constraints) != 1 || constraints[0].TopologyKey != corev1.LabelTopologyZone || constraints[0].LabelSelector.MatchLabels["app"] != "web" {
		t.Errorf("constraints: %v", constraints)
	}
}

func backupDeniesUnknownTimeZones(t *testing.T, e *example) {
	e.start(t)
	backups := e.samples(t, "backups.yaml")
	e.create(t, backups[0])
	denies(t, e.kube.Create(t.Context(), backups[1]), "Moon/Tycho")
	backup := backups[0].(*unstructured.Unstructured)
	if err := unstructured.SetNestedField(backup.Object, "other", "spec", "source"); err != nil {
		t.Fatal(err)
	}
	denies(t, e.kube.Update(t.Context(), backup), "spec.source: cannot change")
}

func serviceKeepsAServiceForEachApp(t *testing.T, e *example) {
	foreign := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: e.namespace, Name: "db", Labels: map[string]string{"app.kubernetes.io/name": "db"}},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 5432}}},
	}
	e.create(t, foreign)
	first := e.pod(t, "pod.yaml")
	e.start(t)
	ports := func() (list []int32) {
		service, err := e.client.CoreV1().Services(e.namespace).Get(t.Context(), "web", metav1.GetOptions{})
		if client.IgnoreNotFound(err) != nil {
			t.Fatal(err)
		}
		for _, port := range service.Spec.Ports {
			list = append(list, port.Port)
		}
		return list
	}
	becomes := func(want ...int32) {
		t.Helper()
		testkit.Eventually(t, fmt.Sprintf("the Service has the ports %v", want), func(context.Context) bool { return reflect.DeepEqual(ports(), want) })
	}
	becomes(80)
	second := e.newPod("web-2", nil)
	second.Labels = map[string]string{"app.kubernetes.io/name": "web"}
	second.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 8443}}
	e.create(t, second)
	becomes(80, 8443)
	database := e.newPod("db-0", nil)
	database.Labels = map[string]string{"app.kubernetes.io/name": "db"}
	database.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 1}}
	e.create(t, database)
	for _, pod := range []*corev1.Pod{first, second} {
		if err := e.kube.Delete(t.Context(), pod, client.GracePeriodSeconds(0)); err != nil {
			t.Fatal(err)
		}
	}
	becomes()
	kept, err := e.client.CoreV1().Services(e.namespace).Get(t.Context(), "db", metav1.GetOptions{})
	if err != nil || kept.Spec.Ports[0].Port != 5432 {
		t.Errorf("somebody else's Service: %v, %v", kept.Spec.Ports, err)
	}
}

// logstreamPrintsLogs plays the kubelet: the API server asks it for the logs.
func logstreamPrintsLogs(t *testing.T, e *example) {
	kubelet := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// /containerLogs/NAMESPACE/POD/CONTAINER
		parts := strings.Split(r.URL.Path, "/")
		_, _ = fmt.Fprintf(w, "I am %s\n", parts[3])
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	}))
	t.Cleanup(kubelet.Close)
	t.Cleanup(kubelet.CloseClientConnections)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "logs"}}
	e.create(t, node)
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "127.0.0.1"}}
	node.Status.DaemonEndpoints.KubeletEndpoint.Port = int32(kubelet.Listener.Addr().(*net.TCPAddr).Port)
	if err := e.kube.Status().Update(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	run := func(pod *corev1.Pod) {
		t.Helper()
		pod.Spec.NodeName = node.Name
		e.create(t, pod)
		pod.Status.Phase = corev1.PodRunning
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{
			Name: "web", ContainerID: "test://" + pod.Name, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}},
		}}
		if err := e.kube.Status().Update(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
	}
	run(e.samples(t, "pod.yaml")[0].(*corev1.Pod))
	log := e.start(t)
	testkit.Eventually(t, "the log of a Pod that was there", func(context.Context) bool { return log.HasLine("web/web: I am web") })
	run(e.newPod("new", nil))
	testkit.Eventually(t, "the log of a Pod that came", func(context.Context) bool { return log.HasLine("new/web: I am new") })
}

func splitTakesTwoPrograms(t *testing.T, e *example) {
	port := freeport.For(t)
	e.startAs(t, "registrar", port, []string{"split-registrar"}, "register", "--stay")
	e.startAs(t, "server", port, []string{"split"}, "serve")
	var pod *corev1.Pod
	testkit.Eventually(t, "a Pod gets no token", func(ctx context.Context) bool {
		pod = e.samples(t, "pod.yaml")[0].(*corev1.Pod)
		err := e.kube.Create(ctx, pod, client.DryRunAll)
		return err == nil && pod.Spec.AutomountServiceAccountToken != nil
	})
	for _, forbidden := range []authorizationv1.ResourceAttributes{
		{Group: "admissionregistration.k8s.io", Resource: "mutatingwebhookconfigurations", Verb: "patch", Name: "split." + e.system},
		{Resource: "secrets", Verb: "get", Namespace: e.system, Name: "split-setupcertificate"},
	} {
		review, err := e.client.AuthorizationV1().SubjectAccessReviews().Create(t.Context(), &authorizationv1.SubjectAccessReview{
			Spec: authorizationv1.SubjectAccessReviewSpec{User: "server", Groups: []string{"registrar"}, ResourceAttributes: &forbidden},
		}, metav1.CreateOptions{})
		if err != nil || review.Status.Allowed {
			t.Errorf("the server may %s %s: %v", forbidden.Verb, forbidden.Resource, err)
		}
	}
}

func addenvAddsAVariable(t *testing.T, e *example) {
	e.start(t, "--name=COLOR", "--value=blue")
	pod := e.newPod("web", nil)
	pod.Spec.InitContainers = []corev1.Container{{Name: "init", Image: "registry.example.com/init:1", Env: []corev1.EnvVar{{Name: "COLOR", Value: "red"}}}}
	e.create(t, pod)
	expect(t, "env", pod.Spec.Containers[0].Env, []corev1.EnvVar{{Name: "COLOR", Value: "blue"}})
	expect(t, "env that was set", pod.Spec.InitContainers[0].Env[0].Value, "red")
}

func annotatorCountsContainers(t *testing.T, e *example) {
	pod := e.pod(t, "pod.yaml")
	e.start(t)
	testkit.Eventually(t, "the Pod that was there is annotated", func(ctx context.Context) bool {
		err := e.kube.Get(ctx, client.ObjectKeyFromObject(pod), pod)
		return err == nil && pod.Annotations["example.admitkit.dev/containers"] == "1"
	})
}

func podloggerLogsEvents(t *testing.T, e *example) {
	e.pod(t, "pod.yaml")
	log := e.start(t)
	testkit.Eventually(t, "the Pod that was there is logged", func(context.Context) bool { return log.HasLine(`"ADDED"`, `"web"`) })
	e.create(t, e.newPod("new", nil))
	testkit.Eventually(t, "the new Pod is logged", func(context.Context) bool { return log.HasLine(`"ADDED"`, `"new"`) })
}

// previewRunsUntilItsTimeIsOver is the whole program; its own test has the details.
func previewRunsUntilItsTimeIsOver(t *testing.T, e *example) {
	e.start(t)
	environments := e.samples(t, "environment.yaml")
	e.create(t, environments[0])
	if by, _, _ := unstructured.NestedString(environments[0].(*unstructured.Unstructured).Object, "spec", "requestedBy"); by != "admin" {
		t.Errorf("requested by %q", by)
	}
	denies(t, e.kube.Create(t.Context(), environments[1]), "spec.ttl: 1000h0m0s: must be more than 0s")
	testkit.Eventually(t, "it runs", func(ctx context.Context) bool {
		_, err := e.client.AppsV1().Deployments(e.namespace).Get(ctx, "web", metav1.GetOptions{})
		return err == nil
	})
}

// costguardDeniesWhatCostsTooMuch is the whole program; its own test has the details.
func costguardDeniesWhatCostsTooMuch(t *testing.T, e *example) {
	e.start(t, "--limit=16")
	workloads := e.samples(t, "workloads.yaml")
	e.create(t, workloads[0])
	denies(t, e.kube.Create(t.Context(), workloads[1]), "request 50 CPUs; the budget is 8, the limit 16")
}

func alarmsHaveTwoVersions(t *testing.T, e *example) {
	e.start(t)
	alarm := e.samples(t, "alarm.yaml")[0].(*unstructured.Unstructured)
	stored := &unstructured.Unstructured{}
	stored.SetAPIVersion("alarm.example.com/v2")
	stored.SetKind("Alarm")
	testkit.Eventually(t, "the API server knows of the conversion that is registered", func(ctx context.Context) bool {
		made := alarm.DeepCopy()
		e.create(t, made)
		if err := e.kube.Get(ctx, client.ObjectKeyFromObject(made), stored); err != nil {
			t.Fatal(err)
		}
		if _, converted := stored.Object["spec"].(map[string]any)["hour"]; converted {
			return true
		}
		if err := e.kube.Delete(ctx, made); err != nil {
			t.Fatal(err)
		}
		return false
	})
	expect(t, "spec in v2", stored.Object["spec"], any(map[string]any{"hour": int64(7), "minute": int64(30), "message": "Get up"}))
	stored.Object["spec"].(map[string]any)["snooze"] = int64(5)
	if err := e.kube.Update(t.Context(), stored); err != nil {
		t.Fatal(err)
	}
	if err := e.kube.Get(t.Context(), client.ObjectKeyFromObject(alarm), alarm); err != nil {
		t.Fatal(err)
	}
	expect(t, "spec in v1", alarm.Object["spec"], any(map[string]any{"time": "07:30", "text": "Get up"}))
	expect(t, "annotations in v1", alarm.GetAnnotations()["alarm.example.com/snooze"], "5")
}
