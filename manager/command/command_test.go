package command_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/spf13/cobra"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/internal/freeport"
	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/manager"
	"github.com/admitkit/admitkit/manager/command"
	"github.com/admitkit/admitkit/testing/controlplane"
)

// The tests of this package share one real API server.
var (
	cluster   *controlplane.ControlPlane
	clientset *kubernetes.Clientset
)

// TestMain makes the test binary the program under test if a test runs it that way, so
// that signals and exit codes are real.
func TestMain(m *testing.M) {
	switch os.Getenv("COMMAND_TEST_MAIN") {
	case "":
	case "next":
		command.Main(command.New("stamp", func(mgr *manager.Manager) error {
			return mgr.AddExtension(extension.MutatingFunc(func(_ context.Context, pod *corev1.Pod, _ *extension.Request) error {
				metav1.SetMetaDataAnnotation(&pod.ObjectMeta, "stamped", "twice")
				return nil
			}, extension.Scope{Name: "stamp"}))
		}))
		return
	case "ten":
		command.Main(command.New("ten", ten))
		return
	default:
		command.Main(newCommand())
		return
	}
	os.Exit(testkit.Main(m, controlplane.Options{}, func(c *controlplane.ControlPlane) (err error) {
		cluster = c
		clientset, err = kubernetes.NewForConfig(c.Config())
		return err
	}))
}

func stamp(_ context.Context, pod *corev1.Pod, _ *extension.Request) error {
	metav1.SetMetaDataAnnotation(&pod.ObjectMeta, "stamped", "yes")
	return nil
}

func build(mgr *manager.Manager) error {
	return mgr.AddExtension(extension.MutatingFunc(stamp, extension.Scope{Name: "stamp"}))
}

func newCommand() *cobra.Command { return command.New("stamp", build) }

func newNamespace(t *testing.T) string {
	t.Helper()
	return testkit.Namespace(t, testkit.Client(t, cluster.Admin(), nil))
}

// program runs a subcommand in a process of its own.
func program(t *testing.T, args ...string) (*exec.Cmd, *testkit.Output) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), self, args...)
	cmd.Env = append(os.Environ(), "COMMAND_TEST_MAIN=yes")
	log := &testkit.Output{}
	cmd.Stdout, cmd.Stderr = log, log
	return cmd, log
}

// eventuallyStamped waits until the API server calls the program.
func eventuallyStamped(t *testing.T, namespace string) {
	t.Helper()
	testkit.Eventually(t, "a Pod is stamped", func(ctx context.Context) bool {
		pod, err := clientset.CoreV1().Pods(namespace).Create(ctx, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "pod"},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "example.com/main:1"}}},
		}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err == nil && pod.Annotations["stamped"] == "yes"
	})
}

func TestRegisterServeAndUnregisterAreThreeProcesses(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	flags := []string{
		"--namespace=" + namespace, "--host=127.0.0.1", fmt.Sprintf("--port=%d", freeport.For(t)), "--kubeconfig=" + cluster.Admin().KubeConfig,
		"--health-address=", "--metrics-address=", "--drain-period=10ms", "--zap-log-level=debug",
	}
	server, serverLog := program(t, append([]string{"serve"}, flags...)...)
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	register, log := program(t, append([]string{"register"}, flags...)...)
	if err := register.Run(); err != nil {
		t.Fatalf("%v: %s", err, log)
	}
	eventuallyStamped(t, namespace)
	// A registrar that still runs repairs what is removed.
	health := fmt.Sprintf("127.0.0.1:%d", freeport.For(t))
	stay, _ := program(t, append(append([]string{"register", "--stay"}, flags...), "--health-address="+health)...)
	registrar := testkit.Run(t, stay)
	testkit.Eventually(t, "the registrar is ready", func(ctx context.Context) bool { return testkit.IsReady(ctx, health) })
	unregister, log := program(t, append([]string{"unregister"}, flags...)...)
	var exit *exec.ExitError
	if err := unregister.Run(); !errors.As(err, &exit) || exit.ExitCode() != 1 || !strings.Contains(log.String(), "MutatingWebhookConfiguration stamp."+namespace+" is there again: a manager that still runs has repaired it: stop it") {
		t.Errorf("while a registrar runs: %v: %s", err, log)
	}
	registrar.Stop(t)
	unregister, log = program(t, append([]string{"unregister"}, flags...)...)
	if err := unregister.Run(); err != nil {
		t.Fatalf("%v: %s", err, log)
	}
	if _, err := clientset.AdmissionregistrationV1().MutatingWebhookConfigurations().Get(t.Context(), "stamp."+namespace, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("unregister leaves the configuration: %v", err)
	}
	if err := server.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := server.Wait(); err != nil {
		t.Errorf("the server ends with %v after SIGTERM: %s", err, serverLog)
	}
	if !strings.Contains(serverLog.String(), `"webhook server stopped"`) || !strings.Contains(serverLog.String(), `"admission"`) {
		t.Errorf("the server logs neither its admissions at debug nor its stop: %s", serverLog)
	}
}

func TestUnregisterScalesDownFirstAndRemovesNothingWhileAPodIsLeft(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	labels := map[string]string{"app": "stamp"}
	containers := corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "example.com/stamp:1"}}}
	if _, err := clientset.AppsV1().Deployments(namespace).Create(t.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "stamp"},
		Spec: appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: containers},
		},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	controls := true
	pods := clientset.CoreV1().Pods(namespace)
	if _, err := pods.Create(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "stamp-1", Labels: labels, OwnerReferences: []metav1.OwnerReference{
		{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "stamp", UID: "1", Controller: &controls},
	}}, Spec: containers}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) (string, error) {
		cmd, log := program(t, append(args, "--namespace="+namespace, "--advertise-host=127.0.0.1", "--kubeconfig="+cluster.Admin().KubeConfig)...)
		err := cmd.Run()
		return log.String(), err
	}
	registered := func() bool {
		_, err := clientset.AdmissionregistrationV1().MutatingWebhookConfigurations().Get(t.Context(), "stamp."+namespace, metav1.GetOptions{})
		return !apierrors.IsNotFound(err)
	}
	if log, err := run("register"); err != nil || !registered() {
		t.Fatalf("%v: %s", err, log)
	}
	log, err := run("unregister", "--scale-down=stamp", "--port=9999")
	deployment, getErr := clientset.AppsV1().Deployments(namespace).Get(t.Context(), "stamp", metav1.GetOptions{})
	if err == nil || !strings.Contains(log, "another installation's") || getErr != nil || *deployment.Spec.Replicas != 1 {
		t.Errorf("another installation's Deployments are stopped: %v, %v: %s", err, getErr, log)
	}
	log, err = run("unregister", "--scale-down=stamp,other")
	if deployment, getErr = clientset.AppsV1().Deployments(namespace).Get(t.Context(), "stamp", metav1.GetOptions{}); getErr != nil {
		t.Fatal(getErr)
	}
	if err == nil || !strings.Contains(log, "--scale-down: there is no Deployment "+namespace+"/other: correct the name, or leave it out (--ignore-not-found)") || *deployment.Spec.Replicas != 1 || !registered() {
		t.Errorf("with a name that is wrong: %v: %s", err, log)
	}
	log, err = run("unregister", "--scale-down=stamp,other", "--scale-down-timeout=10s", "--ignore-not-found")
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 1 || !strings.Contains(log, "left: Pod stamp-1") || !strings.Contains(log, namespace+"/other") {
		t.Errorf("with a Pod that is left: %v: %s", err, log)
	}
	if !registered() {
		t.Fatal("the webhooks are removed while a manager may run")
	}
	if err := pods.Delete(t.Context(), "stamp-1", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if log, err := run("unregister", "--scale-down=stamp,other", "--ignore-not-found"); err != nil || registered() {
		t.Errorf("without a Pod: %v: %s", err, log)
	}
}

func TestErrorsAreLoggedWithoutAStackUnlessSomebodyWantsThem(t *testing.T) {
	for args, want := range map[string]bool{"--zap-log-level=info": false, "--zap-stacktrace-level=error": true} {
		var lines bytes.Buffer
		log, err := command.Logger(&lines, args)
		if err != nil {
			t.Fatal(err)
		}
		log.Error("a collector is down")
		if text := lines.String(); strings.Contains(text, "stacktrace") != want || !strings.Contains(text, "a collector is down") {
			t.Errorf("%s: %s", args, text)
		}
	}
}

func TestWhatIsWrongWithTheFlagsIsSaidOnStandardErrorWithExitCode2(t *testing.T) {
	for name, test := range map[string]struct {
		args []string
		want string
	}{
		"an unknown flag":        {[]string{"start", "--nonsense"}, "unknown flag: --nonsense"},
		"an argument too many":   {[]string{"start", "now"}, `unknown command "now"`},
		"a selector":             {[]string{"start", "--pod-selector=a b c"}, "--pod-selector:"},
		"a log level":            {[]string{"start", "--zap-log-level=loud"}, "zap-log-level"},
		"an option":              {[]string{"register", "--namespace=default", "--failure-policy=Never", "--kubeconfig=x"}, "--failure-policy: \"Never\""},
		"a free port":            {[]string{"start", "--namespace=default", "--advertise-host=x", "--port=0", "--kubeconfig=KUBECONFIG"}, "--port: a free one needs --unregister-on-stop, and no --service-name"},
		"an old TLS":             {[]string{"start", "--namespace=default", "--tls-min-version=1.1", "--kubeconfig=KUBECONFIG"}, "--tls-min-version: \"1.1\": must be 1.2 or 1.3"},
		"a wrong cipher suite":   {[]string{"start", "--namespace=default", "--tls-cipher-suites=TLS_RSA_WITH_RC4_128_SHA", "--kubeconfig=KUBECONFIG"}, "--tls-cipher-suites: \"TLS_RSA_WITH_RC4_128_SHA\" is insecure"},
		"names of no CA":         {[]string{"start", "--namespace=default", "--client-names=x", "--kubeconfig=KUBECONFIG"}, "--client-names: set without --client-ca:"},
		"any name of a label":    {[]string{"start", "--namespace=default", "--tolerate-selector-terms=kubernetes.io/metadata.name", "--kubeconfig=KUBECONFIG"}, "--tolerate-selector-terms: \"kubernetes.io/metadata.name\": would let others"},
		"a missing address":      {[]string{"start", "--namespace=default", "--kubeconfig=KUBECONFIG"}, "--advertise-host: required, since there is no --service-name and --host is not"},
		"a missing namespace":    {[]string{"start", "--advertise-host=x", "--kubeconfig=KUBECONFIG"}, "--webhook-namespace: required unless --namespace names one"},
		"two namespaces":         {[]string{"start", "--namespace=a,b", "--advertise-host=x", "--kubeconfig=KUBECONFIG"}, "--webhook-namespace: required unless --namespace names one"},
		"a wrong namespace":      {[]string{"start", "--namespace=a,B", "--webhook-namespace=x", "--kubeconfig=KUBECONFIG"}, "--namespace: \"B\""},
		"a wrong one of two":     {[]string{"start", "--namespace=a,My_NS", "--advertise-host=x", "--kubeconfig=KUBECONFIG"}, "--namespace: \"My_NS\""},
		"a port for health":      {[]string{"start", "--namespace=default", "--advertise-host=x", "--health-address=8081", "--kubeconfig=KUBECONFIG"}, "--health-address: \"8081\": must be HOST:PORT, or :PORT for every address"},
		"a host for metrics":     {[]string{"start", "--namespace=default", "--advertise-host=x", "--metrics-address=localhost", "--kubeconfig=KUBECONFIG"}, "--metrics-address: \"localhost\": must be HOST:PORT"},
		"an empty namespace":     {[]string{"start", "--namespace=a,", "--webhook-namespace=x", "--kubeconfig=KUBECONFIG"}, "--namespace: an empty name"},
		"a wrong name":           {[]string{"review", "--namespace=default", "--fingerprint=A", "--kubeconfig=KUBECONFIG", "-f", "KUBECONFIG"}, "--fingerprint: \"A\""},
		"own Pods":               {[]string{"manifests", "--namespace=default", "--service-name=x", "--image=x"}, "choose another --webhook-namespace, or name \"stamp\" in --allow-own-pods"},
		"an unknown kubeconfig":  {[]string{"unregister", "--namespace=default", "--kubeconfig=/does/not/exist"}, "--kubeconfig: stat /does/not/exist"},
		"an address with more":   {[]string{"start", "--namespace=default", "--advertise-host=https://x:443", "--kubeconfig=KUBECONFIG"}, "--advertise-host: \"https://x:443\": must be a DNS name or an address alone: the scheme is https, and the port is that of --port"},
		"an address with a port": {[]string{"start", "--namespace=default", "--advertise-host=10.0.0.1:443", "--kubeconfig=KUBECONFIG"}, "--advertise-host: \"10.0.0.1:443\": must be"},
		"an empty kubeconfig":    {[]string{"start", "--namespace=default", "--advertise-host=x", "--kubeconfig=/dev/null"}, "--kubeconfig: no connection to a cluster: /dev/null names none: name a kubeconfig"},
		"an unknown mode":        {[]string{"start", "--namespace=default", "--mode=stamp=on", "--kubeconfig=KUBECONFIG"}, "--mode: stamp=\"on\": must be Enforce, Warn or Observe"},
		"an unknown extension":   {[]string{"review", "--namespace=default", "--mode=stomp=warn", "--kubeconfig=KUBECONFIG", "-f", "KUBECONFIG"}, "no extension \"stomp\" answers admissions; there are stamp"},
		"a file without modes":   {[]string{"review", "--namespace=default", "--modes-file=KUBECONFIG", "--kubeconfig=KUBECONFIG", "-f", "KUBECONFIG"}, "--modes-file: KUBECONFIG: "},
		"no exemptions":          {[]string{"review", "--namespace=default", "--exemptions-file=KUBECONFIG", "--kubeconfig=KUBECONFIG", "-f", "KUBECONFIG"}, "--exemptions-file: KUBECONFIG: "},
		"an excluded namespace":  {[]string{"review", "--namespace=default", "--exclude-namespaces=default", "--kubeconfig=KUBECONFIG", "-f", "KUBECONFIG"}, "--exclude-namespaces: \"default\" is in --namespace, too"},
	} {
		t.Run(name, func(t *testing.T) {
			kubeConfig := writeKubeConfig(t)
			for i := range test.args {
				test.args[i] = strings.ReplaceAll(test.args[i], "KUBECONFIG", kubeConfig)
			}
			stdout, stderr, code := execute(t, newCommand(), "", test.args...)
			if code != 2 || !strings.Contains(stderr, strings.ReplaceAll(test.want, "KUBECONFIG", kubeConfig)) {
				t.Errorf("%d: %s", code, stderr)
			}
			if lines := strings.Count(stdout+stderr, "\n"); lines > 2 {
				t.Errorf("it says so in %d lines: %s%s", lines, stdout, stderr)
			}
		})
	}
	var ignore admissionregistrationv1.FailurePolicyType = "ignore"
	_, stderr, code := runBuilt(t, func(mgr *manager.Manager) error {
		return mgr.AddExtension(extension.MutatingFunc(func(context.Context, *corev1.Pod, *extension.Request) error { return nil }, extension.Scope{Name: "x", FailurePolicy: &ignore}))
	}, withTeam, "review", "-f", "-")
	if want := `scope of x: FailurePolicy: "ignore"`; code != 2 || !strings.Contains(stderr, want) {
		t.Errorf("%d: %s, want %q: the flag sets no scope", code, stderr, want)
	}
	cmd, log := program(t, "start", "--nonsense")
	err := cmd.Run()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 2 || log.String() != "stamp: unknown flag: --nonsense\n" {
		t.Errorf("the program ends with %v, and says %q", err, log)
	}
}

func TestAFailureNamesTheFlagOrTheCredentials(t *testing.T) {
	t.Parallel()
	taken, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	config, err := clientcmd.LoadFromFile(cluster.Admin().KubeConfig)
	if err != nil {
		t.Fatal(err)
	}
	config.AuthInfos[config.Contexts[config.CurrentContext].AuthInfo] = &clientcmdapi.AuthInfo{Token: "of another cluster"}
	stranger := t.TempDir() + "/kubeconfig"
	if err := clientcmd.WriteToFile(*config, stranger); err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(taken.Addr().String())
	for name, test := range map[string]struct{ flags, want string }{
		"a port that is taken":           {"--kubeconfig=" + cluster.Admin().KubeConfig + " --metrics-address= --health-address= --port=" + port, "--port: "},
		"an address of health checks":    {"--kubeconfig=" + cluster.Admin().KubeConfig + " --metrics-address= --health-address=" + taken.Addr().String(), "--health-address: "},
		"an address of metrics":          {"--kubeconfig=" + cluster.Admin().KubeConfig + " --health-address= --metrics-address=" + taken.Addr().String(), "--metrics-address: "},
		"credentials of another cluster": {"--kubeconfig=" + stranger + " --metrics-address= --health-address=", `Unauthorized: the API server does not accept user "`},
	} {
		t.Run(name, func(t *testing.T) {
			flags := append([]string{"start", "--unregister-on-stop", "--host=127.0.0.1", "--namespace=" + newNamespace(t)}, strings.Fields(test.flags)...)
			if !strings.Contains(test.flags, "--port") {
				flags = append(flags, "--port=0")
			}
			_, stderr, code := execute(t, newCommand(), "", flags...)
			if code == 0 || !strings.Contains(stderr, test.want) {
				t.Errorf("%d: %s", code, stderr)
			}
		})
	}
}

func writeKubeConfig(t *testing.T) string {
	t.Helper()
	path := t.TempDir() + "/kubeconfig"
	const text = `{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: c}}], clusters: [{name: c, cluster: {server: "https://127.0.0.1:1"}}]}`
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestTheHelpExplainsEverySubcommandAndFlag(t *testing.T) {
	cmd := newCommand()
	var help bytes.Buffer
	cmd.SetOut(&help)
	cmd.SetArgs([]string{"--help"})
	if err := cmd.ExecuteContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"start", "register", "serve", "unregister", "review", "manifests", "completion", "--namespace", "--advertise-host", "--drain-period"} {
		if !strings.Contains(help.String(), want) {
			t.Errorf("the help does not mention %s", want)
		}
	}
}

// withoutFlag are the options that text cannot express, and those that the
// subcommands decide.
var withoutFlag = []string{
	"Context", "RESTConfig", "Scheme", "Logger", "RegisterWebHook", "Registration.Owner", "Certificates.OnChange", "Serving.TracerProvider", "Serving.Exemptions",
}

func TestThereIsAFlagForEveryOption(t *testing.T) {
	flags := command.FlagsOfOptions(newCommand().PersistentFlags())
	for _, path := range command.PathsOf("", reflect.TypeFor[manager.Options]()) {
		if slices.Contains(withoutFlag, path) == (flags[path] != "") {
			t.Errorf("option %s has the flag --%s", path, flags[path])
		}
	}
}

func TestErrorsOfExtensionsNameFlags(t *testing.T) {
	for text, want := range map[string]string{
		"beep options: Retention: -1s":                            "beep options: --beep-retention: -1s",
		"beep options: MaxDuration 1s, Loud and Quiet":            "beep options: --max-duration 1s, Loud and Quiet",
		"beep options: Rooms: no such room":                       "beep options: --beep-room: no such room",
		"beep options: Horn: URL: not https":                      "beep options: --beep-horn-url: not https",
		"beep options: Lamp: Color: Blue":                         "beep options: --lamp-shade: Blue",
		"beep options: Lamp: Watts: 3":                            "beep options: Lamp: Watts: 3",
		"beep options: horn options: Retention, WebhookNamespace": "beep options: horn options: --horn-retention, --webhook-namespace",
		"the API server says Retention":                           "the API server says Retention",
	} {
		cmd := command.New("beep", func(*manager.Manager) error { return errors.New(text) },
			command.WithOptionFlags("beep options: ", "beep"), command.WithOptionFlags("horn options: ", "horn"))
		flags := cmd.PersistentFlags()
		for _, name := range []string{"beep-retention", "horn-retention", "max-duration", "beep-room", "beep-horn-url", "lamp-shade", "loud"} {
			flags.String(name, "", "")
		}
		command.NameOptions(flags, "lamp-shade", "Lamp: Color")
		cmd.SetOut(io.Discard)
		cmd.SetArgs([]string{"manifests", "--image=x", "--namespace=apps"})
		if err := cmd.ExecuteContext(t.Context()); err == nil || err.Error() != want || command.ExitCode(err) != 2 {
			t.Errorf("%s: got %v, want %s", text, err, want)
		}
	}
}

func TestAnAuthorSetsOptionsThatNoFlagHas(t *testing.T) {
	var got string
	cmd := command.New("stamp", func(mgr *manager.Manager) error {
		got = mgr.GetFingerprint()
		return build(mgr)
	}, command.WithOptions(func(o *manager.Options) { o.OperatorFingerprint += "-of-mine" }))
	cmd.SetOut(io.Discard)
	cmd.SetArgs([]string{"manifests", "--image=x", "--namespace=apps", "--webhook-namespace=my-system"})
	if err := cmd.ExecuteContext(t.Context()); err != nil || got != "stamp-of-mine" {
		t.Errorf("the fingerprint is %q: %v", got, err)
	}
}
