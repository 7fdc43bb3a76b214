package alerts

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/testing/controlplane"
)

var (
	cluster *controlplane.ControlPlane
	admin   client.WithWatch
)

// programs is the namespace of the programs themselves.
const programs = "programs"

func TestMain(m *testing.M) {
	if text := os.Getenv(programVariable); text != "" {
		runProgram(text)
		return
	}
	os.Exit(testkit.Main(m, controlplane.Options{CRDPaths: []string{"../../config/crd", "../../config/crd/metacontroller"}}, func(c *controlplane.ControlPlane) (err error) {
		cluster = c
		if admin, err = testkit.NewClient(c.Admin(), testkit.Scheme(v1alpha1.AddToScheme)); err != nil {
			return err
		}
		return admin.Create(context.Background(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: programs}})
	}))
}

// scene is a fault, or several, and the alerts that must fire because of it. Others may
// fire too: a fault seldom comes alone.
type scene struct {
	name  string
	fires []string
	// sick says that there is no scrape before the fault.
	sick bool
	play func(*stage)
}

var scenes = []scene{
	{
		name: "an extension makes every mistake",
		fires: []string{
			"AdmissionPanics", "AdmissionsFail", "AdmissionsSlow", "AdmissionsRefused", "WebhookConnectionsClosed",
			"WebhookConfigurationsRewritten", "WatcherPanics", "WatcherBehind",
		},
		play: mistakes,
	},
	{name: "requests are slow and conversions fail", fires: []string{"AdmissionsNearLimit", "ConversionsFail"}, play: busy},
	{name: "the API server presents no certificate", fires: []string{"WebhookClientsRefused"}, play: strangers},
	{name: "sessions while the collector denies us", fires: []string{"AuditEndpointDeniesUs", "AuditRecordLost"}, play: denied},
	{name: "the API server does not reach the webhook", fires: []string{"WebhookUpkeepFails", "WebhookScopeUnserved"}, sick: true, play: unreachable},
	{name: "nobody renews a certificate", fires: []string{"CertificateNotRenewed", "CertificateExpired"}, play: expiring},
	{name: "the process that ends access is gone", fires: []string{"AccessUnattended", "AccessEndedLate"}, play: unattended},
	{
		name: "sessions while the sink is down",
		fires: []string{
			"AuditRecordLost", "AuditEndpointDeniesUs", "AuditSinkSlow", "AuditQueueLong", "AuditTampering", "AuditFlood", "AuditBreakGlass", "AuditPodNotMarked",
			"AuditRetentionLate",
		},
		play: sessions,
	},
	{name: "sessions while a Closed sink is down", fires: []string{"AuditSessionsRefused"}, play: refusals},
	{name: "sessions while the endpoint behind the queue is down", fires: []string{"AuditUndelivered"}, play: undelivered("audit-queue", "admitkit_cloudevents_undelivered")},
	{
		name: "sessions are not recorded, and then their storage is gone",
		fires: []string{
			"SessionStorageNotOpen", "SessionStorageFails", "SessionNotRecorded", "SessionRecorderMisbehaves", "SessionPodNotEvicted", "SessionNeverBegan", "SessionUnreported",
		},
		play: unrecorded,
	},
	{
		name:  "runs while nobody keeps records and GitHub is down",
		fires: []string{"SandboxCredentialNotRevoked", "SandboxBrokerFails", "SandboxPolicyRestored", "SandboxRecordLost"},
		play:  unattendedRuns,
	},
	{name: "a hook is down", fires: []string{"HookUnconverged"}, play: hookDown},
	{name: "sessions while the collector behind the queue is down", fires: []string{"AuditUndelivered"}, play: undelivered("audit-otlp", "admitkit_otlp_undelivered")},
}

func TestEachAlertFiresOnWhatAProcessSaidAndOnlyThen(t *testing.T) {
	promtool(t)
	for _, scene := range scenes {
		t.Run(scene.name, func(t *testing.T) {
			t.Parallel()
			s := &stage{T: t, namespace: testkit.Namespace(t, admin)}
			scene.play(s)
			if !scene.sick {
				beganAtZero(t, s.scrapes, scene.fires)
			}
			fires(t, s.scrapes, !scene.sick, strings.Join(scene.fires, "|"), scene.fires...)
			testkit.Figure("alerts.scrapes", float64(len(s.scrapes)), "scrapes of: "+scene.name)
		})
	}
}

// beganAtZero checks that each counter that a rule looks at for an increase, and that has
// increased, was there before: Prometheus would not have seen it otherwise.
func beganAtZero(t *testing.T, scrapes []scrape, alerts []string) {
	t.Helper()
	watched := map[string]bool{}
	for _, r := range rules(t) {
		for _, alert := range alerts {
			if r.Alert != alert {
				continue
			}
			for _, match := range regexp.MustCompile(`increase\((admitkit_[a-z_]+)`).FindAllStringSubmatch(r.Expr, -1) {
				watched[match[1]] = true
			}
		}
	}
	for name := range scrapes[len(scrapes)-1].values {
		metric, _, _ := strings.Cut(name, "{")
		if _, began := scrapes[0].values[name]; watched[metric] && !began {
			t.Errorf("%s was not there when the process began", name)
		}
	}
}

// TestACounterThatBeginsLateIsSeen is what was wrong before: 500 records were lost before
// the first scrape, or a series began with them.
func TestACounterThatBeginsLateIsSeen(t *testing.T) {
	lost := scrape{time.Now(), map[string]string{`admitkit_audit_lost_total{sink="event"}`: "500"}}
	fires(t, []scrape{{time.Now(), nil}, lost}, true, "AuditRecordLost", "AuditRecordLost")
	fires(t, []scrape{{time.Now(), map[string]string{`admitkit_audit_lost_total{sink="event"}`: "0"}}}, true, ".*")
}

func mistakes(s *stage) {
	s.start(settings{Extensions: "author"}, "--max-connections", "16", "--max-body-bytes", "65536", "--watcher-queue-length", "1")
	s.create("well")
	s.until(`admitkit_admission_requests_total\{.*result="allowed".*operation="CREATE"|admitkit_admission_requests_total\{.*operation="CREATE".*result="allowed"`)
	s.scrape()

	var slow sync.WaitGroup
	for _, name := range []string{"slow-1", "slow-2"} {
		slow.Go(func() { s.create(name) })
	}
	defer slow.Wait()
	s.create("panics")
	for i := range 10 {
		s.create(fmt.Sprint("fails-", i))
	}
	large := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "large"}, Data: map[string]string{"a": strings.Repeat("x", 100_000)}}
	if err := admin.Create(s.Context(), large); err != nil {
		s.Fatal(err)
	}
	s.until(`admitkit_webhook_refused_total\{reason="too_large"`)

	s.create("watcher-panics")
	s.until(`admitkit_watcher_panics_total`)
	s.create("watcher-slow")
	for i := range 50 {
		s.create(fmt.Sprint("many-", i))
	}
	s.until(`admitkit_watcher_dropped_events_total`)

	configuration := &admissionregistrationv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: s.namespace + "." + programs}}
	for range 4 { // the alert wants more than three; before each repair the program waits twice as long
		if err := admin.Delete(s.Context(), configuration); err != nil {
			s.Fatal(err)
		}
		testkit.Within(s, 3*time.Minute, "the configuration is there again", func(ctx context.Context) bool {
			return admin.Get(ctx, client.ObjectKeyFromObject(configuration), configuration) == nil
		})
		configuration.ResourceVersion, configuration.UID = "", ""
	}

	var held []net.Conn
	for range 64 {
		conn, err := (&net.Dialer{Timeout: 10 * time.Second}).DialContext(s.Context(), "tcp", s.port)
		if err != nil {
			s.Fatal(err)
		}
		held = append(held, conn)
	}
	s.until(`admitkit_webhook_connections_closed_total`)
	for _, conn := range held {
		_ = conn.Close()
	}
	slow.Wait()
	s.scrape()
}

func busy(s *stage) {
	text, err := os.ReadFile("../../../examples/alarm/crd/alarm.example.com_alarms.yaml")
	if err != nil {
		s.Fatal(err)
	}
	if err := testkit.Apply(s.Context(), cluster, string(text)); err != nil {
		s.Fatal(err)
	}
	s.start(settings{Extensions: "converter"}, "--max-in-flight", "2")
	s.scrape()
	path := "/apis/alarm.example.com/v1/namespaces/" + s.namespace + "/alarms"
	object := `{"apiVersion":"alarm.example.com/v1","kind":"Alarm","metadata":{"name":"a"},"spec":{"time":"07:00","text":"up"}}`
	testkit.Within(s, time.Minute, "the API server asks the converter", func(context.Context) bool {
		return strings.Contains(testkit.Send(s, cluster.Admin(), "POST", path, testkit.AsJSON, object).String(), "it cannot be said")
	})
	var wait sync.WaitGroup
	defer wait.Wait()
	for i := range 2 {
		wait.Go(func() { s.create(fmt.Sprint("slow-", i)) })
	}
	testkit.Within(s, time.Minute, "two requests are slow", func(context.Context) bool {
		for name, value := range s.now() {
			if strings.HasPrefix(name, "admitkit_webhook_in_flight_requests{") && value == "2" {
				return true
			}
		}
		return false
	})
	s.scrape()
}

func strangers(s *stage) {
	dir := s.TempDir()
	testkit.NewClientCA(s).Write(s, filepath.Join(dir, "ca.crt"))
	s.start(settings{Extensions: "author"}, "--client-ca", filepath.Join(dir, "ca.crt"), "--probe=false")
	s.scrape()
	s.create("a") // its failure policy is Ignore
	s.until(`admitkit_webhook_clients_refused_total\{reason="certificate"\}`)
	s.scrape()
}

func denied(s *stage) {
	e := newEndpoint(s)
	s.start(settings{Extensions: "audit-otlp", Endpoint: e.URL})
	s.scrape()
	e.status.Store(http.StatusUnauthorized)
	s.exec("web")
	s.until(`admitkit_audit_lost_total\{sink="otlp"\}`)
	s.scrape()
}

func unreachable(s *stage) {
	s.launch(settings{Extensions: "unserved"}, "--advertise-host", "127.0.0.77")
	for range 5 {
		last := map[string]string{}
		if n := len(s.scrapes); n > 0 {
			last = s.scrapes[n-1].values
		}
		const series = `admitkit_last_error_timestamp_seconds{part="probe"}`
		testkit.Within(s, 3*time.Minute, "another probe fails", func(ctx context.Context) bool {
			values, err := read(ctx, s.metrics)
			return err == nil && values[series] != "" && values[series] != last[series]
		})
		s.scrape()
	}
	testkit.Within(s, 3*time.Minute, "the resource is missed", func(context.Context) bool {
		return s.now()[`admitkit_scope_unserved_resources{resource="nobody.example.com/widgets",webhook="unserved"}`] == "1"
	})
	s.scrape()
}

// certificate writes one that ends at a time, and its own authority.
func certificate(t testing.TB, dir string, end time.Time) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(end.UnixNano()), Subject: pkix.Name{CommonName: "alerts"}, NotBefore: time.Now().Add(-100 * time.Hour), NotAfter: end,
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	file(t, dir, "ca.crt", cert)
	file(t, dir, "tls.crt", cert)
	file(t, dir, "tls.key", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8}))
}

func expiring(s *stage) {
	dir := s.TempDir()
	certificate(s, dir, time.Now().Add(300*time.Hour))
	s.start(settings{Extensions: "author"}, "--certificate-dir", dir)
	s.scrape()
	// A busy process reads it only when it has expired. Then another one lasts longer.
	var end time.Time
	leaf := `admitkit_certificate_expiry_timestamp_seconds{certificate="leaf",source="` + dir + `"}`
	for lasts, served := 5*time.Second, false; !served; lasts *= 2 {
		end = time.Now().Add(lasts)
		certificate(s, dir, end)
		err := testkit.Poll(s.Context(), lasts, "the process serves the other certificate", func(ctx context.Context) error {
			testkit.IsReady(ctx, s.health) // which looks at the certificate
			if s.now()[leaf] == s.scrapes[0].values[leaf] {
				return errors.New("it serves the first one")
			}
			return nil
		})
		if served = err == nil; !served && lasts > time.Minute {
			s.Fatal(err)
		}
	}
	s.scrape()
	testkit.Within(s, 2*time.Minute, "it has expired", func(context.Context) bool { return time.Now().After(end) })
	s.scrape()
}

func unattended(s *stage) {
	s.start(settings{Extensions: "access"})
	s.scrape()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "web"}, Spec: corev1.PodSpec{
		NodeName: "a", Containers: []corev1.Container{{Name: "web", Image: "example.com/web:1"}},
	}}
	config := v1alpha1.AccessConfig{AllowedGroups: []string{"system:masters"}, DefaultDuration: "10s", MaxDuration: "1h"}
	template := &v1alpha1.ExecAccessTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "web"}, Spec: v1alpha1.ExecAccessTemplateSpec{
		AccessConfig: config, ControllerTargetRef: v1alpha1.ControllerTargetRef{APIVersion: "v1", Kind: "Pod", Name: "web"},
	}}
	testkit.Create(s, admin, pod)
	pod.Status = corev1.PodStatus{
		Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
		ContainerStatuses: []corev1.ContainerStatus{{Name: "web", Ready: true, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}}}},
	}
	if err := admin.Status().Update(s.Context(), pod); err != nil {
		s.Fatal(err)
	}
	request := &v1alpha1.ExecAccessRequest{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "me"}}
	request.Spec.TemplateName = "web"
	testkit.Create(s, admin, template, request)
	s.until(`admitkit_access_grants`)
	s.scrape()
	s.kill()
	for range 8 {
		s.scrape() // nobody answers
	}
	end := request.CreationTimestamp.Add(10 * time.Second)
	testkit.Within(s, 2*time.Minute, "the end is long past", func(context.Context) bool { return time.Since(end) > 12*time.Second })
	s.start(settings{Extensions: "access"})
	s.until(`admitkit_access_expiry_lateness_seconds_count`)
	s.scrape()
}

func hookDown(s *stage) {
	e := newEndpoint(s)
	s.start(settings{Extensions: "hook"})
	s.scrape()
	e.status.Store(http.StatusServiceUnavailable)
	controller := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "metacontroller.k8s.io/v1alpha1", "kind": "DecoratorController", "metadata": map[string]any{"name": s.namespace},
		"spec": map[string]any{
			"resources": []any{map[string]any{
				"apiVersion": "v1", "resource": "configmaps", "labelSelector": map[string]any{"matchLabels": map[string]any{"test": s.namespace}},
			}},
			"hooks": map[string]any{"sync": map[string]any{"webhook": map[string]any{"url": e.URL}}},
		},
	}}
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "decorated", Labels: map[string]string{"test": s.namespace}}}
	testkit.Create(s, admin, controller, object)
	s.until(`admitkit_hook_unconverged`)
	s.scrape()
}

// endpoint gets CloudEvents, and answers as it is told.
type endpoint struct {
	*httptest.Server
	status atomic.Int64
	delay  atomic.Int64
}

func newEndpoint(t testing.TB) *endpoint {
	e := &endpoint{}
	e.status.Store(http.StatusOK)
	end := make(chan struct{})
	e.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		select {
		case <-time.After(time.Duration(e.delay.Load())):
		case <-end:
		}
		w.WriteHeader(int(e.status.Load()))
	}))
	t.Cleanup(func() {
		close(end)
		e.Close()
	})
	return e
}

func sessions(s *stage) {
	e := newEndpoint(s)
	s.start(settings{Extensions: "audit", Endpoint: e.URL})
	s.scrape()
	e.status.Store(http.StatusServiceUnavailable)
	s.exec("web")
	first := time.Now()
	s.until(`admitkit_audit_lost_total\{sink="cloudevents"\}`)
	e.status.Store(http.StatusUnauthorized)
	s.exec("web")
	s.until(`admitkit_cloudevents_failed_total\{reason="unauthorized"`)
	answer := testkit.Send(s, cluster.Admin(), "DELETE", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/auditevents.admitkit.dev", testkit.AsJSON, "")
	if answer.Code != http.StatusForbidden {
		s.Fatalf("deleting the CRD: %s", answer)
	}
	e.status.Store(http.StatusOK)
	e.delay.Store(int64(time.Hour))
	sent := 0
	testkit.Within(s, 3*time.Minute, "more than 500 records wait", func(context.Context) bool {
		var wait sync.WaitGroup
		for range 64 { // more at a time than the sink gives up on meanwhile
			sent++
			pod := fmt.Sprint("web-", sent)
			wait.Go(func() { s.exec(pod) })
		}
		wait.Wait()
		return s.count(`admitkit_audit_queue_depth{sink="cloudevents"}`) > 500
	})
	s.until(`admitkit_audit_folded_total`)
	for range 6 { // for as long as the alert wants it
		s.scrape()
	}

	s.kill()
	// The first record must end a minute before it is deleted, of which all that has happened took a part. The clocks of the
	// manager and of the API server may be less than a minute apart.
	time.Sleep(time.Until(first.Add(15 * time.Second)))
	e.delay.Store(0)
	s.start(settings{Extensions: "audit", Endpoint: e.URL, Retention: time.Second, Ahead: 50 * time.Second})
	testkit.Within(s, 3*time.Minute, "an AuditEvent is deleted a minute late", func(context.Context) bool {
		return s.count(`admitkit_audit_retention_lateness_seconds_count`) > s.count(`admitkit_audit_retention_lateness_seconds_bucket{le="60"}`)
	})
	s.scrape()
}

func refusals(s *stage) {
	e := newEndpoint(s)
	s.start(settings{Extensions: "audit-closed", Endpoint: e.URL})
	s.exec("web")
	s.until(`admitkit_audit_records_total`)
	s.scrape()
	e.status.Store(http.StatusServiceUnavailable)
	if answer := s.exec("web"); answer.Code != http.StatusForbidden {
		s.Fatalf("a session without a record: %s", answer)
	}
	s.until(`admitkit_audit_refused_total`)
	s.scrape()
}

func undelivered(extensions, metric string) func(*stage) {
	return func(s *stage) {
		e := newEndpoint(s)
		s.start(settings{Extensions: extensions, Endpoint: e.URL, Queue: s.TempDir()})
		s.exec("web")
		s.until(`admitkit_audit_records_total`)
		s.scrape()
		e.status.Store(http.StatusServiceUnavailable)
		for range 120 {
			s.exec("web")
		}
		testkit.Within(s, 3*time.Minute, "more than 100 records wait", func(context.Context) bool {
			return s.count(metric+`{sender="audit"}`) > 100
		})
		s.scrape()
	}
}
