package broker_test

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/internal/freeport"
	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/manager"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/audit"
	"github.com/admitkit/admitkit/operator/audit/sink/auditevent"
	"github.com/admitkit/admitkit/operator/egress"
	"github.com/admitkit/admitkit/operator/internal/sandbox/broker"
	"github.com/admitkit/admitkit/operator/internal/sandbox/broker/protocol"
	"github.com/admitkit/admitkit/operator/sandbox"
	"github.com/admitkit/admitkit/testing/controlplane"
	"github.com/admitkit/admitkit/testing/managertest"
)

// processVariable has the options of a test binary that runs as a broker, or as the
// controller of runs.
const processVariable = "BROKER_TEST_PROCESS"

// processOptions are those of a process that can be killed: a broker, or else the
// controller that asks it.
type processOptions struct {
	KubeConfig, Namespace, WebhookNamespace string
	Port                                    int32
	Broker                                  *broker.Options
	Asks                                    sandbox.BrokerOptions
}

// runProcess returns if it cannot begin. One that ends because the API server is not there is
// started again, as the kubelet does.
func runProcess(text string) int {
	var o processOptions
	err := json.Unmarshal([]byte(text), &o)
	if err == nil {
		fmt.Fprintln(os.Stderr, "it ended, and begins again:", o.run())
		time.Sleep(time.Second)
		err = syscall.Exec(os.Args[0], os.Args, os.Environ())
	}
	fmt.Fprintln(os.Stderr, err)
	return 1
}

func (o *processOptions) run() error {
	mgr, err := manager.New(manager.Options{
		OperatorFingerprint: "faults", Namespaces: []string{o.Namespace}, WebhookNamespace: o.WebhookNamespace, Host: "127.0.0.1", Port: o.Port, KubeConfig: o.KubeConfig,
		RegisterWebHook: new(bool), Serving: manager.ServingOptions{DrainPeriod: new(time.Duration)},
	})
	if err != nil {
		return err
	}
	if o.Broker != nil {
		o.Broker.GitHubTransport = &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
		err = errors.Join(
			mgr.AddExtension(audit.New(audit.Options{Sinks: []audit.SinkOptions{{Sink: auditevent.New(auditevent.Options{FoldAfter: -1}), FailurePolicy: audit.Closed}}})),
			mgr.AddExtension(broker.New(*o.Broker)))
	} else {
		err = mgr.AddExtension(sandbox.New(sandbox.Options{
			Broker: o.Asks, Proxy: sandbox.ProxyOptions{Image: "example.com/sandbox:1"}, Egress: egress.Options{Mode: egress.ModeOn, PodCIDRs: []string{"10.244.0.0/16"}, ServiceCIDRs: []string{"10.96.0.0/12"}},
		}))
	}
	if err != nil {
		return err
	}
	return mgr.Reconcile(context.Background())
}

// Nothing leaks while the broker, the API server and the controller of runs are killed in
// turn, in the middle of issues and revokes. Each run has a credential in its container,
// which the controller asks for, and one that its proxy asks for. GitHub keeps the book.
func TestNoLeaseLeaksUnderFaults(t *testing.T) {
	t.Parallel()
	f := newFaulty(t)
	many := testkit.Long(500, 8)
	stop := f.steal()
	f.load(many/2, testkit.Long(8, 4))
	leaked := 0
	settled := testkit.Poll(t.Context(), 3*time.Minute, "what is live waits for its own end", func(ctx context.Context) error {
		count, err := f.leaked(ctx)
		if err != nil {
			return err
		}
		if leaked = count; leaked > 0 {
			return fmt.Errorf("%d are not", leaked)
		}
		return f.ended(ctx)
	})
	if err := errors.Join(settled, stop()); err != nil {
		t.Error(err)
	}
	early, refused := 0, 0
	for _, c := range f.delivered {
		if c.early {
			early++
		}
		if c.refused {
			refused++
		}
	}
	testkit.Figure("lease.faults", float64(f.faults), "count")
	testkit.Figure("lease.issued", float64(len(f.delivered)), "count")
	testkit.Figure("lease.leaked", float64(leaked), "count")
	testkit.Figure("lease.used_after_revoke", float64(early), "count")
	testkit.Figure("lease.runs_deleted_unaccounted", float64(f.unaccounted), "count")
	if len(f.delivered) != many || refused != many || f.gone != many/2 {
		t.Errorf("of %d credentials, %d were issued, and GitHub refuses %d; of %d runs, %d are gone", many, len(f.delivered), refused, many/2, f.gone)
	}
	if leaked > 0 || early > 0 || f.unaccounted > 0 {
		t.Errorf("%d leaked, GitHub took %d after their lease was gone, and %d runs are gone that have one nobody accounts for", leaked, early, f.unaccounted)
	}
}

// faulty is a world of its own, in which everything but GitHub is killed.
type faulty struct {
	*world
	t          *testing.T
	plane      *controlplane.ControlPlane
	admin      client.WithWatch
	hub        *github
	controller processOptions
	// processes are those that run now.
	processes map[string]*testkit.Process
	faults    int

	mu        sync.Mutex
	delivered []*delivery
	// gone are the runs whose object is gone, and unaccounted those of them that had
	// a credential then of which the broker knows nothing.
	gone, unaccounted int
}

// delivery is a credential that a run was given. Only the thief writes early and refused.
type delivery struct {
	token, lease string
	// early says that GitHub took it after its lease was gone, and refused that it did not.
	early, refused bool
}

const inContainer, byProxy = "TOKEN", "git"

func newFaulty(t *testing.T) *faulty {
	f := &faulty{t: t, hub: newGitHub(t), processes: map[string]*testkit.Process{}}
	f.hub.slow, f.hub.shaky = 50*time.Millisecond, 4
	f.plane = controlplane.Run(t, controlplane.Options{CRDPaths: []string{"../../../config/crd"}, ControllerManager: true})
	f.admin = testkit.Client(t, f.plane.Admin(), scheme)
	f.world = &world{Installation: &managertest.Installation{Namespace: testkit.Namespace(t, f.admin), WebhookNamespace: testkit.ManagerNamespace(t, f.admin)}}
	var err error
	if f.kube, err = kubernetes.NewForConfig(f.plane.Config()); err != nil {
		t.Fatal(err)
	}
	own, account, port := testkit.ManagerNamespace(t, f.admin), "sandbox-reconciler", int32(6443)
	user, err := testkit.ServiceAccount(f.plane, own, account)
	if err != nil {
		t.Fatal(err)
	}
	root := sandbox.RootSecret()
	root.Namespace = own
	testkit.Create(t, f.admin, root, secret(f.Namespace, "app", map[string]string{"key": f.hub.pem()}),
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: own, Name: account}},
		&rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "faults"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
			Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user.Name}},
		},
		&discoveryv1.EndpointSlice{ // as the API server of a cluster makes it
			ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: "kubernetes-ipv4", Labels: map[string]string{discoveryv1.LabelServiceName: "kubernetes"}},
			AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Port: &port}}, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"192.0.2.1"}}},
		})
	listen := freeport.For(t)
	f.options = broker.Options{
		Address: fmt.Sprintf("127.0.0.1:%d", listen), Controllers: []string{user.Name}, GitHubURL: f.hub.URL, SourceConnections: sourceConnections,
	}
	f.options.CertFile, f.options.KeyFile, f.ca = certificate(t)
	f.controller = processOptions{KubeConfig: user.KubeConfig, WebhookNamespace: own, Asks: sandbox.BrokerOptions{
		Namespace: f.WebhookNamespace, URL: fmt.Sprintf("https://localhost:%d", listen), CAFile: f.ca, ServiceAccount: account,
	}}
	f.startBroker()
	f.start("controller", f.controller)
	return f
}

// start runs a process in place of the one that was killed.
func (f *faulty) start(name string, o processOptions) {
	f.t.Helper()
	o.Namespace, o.Port = f.Namespace, freeport.For(f.t)
	f.processes[name] = testkit.RunAgain(f.t, processVariable, o)
}

func (f *faulty) startBroker() {
	f.t.Helper()
	f.start("broker", processOptions{KubeConfig: f.plane.Admin().KubeConfig, WebhookNamespace: f.WebhookNamespace, Broker: &f.options})
	f.awaitServer(f.t)
}

// fault kills one of the three, and starts it again: at the worst moment, when GitHub has made a token and the broker does
// not know it yet.
func (f *faulty) fault() {
	select {
	case <-f.hub.issuing:
	case <-time.After(5 * time.Second): // every run has what it needs
	}
	switch f.faults++; f.faults % 3 {
	case 0:
		if err := f.plane.RestartAPIServer(f.t.Context()); err != nil {
			f.t.Error(err)
		}
	case 1:
		f.processes["broker"].Kill()
		f.startBroker()
	case 2:
		f.processes["controller"].Kill()
		f.start("controller", f.controller)
	}
}

// load has workers bring runs from their beginning to their end, and kills meanwhile.
func (f *faulty) load(runs, workers int) {
	var group sync.WaitGroup
	next := make(chan int)
	for range workers {
		group.Go(func() {
			for n := range next {
				f.one(n)
			}
		})
	}
	wanted := testkit.Long(30, 3) // one of each
	for n := range runs {
		next <- n
		for f.faults < wanted*(n+1)/runs {
			f.fault()
		}
	}
	close(next)
	group.Wait()
}

// one has a run, its credentials and its end. Everything is repeated until it succeeds, as
// whoever uses the API would.
func (f *faulty) one(n int) {
	t, ctx := f.t, f.t.Context()
	objects := f.objects(fmt.Sprintf("run-%d", n))
	for _, object := range objects {
		again(t, func() error {
			err := f.admin.Create(ctx, object)
			if apierrors.IsAlreadyExists(err) { // by a call whose answer was lost
				err = f.admin.Get(ctx, client.ObjectKeyFromObject(object), object)
			}
			return err
		})
	}
	run := objects[len(objects)-1].(*v1alpha1.SandboxRun)
	pod := f.takeFromContainer(run)
	proxy := f.takeByProxy(pod)
	switch n % 4 { // else it is deleted while it runs
	case 0:
		f.become(run, v1alpha1.SandboxSucceeded, func() error {
			return f.admin.Status().Patch(ctx, pod.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(`{"status":{"phase":"Succeeded"}}`)))
		})
	case 1:
		f.become(run, v1alpha1.SandboxCancelled, func() error {
			return f.admin.Patch(ctx, run.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(`{"spec":{"cancelled":true}}`)))
		})
	case 2:
		again(t, func() error {
			_, err := proxy.Revoke(ctx, protocol.RevokeRequest{})
			return err
		})
	}
	again(t, func() error { return client.IgnoreNotFound(f.admin.Delete(ctx, run.DeepCopy())) })
	again(t, func() error {
		err := f.admin.Get(ctx, client.ObjectKeyFromObject(run), run)
		if err == nil {
			return errors.New("the run is still there")
		}
		return client.IgnoreNotFound(err)
	})
	again(t, func() error { return f.account(ctx, run) })
	for _, object := range objects {
		again(t, func() error { return client.IgnoreNotFound(f.admin.Delete(ctx, object)) })
	}
}

// objects are a run, the last, and what it needs: its credentials name it to GitHub as a
// repository, so that GitHub's book says whose each is.
func (f *faulty) objects(name string) []client.Object {
	meta := metav1.ObjectMeta{Namespace: f.Namespace, Name: name}
	template := &v1alpha1.SandboxRunTemplate{ObjectMeta: meta, Spec: v1alpha1.SandboxRunTemplateSpec{Image: "example.com/work:1", Requires: &v1alpha1.SandboxRequires{Credentials: []string{inContainer}}}}
	inside, outside := f.hub.grant(inContainer), f.hub.grant(byProxy)
	inside.Delivery = v1alpha1.CredentialDelivery{InContainer: &v1alpha1.InContainer{Accepted: true, Reason: why}}
	inside.GitHubApp.Repositories, outside.GitHubApp.Repositories = []string{name}, []string{name}
	granted := policy(f.Namespace, name, func(s *v1alpha1.BrokerPolicySpec) {
		s.AppliesToTemplates, s.Grants.Credentials = []string{name}, []v1alpha1.CredentialGrant{inside, outside}
	})
	return []client.Object{template, granted, &v1alpha1.SandboxRun{ObjectMeta: meta, Spec: v1alpha1.SandboxRunSpec{TemplateRef: v1alpha1.SandboxRunTemplateRef{Name: name}, Prompt: "work"}}}
}

// takeFromContainer returns the Pod of a run when it has one, and what its container is given.
func (f *faulty) takeFromContainer(run *v1alpha1.SandboxRun) *corev1.Pod {
	pod, ctx := &corev1.Pod{}, f.t.Context()
	again(f.t, func() error {
		if err := f.admin.Get(ctx, client.ObjectKeyFromObject(run), run); err != nil {
			return err
		}
		if run.Status.PodName == "" || len(run.Status.Credentials) != 1 {
			return fmt.Errorf("SandboxRun %s is %s: %+v", run.Name, run.Status.Phase, run.Status.Conditions)
		}
		given := &corev1.Secret{}
		if err := errors.Join(
			f.admin.Get(ctx, client.ObjectKey{Namespace: f.Namespace, Name: run.Status.PodName}, pod),
			f.admin.Get(ctx, client.ObjectKey{Namespace: f.Namespace, Name: "sandbox-" + run.Name + "-credentials"}, given)); err != nil {
			return err
		}
		f.take(string(given.Data[inContainer]), run.Status.Credentials[0].Lease)
		return nil
	})
	return pod
}

// takeByProxy asks the broker as the proxy in a Pod does.
func (f *faulty) takeByProxy(pod *corev1.Pod) *protocol.Client {
	bearer := ""
	again(f.t, func() (err error) {
		bearer, err = f.tryToken(&aRun{pod: pod})
		return err
	})
	proxy := f.ask(f.t, bearer)
	again(f.t, func() error {
		issued, err := proxy.Issue(f.t.Context(), protocol.IssueRequest{Name: byProxy})
		if err == nil {
			f.take(strings.TrimPrefix(issued.Header.Value, "Bearer "), issued.Lease)
		}
		return err
	})
	return proxy
}

func (f *faulty) take(token, lease string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.delivered = append(f.delivered, &delivery{token: token, lease: lease})
}

// become waits until a run has a phase, because of what do does.
func (f *faulty) become(run *v1alpha1.SandboxRun, phase v1alpha1.SandboxPhase, do func() error) {
	again(f.t, do)
	again(f.t, func() error {
		err := f.admin.Get(f.t.Context(), client.ObjectKeyFromObject(run), run)
		if err == nil && run.Status.Phase != phase {
			err = fmt.Errorf("SandboxRun %s is %s", run.Name, run.Status.Phase)
		}
		return err
	})
}

// again repeats what fails while something is down.
func again(t *testing.T, do func() error) {
	t.Helper()
	if err := testkit.Poll(t.Context(), 2*time.Minute, "it succeeds", func(context.Context) error { return do() }); err != nil {
		t.Error(err)
	}
}

// queue is what the broker knows: the names of its leases, by the run, and which of these it
// could revoke, by the token.
type queue struct {
	leases  map[string][]string
	handles map[string]string
}

func (f *faulty) queue(ctx context.Context) (*queue, error) {
	var leases v1alpha1.CredentialLeaseList
	var secrets corev1.SecretList
	// In this order: a token whose handle is gone meanwhile has been revoked.
	if err := errors.Join(f.admin.List(ctx, &leases, client.InNamespace(f.WebhookNamespace)), f.admin.List(ctx, &secrets, client.InNamespace(f.WebhookNamespace))); err != nil {
		return nil, err
	}
	q := &queue{leases: map[string][]string{}, handles: map[string]string{}}
	for i := range leases.Items {
		run := leases.Items[i].Spec.Run.Name
		q.leases[run] = append(q.leases[run], leases.Items[i].Name)
	}
	for i := range secrets.Items {
		if handle, ok := secrets.Items[i].Data["handle"]; ok {
			q.handles[secrets.Items[i].Name] = string(handle)
		}
	}
	return q, nil
}

// unknown counts the tokens of a run for which no lease stands. One that the broker was about to
// store when it was killed has a lease without a handle.
func (q *queue) unknown(run string, tokens []string) (count int) {
	open, stored := 0, map[string]bool{}
	for _, lease := range q.leases[run] {
		if handle, ok := q.handles[lease]; ok {
			stored[handle] = true
		} else {
			open++
		}
	}
	for _, token := range tokens {
		switch {
		case stored[token]:
		case open > 0:
			open--
		default:
			count++
		}
	}
	return count
}

// held are the names of all leases.
func (q *queue) held() map[string]bool {
	held := map[string]bool{}
	for _, leases := range q.leases {
		for _, lease := range leases {
			held[lease] = true
		}
	}
	return held
}

// ended reports a lease of a credential that was given which is still there. It goes a moment after the credential.
func (f *faulty) ended(ctx context.Context) error {
	q, err := f.queue(ctx)
	if err != nil {
		return err
	}
	held := q.held()
	for _, c := range f.delivered {
		if held[c.lease] {
			return fmt.Errorf("CredentialLease %s is still there", c.lease)
		}
	}
	return nil
}

// account looks whether a run that is gone has left a credential that nobody will revoke.
// What is live before and after the leases were read was so in between.
func (f *faulty) account(ctx context.Context, run *v1alpha1.SandboxRun) error {
	before := f.hub.liveOf(run.Name)
	q, err := f.queue(ctx)
	if err != nil {
		return err
	}
	after := f.hub.liveOf(run.Name)
	tokens := slices.DeleteFunc(before, func(token string) bool { return !slices.Contains(after, token) })
	f.mu.Lock()
	defer f.mu.Unlock()
	f.gone++
	if n := q.unknown(run.Name, tokens); n > 0 {
		f.unaccounted++
		f.t.Errorf("SandboxRun %s is gone, and %d of its %d credentials have no lease", run.Name, n, len(tokens))
	}
	return nil
}

// leaked counts what GitHub still takes, now that every run is gone: all of it, but for tokens
// that nobody was given, and for whose end a lease waits.
func (f *faulty) leaked(ctx context.Context) (count int, err error) {
	live := f.hub.allLive()
	q, err := f.queue(ctx)
	if err != nil {
		return 0, err
	}
	q.handles = map[string]string{} // what is stored is to be revoked by now
	given := map[string]bool{}
	for _, c := range f.delivered {
		given[c.token] = true
	}
	for run, tokens := range live {
		lost := slices.DeleteFunc(slices.Clone(tokens), func(token string) bool { return given[token] })
		count += len(tokens) - len(lost) + q.unknown(run, lost)
	}
	return count, nil
}

// steal uses every credential that was given, once the broker says by the end of its lease that it is
// revoked. stop does that a last time.
func (f *faulty) steal() (stop func() error) {
	ctx, cancel := context.WithCancel(f.t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				_ = f.tryToSteal(ctx) // the API server may be down
			case <-ctx.Done():
				return
			}
		}
	}()
	return func() error {
		cancel()
		<-ended
		return f.tryToSteal(f.t.Context())
	}
}

func (f *faulty) tryToSteal(ctx context.Context) error {
	f.mu.Lock()
	given := slices.DeleteFunc(slices.Clone(f.delivered), func(c *delivery) bool { return c.early || c.refused })
	f.mu.Unlock()
	q, err := f.queue(ctx)
	if err != nil {
		return err
	}
	held := q.held()
	for _, c := range given {
		if held[c.lease] {
			continue
		}
		taken, err := f.hub.use(ctx, c.token)
		if err != nil {
			return err
		}
		c.early, c.refused = taken, !taken
	}
	return nil
}
