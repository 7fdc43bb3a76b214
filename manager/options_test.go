package manager_test

import (
	"context"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/manager"
)

// serving returns options that are right but for those of the servers.
func serving(options manager.ServingOptions) manager.Options {
	return manager.Options{Namespaces: []string{"apps"}, OperatorFingerprint: "x", Serving: options}
}

func TestAnOptionThatIsMissingOrContradictoryIsNamed(t *testing.T) {
	t.Parallel()
	always := admissionregistrationv1.FailurePolicyType("Always")
	negative, yes := -time.Second, true
	connection := &rest.Config{Host: "https://127.0.0.1:1"}
	broken := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(broken, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		options manager.Options
		want    []string
	}{
		"no namespace at all":                   {manager.Options{}, []string{"WebhookNamespace: required"}},
		"no name":                               {manager.Options{Namespaces: []string{"apps"}, Host: "127.0.0.1"}, []string{"OperatorFingerprint: required without a ServiceName"}},
		"a user with a blank":                   {manager.Options{Namespaces: []string{"apps"}, Watching: manager.WatchingOptions{ReconcilerUser: "jane "}}, []string{`Watching.ReconcilerUser: "jane "`}},
		"a namespace that cannot be one":        {manager.Options{Namespaces: []string{"My_Apps"}}, []string{`Namespaces: "My_Apps"`}},
		"two options wrong at once":             {manager.Options{Namespaces: []string{"apps"}, Port: 70000, FailurePolicy: &always}, []string{"Port: 70000", `FailurePolicy: "Always": must be Fail or Ignore`}},
		"a free port behind a Service":          {manager.Options{Namespaces: []string{"apps"}, Port: manager.FreePort, ServiceName: "my-ext", Registration: manager.RegistrationOptions{UnregisterOnStop: true}}, []string{"Port: a free one needs Registration.UnregisterOnStop, and no ServiceName"}},
		"a free port that stays registered":     {manager.Options{Namespaces: []string{"apps"}, Port: manager.FreePort}, []string{"Port: a free one needs"}},
		"a leaf that outlives its CA":           {manager.Options{Namespaces: []string{"apps"}, Certificates: manager.CertificateOptions{CALifetime: time.Hour, LeafLifetime: time.Hour}}, []string{"Certificates.LeafLifetime: 1h0m0s: must be at most a third"}},
		"a slow propagation":                    {manager.Options{Namespaces: []string{"apps"}, Certificates: manager.CertificateOptions{CALifetime: time.Hour, LeafLifetime: time.Minute, PropagationDelay: time.Hour}}, []string{"Certificates.PropagationDelay: 1h0m0s"}},
		"one Secret for leaf and CA":            {manager.Options{Namespaces: []string{"apps"}, Certificates: manager.CertificateOptions{LeafSecretName: "x"}, SetupCertificateName: "x"}, []string{"Certificates.LeafSecretName: must differ"}},
		"a bundle from nowhere":                 {manager.Options{Namespaces: []string{"apps"}, Registration: manager.RegistrationOptions{ForeignCABundle: true}}, []string{"Registration.ForeignCABundle: needs"}},
		"a probe that is never sent":            {manager.Options{Namespaces: []string{"apps"}, Registration: manager.RegistrationOptions{IgnoreUntilProbed: true, Probe: new(bool)}}, []string{"Registration.IgnoreUntilProbed: needs Registration.Probe"}},
		"an owner without a UID":                {manager.Options{Namespaces: []string{"apps"}, Registration: manager.RegistrationOptions{Owner: &metav1.OwnerReference{Name: "x"}}}, []string{"Registration.Owner: needs"}},
		"two connections":                       {manager.Options{Namespaces: []string{"apps"}, KubeConfig: broken, RESTConfig: connection}, []string{"KubeConfig and RESTConfig"}},
		"an unknown kubeconfig":                 {manager.Options{Namespaces: []string{"apps"}, KubeConfig: "/does/not/exist"}, []string{"KubeConfig:", "/does/not/exist"}},
		"a kubeconfig that cannot be read":      {manager.Options{Namespaces: []string{"apps"}, KubeConfig: broken}, []string{"KubeConfig:", broken}},
		"two sources of certificates":           {manager.Options{Namespaces: []string{"apps"}, Certificates: manager.CertificateOptions{Dir: "/certs"}, SetupCertificate: &yes}, []string{"SetupCertificate and Certificates.Dir"}},
		"a drain that ends before it began":     {manager.Options{Namespaces: []string{"apps"}, Serving: manager.ServingOptions{DrainPeriod: &negative}}, []string{"Serving.DrainPeriod: -1s"}},
		"an old TLS":                            {manager.Options{Namespaces: []string{"apps"}, Serving: manager.ServingOptions{TLSMinVersion: "1.1"}}, []string{`Serving.TLSMinVersion: "1.1": must be 1.2 or 1.3`}},
		"an insecure cipher suite":              {serving(manager.ServingOptions{TLSCipherSuites: []string{"TLS_RSA_WITH_AES_128_CBC_SHA"}}), []string{`Serving.TLSCipherSuites: "TLS_RSA_WITH_AES_128_CBC_SHA" is insecure; there are TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA, `}},
		"a cipher suite of nobody":              {serving(manager.ServingOptions{TLSCipherSuites: []string{"NONE"}}), []string{`Serving.TLSCipherSuites: "NONE" is not known`}},
		"a cipher suite that is always on":      {serving(manager.ServingOptions{TLSCipherSuites: []string{"TLS_AES_128_GCM_SHA256"}}), []string{"is one of TLS 1.3, which are always on"}},
		"cipher suites of another version":      {serving(manager.ServingOptions{TLSMinVersion: "1.3", TLSCipherSuites: []string{"TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"}}), []string{"TLS 1.3 has no choice"}},
		"cipher suites of another key":          {serving(manager.ServingOptions{TLSCipherSuites: []string{"TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"}}), []string{"Serving.TLSCipherSuites: none fits the manager's own certificate"}},
		"names of clients that nobody asks":     {serving(manager.ServingOptions{ClientNames: []string{"kube-apiserver"}}), []string{"Serving.ClientNames: set without Serving.ClientCAFile"}},
		"a term that tolerates everything":      {manager.Options{Namespaces: []string{"apps"}, OperatorFingerprint: "x", Registration: manager.RegistrationOptions{TolerateSelectorTerms: []string{"kubernetes.io/metadata.name"}}}, []string{"Registration.TolerateSelectorTerms: ", "name those that they may"}},
		"a share of more than all":              {serving(manager.ServingOptions{RecordDir: "x", RecordShare: 1.5}), []string{"Serving.RecordShare: 1.5"}},
		"room for no recording":                 {serving(manager.ServingOptions{RecordDir: "x", RecordLimitBytes: 1000}), []string{"Serving.RecordLimitBytes: 1000"}},
		"a share of no recordings":              {serving(manager.ServingOptions{RecordShare: 0.5}), []string{"set without Serving.RecordDir"}},
		"a body of less than nothing":           {manager.Options{Namespaces: []string{"apps"}, Serving: manager.ServingOptions{MaxBodyBytes: -1}}, []string{"Serving.MaxBodyBytes: -1"}},
		"requests of less than none":            {manager.Options{Namespaces: []string{"apps"}, Serving: manager.ServingOptions{MaxInFlight: -1}}, []string{"Serving.MaxInFlight: -1"}},
		"a resource version that is none":       {manager.Options{Namespaces: []string{"apps"}, WatcherStartRV: "x"}, []string{`WatcherStartRV: "x"`}},
		"an excluded namespace that is none":    {manager.Options{Namespaces: []string{"apps"}, OperatorFingerprint: "x", Registration: manager.RegistrationOptions{ExcludeNamespaces: []string{"b", "A"}}}, []string{`Registration.ExcludeNamespaces: "A": `}},
		"an excluded namespace that is watched": {manager.Options{Namespaces: []string{"apps"}, OperatorFingerprint: "x", Registration: manager.RegistrationOptions{ExcludeNamespaces: []string{"apps"}}}, []string{`Registration.ExcludeNamespaces: "apps" is in Namespaces, too: remove it from one of them`}},
		"a selector that is none": {manager.Options{Namespaces: []string{"apps"}, PodSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
			{Key: "a", Operator: "Near"},
		}}}, []string{"PodSelector:"}},
	} {
		t.Run(name, func(t *testing.T) {
			if test.options.KubeConfig == "" {
				test.options.RESTConfig = connection
			}
			if name != "no name" {
				test.options.OperatorFingerprint = "test"
			}
			_, err := manager.New(test.options)
			if err == nil {
				t.Fatal("accepted")
			}
			for _, want := range test.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("the error %q does not say %q", err, want)
				}
			}
		})
	}
}

func TestWhatIsNoExtensionIsRefused(t *testing.T) {
	t.Parallel()
	mgr, err := manager.New(manager.Options{OperatorFingerprint: "test", Namespaces: []string{"apps"}, RESTConfig: &rest.Config{}})
	if err != nil {
		t.Fatal(err)
	}
	var none *extension.Handler
	for name, e := range map[string]any{"nil": nil, "a string": "x", "a nil Handler": none, "a bare Mutator": extension.MutatorFunc[*corev1.Pod](nil)} {
		if err := mgr.AddExtension(e); err == nil || !strings.Contains(err.Error(), "extension") {
			t.Errorf("adding %s gives %v", name, err)
		}
	}
	if err := mgr.AddExtension(mark("a", extension.Scope{})); err == nil || !strings.Contains(err.Error(), "Serving.AdvertiseHost: required") {
		t.Errorf("without an address to call, adding a Handler gives %v", err)
	}
}

func TestAManagerRunsOnlyWithAllThatWasAdded(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	newManager := func() *manager.Manager {
		mgr, err := manager.New(manager.Options{Namespaces: []string{namespace}, ServiceName: "x", RESTConfig: cluster.Config()})
		if err != nil {
			t.Fatal(err)
		}
		return mgr
	}
	empty, broken := newManager(), newManager()
	if err := broken.AddExtension(mark("a", extension.Scope{})); err != nil {
		t.Fatal(err)
	}
	_ = broken.AddExtension("a typo") // whose error nobody looks at
	for name, run := range map[string]func(*manager.Manager) error{
		"Start":                func(m *manager.Manager) error { return m.Start(t.Context()) },
		"Watch":                func(m *manager.Manager) error { return m.Watch(t.Context()) },
		"RegisterExtensions":   func(m *manager.Manager) error { return m.RegisterExtensions(t.Context()) },
		"KeepRegistered":       func(m *manager.Manager) error { return m.KeepRegistered(t.Context()) },
		"UnregisterExtensions": func(m *manager.Manager) error { return m.UnregisterExtensions(t.Context()) },
		"RunRemovers":          func(m *manager.Manager) error { return m.RunRemovers(t.Context()) },
		"Webhooks":             func(m *manager.Manager) error { _, err := m.Webhooks(t.Context()); return err },
		"Manifests": func(m *manager.Manager) error {
			_, err := m.Manifests(manager.InstallOptions{Name: "x", Image: "x"})
			return err
		},
	} {
		if slices.Contains([]string{"UnregisterExtensions", "RunRemovers"}, name) {
			// A manager that only cleans up may have no extensions.
		} else if err := run(empty); err == nil || !strings.Contains(err.Error(), "there is no extension") {
			t.Errorf("%s of nothing gives %v", name, err)
		}
		if err := run(broken); err == nil || !strings.Contains(err.Error(), "string is not an Extension") {
			t.Errorf("%s returns %v, and not the error of AddExtension", name, err)
		}
	}
}

func TestAScopeThatTheAPIServerWouldRefuseIsNamedBeforeAnythingIsRegistered(t *testing.T) {
	t.Parallel()
	unknown := admissionregistrationv1.SideEffectClassUnknown
	for name, test := range map[string]struct {
		extensions []any
		want       string
	}{
		"a name":       {[]any{mark("a", extension.Scope{Name: "Not A Label"})}, `Name: "Not A Label"`},
		"side effects": {[]any{mark("a", extension.Scope{SideEffects: &unknown})}, `SideEffects: "Unknown"`},
		"a failure policy": {
			[]any{mark("a", extension.Scope{FailurePolicy: new(admissionregistrationv1.FailurePolicyType("ignore"))})}, `FailurePolicy: "ignore": must be Fail or Ignore`,
		},
		"a match policy": {
			[]any{mark("a", extension.Scope{MatchPolicy: new(admissionregistrationv1.MatchPolicyType("exact"))})}, `MatchPolicy: "exact": must be Equivalent or Exact`,
		},
		"a reinvocation policy": {
			[]any{mark("a", extension.Scope{ReinvocationPolicy: new(admissionregistrationv1.ReinvocationPolicyType("Always"))})},
			`ReinvocationPolicy: "Always": must be Never or IfNeeded`,
		},
		"a timeout":     {[]any{mark("a", extension.Scope{Timeout: time.Minute})}, "Timeout: 1m0s"},
		"an empty rule": {[]any{mark("a", extension.Scope{Rules: []admissionregistrationv1.RuleWithOperations{{}}})}, "Rules[0]"},
		"one name for two scopes": {[]any{
			mark("a", extension.Scope{Name: "x"}), mark("b", extension.Scope{Name: "x", Timeout: time.Second}),
		}, `"x" is already the name of a different scope`},
		"an Extension on what is no Pod": {[]any{connectExtension{}}, "an Extension takes Pods"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newManager(t, manager.Options{Namespaces: []string{"apps"}, RESTConfig: &rest.Config{Host: "https://127.0.0.1:1"}}, test.extensions...)
			if err := r.Start(t.Context()); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want an error that says %q", err, test.want)
			}
		})
	}
}

func TestAnExemptionOfAFileHasANameOfItsOwn(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "exemptions.yaml")
	if err := os.WriteFile(file, []byte(`exemptions: [{name: old, extensions: ["*"], users: [alice], until: 2999-01-01T00:00:00Z, reason: it is rewritten}]`), 0o600); err != nil {
		t.Fatal(err)
	}
	own := []manager.Exemption{{Name: "old", Extensions: []string{"*"}, Users: []string{"bob"}, Until: metav1.NewTime(time.Now().Add(time.Hour)), Reason: "x"}}
	r := newManager(t, manager.Options{
		Namespaces: []string{"apps"}, RESTConfig: &rest.Config{Host: "https://127.0.0.1:1"}, Serving: manager.ServingOptions{Exemptions: own, ExemptionsFile: file},
	}, mark("a", extension.Scope{}))
	if err := r.Start(t.Context()); err == nil || !strings.Contains(err.Error(), `exemptions[0].name: "old" is in Serving.Exemptions, too: choose another`) {
		t.Errorf("got %v", err)
	}
}

type connectExtension struct{ markExtension }

func (connectExtension) Scope() extension.Scope {
	return extension.Scope{Rules: extension.Connect("pods/exec")}
}

func TestAnAPIServerThatIsNotThereIsReportedWithinTenSeconds(t *testing.T) {
	t.Parallel()
	const host = "https://api.example.com:6443"
	for name, test := range map[string]struct {
		dial func(context.Context, string, string) (net.Conn, error)
		why  string
	}{
		"nobody listens": {func(context.Context, string, string) (net.Conn, error) { return nil, syscall.ECONNREFUSED }, "connection refused"},
		"a firewall refuses after a while": {func(context.Context, string, string) (net.Conn, error) {
			time.Sleep(3 * time.Second) // so the last attempt ends at the deadline
			return nil, syscall.ECONNREFUSED
		}, "connection refused"},
		"there is no name": {func(context.Context, string, string) (net.Conn, error) {
			return nil, &net.DNSError{Err: "no such host", IsNotFound: true}
		}, "no such host"},
		"nobody answers": {func(context.Context, string, string) (net.Conn, error) {
			conn, silent := net.Pipe()
			go func() { _, _ = io.Copy(io.Discard, silent) }()
			return conn, nil
		}, "deadline exceeded"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newManager(t, manager.Options{Namespaces: []string{"apps"}, RESTConfig: &rest.Config{Host: host, Dial: test.dial}}, mark("a", extension.Scope{}))
				began := time.Now()
				err := r.Start(t.Context())
				if err == nil || !strings.Contains(err.Error(), "no API server answers at "+host) || !strings.Contains(err.Error(), test.why) {
					t.Errorf("got %v, want %q", err, test.why)
				}
				if took := time.Since(began); took > 10*time.Second {
					t.Errorf("said so after %s", took)
				}
				time.Sleep(time.Minute) // until the connection is given up
			})
		})
	}
}

func TestAPortInUseIsReportedAndNothingRegistered(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	other, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	port := int32(other.Addr().(*net.TCPAddr).Port)
	r := newManager(t, manager.Options{Namespaces: []string{namespace}, Port: port}, mark("a", extension.Scope{}))
	if err := r.Start(t.Context()); err == nil || !strings.Contains(err.Error(), other.Addr().String()) {
		t.Errorf("got %v, want the address that is in use", err)
	}
	if _, err := clientset.AdmissionregistrationV1().MutatingWebhookConfigurations().Get(t.Context(), "admitkit."+namespace, metav1.GetOptions{}); err == nil {
		t.Error("a webhook that nobody serves was registered")
	}
}

func TestAFolderForRecordingsThatCannotBeWrittenIsNamed(t *testing.T) {
	t.Parallel()
	r := newManager(t, manager.Options{Namespaces: []string{newNamespace(t)}, Serving: manager.ServingOptions{RecordDir: os.DevNull + "/recordings"}}, mark("a", extension.Scope{}))
	if err := r.Start(t.Context()); err == nil || !strings.Contains(err.Error(), "Serving.RecordDir: mkdir "+os.DevNull) {
		t.Errorf("got %v, want the option RecordDir", err)
	}
}

func TestAHostOfAnotherMachineIsNamed(t *testing.T) {
	t.Parallel()
	r := newManager(t, manager.Options{Namespaces: []string{newNamespace(t)}, Host: "192.0.2.1"}, mark("a", extension.Scope{}))
	if err := r.Start(t.Context()); err == nil || !strings.Contains(err.Error(), "Host: ") || strings.Contains(err.Error(), "Port: ") {
		t.Errorf("got %v, want the option Host", err)
	}
}

func TestAnOwnNamespaceThatIsMissingIsNamed(t *testing.T) {
	t.Parallel()
	for name, run := range map[string]func(*running) error{
		"start":    func(r *running) error { return r.Start(t.Context()) },
		"register": func(r *running) error { return r.RegisterExtensions(t.Context()) },
	} {
		r := newManager(t, manager.Options{Namespaces: []string{newNamespace(t)}, WebhookNamespace: "nowhere"}, mark("a", extension.Scope{}))
		if err := run(r); err == nil || !strings.Contains(err.Error(), `WebhookNamespace: "nowhere" does not exist: create it`) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

func TestARightThatIsMissingIsReportedAtOnce(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	nobody, err := cluster.AddUser("nobody")
	if err != nil {
		t.Fatal(err)
	}
	drain := time.Hour // there is nothing to drain
	r := newManager(t, manager.Options{Namespaces: []string{namespace}, RESTConfig: nobody.Config, Serving: manager.ServingOptions{DrainPeriod: &drain}}, mark("a", extension.Scope{}))
	if err := r.Start(t.Context()); err == nil || !strings.Contains(err.Error(), "Secret "+namespace+"/"+secretName) || !strings.Contains(err.Error(), "forbidden") {
		t.Errorf("without a right to the Secret: %v", err)
	}

	secretsOnly, err := cluster.AddUser("secrets-only")
	if err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"create", "role", "secrets-only", "--verb=get,create,update", "--resource=secrets", "-n", namespace},
		{"create", "rolebinding", "secrets-only", "--role=secrets-only", "--user=secrets-only", "-n", namespace},
	} {
		if output, err := cluster.Kubectl(t.Context(), nil, args...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, output)
		}
	}
	r = newManager(t, manager.Options{Namespaces: []string{namespace}, RESTConfig: secretsOnly.Config, Serving: manager.ServingOptions{DrainPeriod: &drain}}, mark("a", extension.Scope{}))
	if err := r.Start(t.Context()); err == nil || !strings.Contains(err.Error(), "MutatingWebhookConfiguration admitkit."+namespace) || !strings.Contains(err.Error(), "forbidden") {
		t.Errorf("without a right to register: %v", err)
	}
	r = newManager(t, manager.Options{Namespaces: []string{namespace}, RESTConfig: nobody.Config, Serving: manager.ServingOptions{DrainPeriod: &drain}}, &recorder{})
	if err := r.Start(t.Context()); err == nil || !strings.Contains(err.Error(), "watching Pod: pods is forbidden") || !strings.Contains(err.Error(), "in the namespace \""+namespace) {
		t.Errorf("without a right to watch: %v", err)
	}
}

func TestTheManagerIsTheHostThatItsExtensionsSee(t *testing.T) {
	t.Parallel()
	log := zap.NewNop().Sugar()
	mgr, err := manager.New(manager.Options{OperatorFingerprint: "test", Namespaces: []string{"apps"}, RESTConfig: &rest.Config{Host: "https://127.0.0.1:1"}, Logger: log})
	if err != nil {
		t.Fatal(err)
	}
	if mgr.GetContext() != context.Background() || mgr.GetKubeManager() != nil || mgr.GetLogger() != log {
		t.Error("before the start: the context is that of the options, there is no kube manager, the logger is the given one")
	}
	config, err := mgr.GetKubeConnection()
	if err != nil || config.Host != "https://127.0.0.1:1" {
		t.Errorf("the connection is %v, %v", config, err)
	}
	config.Host = "changed"
	if again, _ := mgr.GetKubeConnection(); again.Host == "changed" {
		t.Error("a change to the connection reaches the manager")
	}
}
