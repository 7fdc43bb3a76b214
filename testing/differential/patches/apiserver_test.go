// Package patches compares the answers of admitkit's webhooks with the API server's
// own code: the mutating plugin of k8s.io/apiserver runs in the test, and calls a
// webhook of admitkit and one of controller-runtime for the same random Extension.
//
// patches_test.go has the patches of Extensions, responses_test.go all else that an
// Extension can answer.
package patches

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/conversion"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/mutating"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/request"
	"k8s.io/apiserver/pkg/authentication/user"
	webhookutil "k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
	ctrladmission "sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/internal/host"
	"github.com/admitkit/admitkit/webhook"
)

func TestMain(m *testing.M) {
	klog.LogToStderr(false)
	klog.SetOutput(io.Discard)
	ctrllog.SetLogger(logr.Discard())
	os.Exit(m.Run())
}

// hookName is the name of the webhook on both sides.
const hookName = "patches.admitkit.dev"

// apiServer is the mutating plugin of an API server that calls one webhook, in the
// same process.
type apiServer struct {
	plugin  *mutating.Plugin
	objects admission.ObjectInterfaces
}

func newAPIServer(t *testing.T, hook http.Handler, path string) *apiServer {
	t.Helper()
	plugin, err := mutating.NewMutatingWebhook(nil)
	if err != nil {
		t.Fatal(err)
	}
	url := "https://localhost" + path
	client := fake.NewClientset(
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "apps", Labels: map[string]string{corev1.LabelMetadataName: "apps"}}},
		&admissionregistrationv1.MutatingWebhookConfiguration{
			ObjectMeta: metav1.ObjectMeta{Name: "patches"},
			Webhooks: []admissionregistrationv1.MutatingWebhook{{
				Name: hookName, AdmissionReviewVersions: []string{"v1"},
				ClientConfig: admissionregistrationv1.WebhookClientConfig{URL: &url},
				Rules: []admissionregistrationv1.RuleWithOperations{{
					Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.OperationAll},
					Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}},
				}},
				FailurePolicy: new(admissionregistrationv1.Fail), SideEffects: new(admissionregistrationv1.SideEffectClassNone),
				MatchPolicy: new(admissionregistrationv1.Equivalent), TimeoutSeconds: new(int32(30)),
				NamespaceSelector: &metav1.LabelSelector{}, ObjectSelector: &metav1.LabelSelector{},
				ReinvocationPolicy: new(admissionregistrationv1.NeverReinvocationPolicy),
			}},
		})
	factory := informers.NewSharedInformerFactory(client, 0)
	plugin.SetExternalKubeClientSet(client)
	plugin.SetExternalKubeInformerFactory(factory)
	plugin.SetAuthenticationInfoResolverWrapper(func(webhookutil.AuthenticationInfoResolver) webhookutil.AuthenticationInfoResolver {
		return inProcess{hook}
	})
	if err := plugin.ValidateInitialization(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(func() { cancel(); factory.Shutdown() })
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())

	scheme := kruntime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	// An API server converts to and from types of its own.
	if err := scheme.AddConversionFunc((*corev1.Pod)(nil), (*corev1.Pod)(nil), func(from, to any, _ conversion.Scope) error {
		from.(*corev1.Pod).DeepCopyInto(to.(*corev1.Pod))
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return &apiServer{plugin, admission.NewObjectInterfacesFromScheme(scheme)}
}

// inProcess makes an API server call a handler instead of a server.
type inProcess struct{ handler http.Handler }

func (p inProcess) ClientConfigFor(string) (*rest.Config, error) {
	return &rest.Config{WrapTransport: func(http.RoundTripper) http.RoundTripper { return p }}, nil
}

func (p inProcess) ClientConfigForService(string, string, int) (*rest.Config, error) {
	return p.ClientConfigFor("")
}

func (p inProcess) RoundTrip(r *http.Request) (*http.Response, error) {
	recorder := httptest.NewRecorder()
	p.handler.ServeHTTP(recorder, r)
	if c := caseOf(r.Context()); c.code == 0 {
		c.code, c.body = recorder.Code, recorder.Body.Bytes()
	}
	response := recorder.Result()
	response.Request = r
	return response, nil
}

// decision is what an API server makes of an admission.
type decision struct {
	err      error
	object   string // as JSON
	warnings []string
}

// AddWarning makes a decision a recorder of warnings.
func (d *decision) AddWarning(_, text string) { d.warnings = append(d.warnings, text) }

// admit sends an admission through the plugin. As in an API server, a panic is an
// internal error.
func (s *apiServer) admit(c *testCase) (d decision) {
	defer func() {
		if reason := recover(); reason != nil {
			d.err = fmt.Errorf("panic: %v", reason)
		}
	}()
	pod := c.pod.DeepCopy()
	var object, old kruntime.Object = pod, nil
	switch c.operation {
	case admission.Delete:
		object, old = nil, pod
	case admission.Update:
		old = pod.DeepCopy()
	}
	attributes := admission.NewAttributesRecord(object, old, corev1.SchemeGroupVersion.WithKind("Pod"), "apps", pod.Name,
		corev1.SchemeGroupVersion.WithResource("pods"), "", c.operation, &metav1.CreateOptions{}, false, &user.DefaultInfo{Name: "ann"})
	ctx := warning.WithWarningRecorder(context.WithValue(context.Background(), caseKey{}, c), &d)
	if d.err = s.plugin.Admit(ctx, attributes, s.objects); d.err == nil && object != nil {
		d.object = encode(attributes.GetObject())
	}
	return d
}

func encode(obj any) string {
	text, err := json.Marshal(obj)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// testCase is a random admission, and what its handlers do and see.
type testCase struct {
	pod       *corev1.Pod
	operation admission.Operation
	// first and second are what Extensions answer, nil for an Extension that only
	// looks.
	first, second *ctrladmission.Response
	// seen is the Pod that the Extension after the first, and the one after the
	// second, saw.
	seen [2]string
	// code and body are the webhook's answer.
	code int
	body []byte
}

type caseKey struct{}

func caseOf(ctx context.Context) *testCase { return ctx.Value(caseKey{}).(*testCase) }

func answer(response *ctrladmission.Response) ctrladmission.Response {
	if response == nil {
		return ctrladmission.Allowed("")
	}
	own := *response
	own.Result = response.Result.DeepCopy() // controller-runtime writes to it
	return own
}

type firstExtension struct{}

func (firstExtension) Handle(ctx context.Context, _ extension.Manager, _ *corev1.Pod, _ ctrladmission.Request) ctrladmission.Response {
	return answer(caseOf(ctx).first)
}

type secondExtension struct{}

func (secondExtension) Handle(ctx context.Context, _ extension.Manager, pod *corev1.Pod, _ ctrladmission.Request) ctrladmission.Response {
	caseOf(ctx).seen[0] = encode(pod)
	return answer(caseOf(ctx).second)
}

type witness struct{}

func (witness) Mutate(ctx context.Context, pod *corev1.Pod, _ *extension.Request) error {
	caseOf(ctx).seen[1] = encode(pod)
	return nil
}

// admitkits returns an API server that calls admitkit.
func admitkits(t *testing.T) *apiServer {
	t.Helper()
	webhooks, err := webhook.Group([]*extension.Handler{
		host.HandlerOf(firstExtension{}, nil), host.HandlerOf(secondExtension{}, nil), extension.Mutating(witness{}, extension.Scope{}),
	}, webhook.Defaults{})
	if err != nil || len(webhooks) != 1 {
		t.Fatalf("%d webhooks, %v", len(webhooks), err)
	}
	return newAPIServer(t, webhooks[0].Handler(webhook.HandlerOptions{}), webhooks[0].Path())
}

// controllerRuntimes returns an API server that calls controller-runtime, which sends
// what the first Extension answers as it is.
func controllerRuntimes(t *testing.T) *apiServer {
	t.Helper()
	return newAPIServer(t, &ctrladmission.Webhook{Handler: ctrladmission.HandlerFunc(func(ctx context.Context, _ ctrladmission.Request) ctrladmission.Response {
		return answer(caseOf(ctx).first)
	})}, "/mutate")
}

// verified returns why an API server would not understand an answer.
func verified(c *testCase) (*request.AdmissionResponse, error) {
	var review admissionv1.AdmissionReview
	if err := json.Unmarshal(c.body, &review); err != nil {
		return nil, err
	}
	return request.VerifyAdmissionResponse(review.Response.UID, true, &review)
}

// casesOfOnePod is how many cases a Pod is used for.
const casesOfOnePod = 20

// run runs as many random cases as the form of the test has, on all processors, and
// prints the figures. compare returns how two decisions differ; "" if they do not.
func run(t *testing.T, figure string, long int, generate func(source, *corev1.Pod) func() *testCase, compare func(c, own *testCase, theirs, ours decision) string) {
	cases := long
	if testing.Short() {
		cases = 2000
	}
	admitkit, controllerRuntime := admitkits(t), controllerRuntimes(t)
	var pods, done, wrong, refused atomic.Int64
	one := func(seed int64, c *testCase) {
		own := *c
		theirs, ours := controllerRuntime.admit(c), admitkit.admit(&own)
		done.Add(1)
		if theirs.err != nil {
			refused.Add(1)
		}
		if difference := compare(c, &own, theirs, ours); difference != "" {
			wrong.Add(1)
			t.Errorf("seed %d: %s\n%s of %s\nthe Extension answers %s\nthe API server: %v %s\nadmitkit: HTTP %d, %v %s",
				seed, difference, c.operation, encode(c.pod), describe(c), theirs.err, theirs.object, own.code, ours.err, ours.object)
		}
	}
	var workers sync.WaitGroup
	began := time.Now()
	for range runtime.GOMAXPROCS(0) {
		workers.Go(func() {
			for wrong.Load() < 10 {
				seed := pods.Add(1)
				if seed*casesOfOnePod > int64(cases) {
					return
				}
				s := source{rand.New(rand.NewSource(seed))}
				next := generate(s, s.pod())
				for range casesOfOnePod {
					one(seed, next())
				}
			}
		})
	}
	workers.Wait()
	t.Logf("%d cases in %s, %.0f a second; the API server refuses %d", done.Load(), time.Since(began), float64(done.Load())/time.Since(began).Seconds(), refused.Load())
	if share := float64(refused.Load()) / float64(done.Load()); share < .1 || share > .9 {
		t.Errorf("of the cases %.0f %% are refused, which tests little", 100*share)
	}
	fmt.Printf("FIGURE engine.diff_cases.%s=%d cases\n", figure, done.Load())
	fmt.Printf("FIGURE engine.wrong.%s=%d cases\n", figure, wrong.Load())
}

func describe(c *testCase) string {
	text := ""
	for _, r := range []*ctrladmission.Response{c.first, c.second} {
		if r != nil {
			text += fmt.Sprintf("%s with the patch %s and %+v; ", encode(r.AdmissionResponse), r.Patch, r.Patches)
		}
	}
	return text
}
