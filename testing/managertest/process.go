package managertest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/internal/freeport"
	"github.com/admitkit/admitkit/manager"
)

const loopback = "127.0.0.1"

// process is what a Deployment would run, here as goroutines.
type process struct {
	// account is the ServiceAccount, whose name is the Deployment's.
	account string
	// serves says that the API server calls it.
	serves bool
	// reconciles says that it has work once it leads.
	reconciles bool
	mgr        *manager.Manager
	run        func(*manager.Manager, context.Context) error
	health     string

	// ended is closed when it has ended, with the error err.
	ended chan struct{}
	err   error
	told  bool
}

// subcommands are those of package command that Deployments run.
var subcommands = map[string]func(*manager.Manager, context.Context) error{
	"register":  (*manager.Manager).KeepRegistered,
	"serve":     (*manager.Manager).Start,
	"reconcile": (*manager.Manager).Reconcile,
}

// newProcesses makes one for each Deployment.
func (i *Installation) newProcesses(ctx context.Context, objects []client.Object) ([]*process, error) {
	deployments := map[string]*appsv1.Deployment{} // by subcommand
	for _, object := range objects {
		if deployment, ok := object.(*appsv1.Deployment); ok {
			deployments[deployment.Spec.Template.Spec.Containers[0].Args[0]] = deployment
		}
	}
	reconcilerUser := ""
	if reconciler := deployments["reconcile"]; reconciler != nil {
		reconcilerUser = userOf(i.WebhookNamespace, reconciler.Spec.Template.Spec.ServiceAccountName)
	}
	var processes []*process
	for subcommand, deployment := range deployments {
		run := subcommands[subcommand]
		if run == nil {
			return nil, fmt.Errorf("Deployment %s: %q: Run knows no such subcommand", deployment.Name, subcommand)
		}
		p := &process{
			account: deployment.Spec.Template.Spec.ServiceAccountName, serves: subcommand == "serve", reconciles: subcommand == "reconcile",
			run: run, ended: make(chan struct{}),
		}
		config, err := i.connectionOf(ctx, p.account)
		if err != nil {
			return nil, err
		}
		port, err := freeport.Find()
		if err != nil {
			return nil, err
		}
		o := i.managerOptions(config, subcommand == "register")
		p.health = fmt.Sprintf("%s:%d", loopback, port)
		o.Serving.HealthAddress = p.health
		o.Logger = o.Logger.Named(p.account)
		if subcommand != "register" {
			o.Watching.ReconcilerUser = reconcilerUser
		}
		if p.mgr, err = i.newManager(o); err != nil {
			return nil, err
		}
		processes = append(processes, p)
	}
	return processes, nil
}

// connectionOf returns a connection with a token of a ServiceAccount, and nothing else.
func (i *Installation) connectionOf(ctx context.Context, account string) (*rest.Config, error) {
	const day = 24 * 60 * 60
	seconds := int64(day)
	token, err := i.kube.CoreV1().ServiceAccounts(i.WebhookNamespace).CreateToken(ctx, account, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds},
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("a token of ServiceAccount %s/%s: %w", i.WebhookNamespace, account, err)
	}
	config := rest.AnonymousClientConfig(i.cluster.Config())
	config.BearerToken = token.Status.Token
	config.Wrap(i.forbidden.watch(account))
	return config, nil
}

// start runs it.
func (p *process) start(ctx context.Context) {
	go func() {
		defer close(p.ended)
		p.err = p.run(p.mgr, ctx)
	}()
}

// errForbidden ends the wait for a process after the test has failed for lack of a right.
var errForbidden = errors.New("a right is missing")

// hopeless is how long a kind may be missing. Run has installed all that it will install.
const hopeless = 10 * time.Second

// wait returns when it is ready, as a kubelet would see it. A process that reconciles must
// lead, too, and stay ready for a moment: the caches of its controllers begin only then.
func (p *process) wait(ctx context.Context, forbidden <-chan struct{}) error {
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	begun := time.Now()
	var led time.Time // since when it leads and is ready
	for {
		err := p.ready(ctx)
		switch {
		case err == nil && !p.reconciles:
			return nil
		case err == nil && !p.leads():
			err = errors.New("it does not lead yet")
		case err == nil && (led.IsZero() || time.Since(led) < calm):
			led, err = cmp.Or(led, time.Now()), errors.New("its caches may still begin")
		case err == nil:
			return nil
		case strings.Contains(err.Error(), "install its CustomResourceDefinition") && time.Since(begun) > hopeless:
			return fmt.Errorf("%s is not ready: %w\nOptions.CRDPaths and Options.Objects have CustomResourceDefinitions", p.account, err)
		default:
			led = time.Time{}
		}
		select {
		case <-tick.C:
		case <-forbidden:
			return errForbidden
		case <-p.ended:
			return p.end()
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready within %s: %w", p.account, patience, err)
		}
	}
}

// leads reports whether it holds the Lease.
func (p *process) leads() bool {
	select {
	case <-p.mgr.GetKubeManager().Elected():
		return true
	default:
		return false
	}
}

// ready returns why it is not ready, nil if it is.
func (p *process) ready(ctx context.Context) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.health+"/readyz", http.NoBody)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, maxStatus))
	if err = errors.Join(err, response.Body.Close()); err == nil && response.StatusCode != http.StatusOK {
		err = errors.New(string(body))
	}
	return err
}

// stop stops it, and reports an end with an error, or before its time.
func (p *process) stop(ctx context.Context) error {
	select {
	case <-p.ended:
		return p.end()
	default:
	}
	p.mgr.Stop()
	select {
	case <-p.ended:
	case <-ctx.Done():
		return fmt.Errorf("%s has not stopped within %s", p.account, patience)
	}
	if p.err != nil {
		return fmt.Errorf("%s stopped with an error: %w", p.account, p.err)
	}
	return nil
}

// end reports once that it has ended, although nobody stopped it.
func (p *process) end() error {
	if p.told {
		return nil
	}
	p.told = true
	if p.err == nil {
		return fmt.Errorf("%s has ended, although nobody stopped it", p.account)
	}
	return fmt.Errorf("%s has ended: %w", p.account, p.err)
}
