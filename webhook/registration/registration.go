// Package registration makes the API server call the webhooks: it builds the
// MutatingWebhookConfiguration and the ValidatingWebhookConfiguration, applies
// them, repairs them and removes them.
//
// Both are written by server-side apply under one field manager, in one step
// and never by delete and create, so that there is no moment in which the API
// server does not know them, and replicas that start together write the same
// thing. What others own in them (labels, annotations, entries) is left alone;
// what others put into our entries is not.
//
// Their name is FINGERPRINT.NAMESPACE, with the namespace of the manager. An
// annotation says whose they are, so that a second installation that comes to
// the same name is told so, and writes nothing.
package registration

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/admitkit/admitkit/webhook"
)

// FieldManager is the owner, in server-side apply, of what this package writes.
const FieldManager = "admitkit"

// The annotations of both objects.
const (
	// OwnerAnnotation says which installation they belong to.
	OwnerAnnotation = "admitkit.dev/owner"
	// RevisionAnnotation is a digest of the webhooks, and RevisionTimeAnnotation
	// says when the newest replica that registered them started. While an
	// upgrade is under way, replicas of the older revision see by these that
	// what they find is no drift.
	RevisionAnnotation     = "admitkit.dev/revision"
	RevisionTimeAnnotation = "admitkit.dev/revision-time"
	// ProbedAnnotation is "true" once a probe has come back, after which the
	// failure policy Fail is in force for good; see Registration.IgnoreUntilProbed.
	ProbedAnnotation = "admitkit.dev/probed"
)

// Target says where the API server finds the webhooks: a Service, or a URL.
type Target struct {
	// ServiceName, ServiceNamespace and ServicePort are those of a Service in
	// the cluster; the URL fields do not count when ServiceName is set.
	ServiceName, ServiceNamespace string
	ServicePort                   int32
	// Host and Port make the URL, for a server outside the cluster.
	Host string
	Port int32
}

// Owner names the installation that serves there. Its replicas may have
// different ports.
func (t Target) Owner() string {
	if t.ServiceName != "" {
		return "service " + t.ServiceNamespace + "/" + t.ServiceName
	}
	return "host " + t.Host
}

// Registration is the configuration of one installation.
type Registration struct {
	// Name of both objects, a DNS subdomain.
	Name string
	// Domain is appended to the names of the webhooks, which must be fully
	// qualified. Entries with other names belong to others.
	Domain string
	// Labels and Annotations are put on both objects.
	Labels, Annotations map[string]string
	// Owner is a cluster-scoped object with which both are removed; none by
	// default.
	Owner *metav1.OwnerReference
	// Webhooks are the entries. A kind of which there is none has no object.
	Webhooks []*webhook.Webhook
	// ProbeNamespace is the manager's namespace, in which [Registration.Probe]
	// asks; an entry of its own makes sure that nothing else is asked. Default:
	// no such entry.
	ProbeNamespace string
	// Target is where they are served.
	Target Target
	// ForeignBundle leaves the caBundle to someone else, cert-manager's
	// injector for example.
	ForeignBundle bool
	// IgnoreUntilProbed makes the failure policy Fail begin as Ignore, until
	// Probed reports true in any replica.
	IgnoreUntilProbed bool
	// Probed reports whether a probe has come back. Required with
	// IgnoreUntilProbed.
	Probed func() bool
	// Started is when this replica did; see RevisionTimeAnnotation.
	Started time.Time
	// Spread is within which time replicas that see the same drift at the same
	// moment repair it, so that the first one does and the others see it done.
	// Default: at once.
	Spread time.Duration
}

// Objects returns both objects as they would be registered in a cluster that has
// none of them, without certificates and time.
func (r *Registration) Objects() []*admissionregistrationv1.MutatingWebhookConfiguration {
	var objects []*configuration
	for _, res := range resources {
		desired := r.desired(res, nil, nil)
		delete(desired.Annotations, RevisionTimeAnnotation)
		if len(desired.Webhooks) > 0 {
			objects = append(objects, desired)
		}
	}
	return objects
}

// ErrForeign is the error of an object that belongs to another installation.
var ErrForeign = errors.New("another installation's")

// Repair says what was wrong with an object before it was written.
type Repair struct {
	// Object is its kind and name.
	Object string
	// Kind is what was wrong: missing, entry, extra, rules, caBundle, ...
	Kind string
}

// configuration has the shape of both kinds: a ValidatingWebhook is a
// MutatingWebhook without a reinvocation policy.
type configuration = admissionregistrationv1.MutatingWebhookConfiguration

type entry = admissionregistrationv1.MutatingWebhook

// resource is one of the two kinds.
type resource struct{ kind, plural string }

var (
	mutating  = resource{"MutatingWebhookConfiguration", "mutatingwebhookconfigurations"}
	resources = []resource{mutating, {"ValidatingWebhookConfiguration", "validatingwebhookconfigurations"}}
)

// Reconcile makes both objects what they should be, and returns what was not so.
// It reads both before it calls bundle, for the PEM of the certificates that API
// servers are to trust, and writes only if nobody wrote in between; a lost race
// is run again.
func (r *Registration) Reconcile(ctx context.Context, client rest.Interface, bundle func(context.Context) ([]byte, error)) (repairs []Repair, err error) {
	const attempts = 10
	for attempt := range attempts {
		look := attempt == 0 && r.Spread > 0
		if repairs, err = r.reconcileOnce(ctx, client, bundle, look); len(repairs) == 0 && err == nil {
			return nil, nil
		}
		if !look && !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) {
			return repairs, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(rand.N(max(r.Spread, minSpread))): //nolint:gosec // no secret
		}
	}
	return repairs, err
}

// minSpread is how far apart those who lost a race try again.
const minSpread = 100 * time.Millisecond

// reconcileOnce repairs what it finds, or only looks for it.
func (r *Registration) reconcileOnce(ctx context.Context, client rest.Interface, bundle func(context.Context) ([]byte, error), look bool) ([]Repair, error) {
	lives := make([]*configuration, len(resources))
	for i, res := range resources {
		live, err := get(ctx, client, res, r.Name)
		if err == nil {
			err = r.check(res, live)
		}
		if err != nil {
			return nil, err
		}
		lives[i] = live
	}
	pem, err := bundle(ctx)
	if err != nil {
		return nil, err
	}
	var repairs []Repair
	for i, res := range resources {
		desired := r.desired(res, lives[i], pem)
		what := r.difference(lives[i], desired)
		if what == "" {
			continue
		}
		repairs = append(repairs, Repair{Object: res.kind + " " + r.Name, Kind: what})
		if look {
			continue
		}
		if err := r.write(ctx, client, res, lives[i], desired); err != nil {
			// What was written before it counts all the same.
			return repairs[:len(repairs)-1], err
		}
	}
	return repairs, nil
}

// Check returns an error that wraps ErrForeign if an object of the name belongs
// to another installation.
func (r *Registration) Check(ctx context.Context, client rest.Interface) error {
	for _, res := range resources {
		live, err := get(ctx, client, res, r.Name)
		if err != nil {
			return err
		}
		if err := r.check(res, live); err != nil {
			return err
		}
	}
	return nil
}

func (r *Registration) check(res resource, live *configuration) error {
	if live == nil {
		return nil
	}
	if owner := live.Annotations[OwnerAnnotation]; owner != "" && owner != r.Target.Owner() {
		return fmt.Errorf("%s %s is %w: it belongs to %q, and this is %q: choose another OperatorFingerprint, or unregister the other one",
			res.kind, r.Name, ErrForeign, owner, r.Target.Owner())
	}
	return nil
}

func (r *Registration) write(ctx context.Context, client rest.Interface, res resource, live, desired *configuration) error {
	if len(desired.Webhooks) == 0 {
		return remove(ctx, client, res, r.Name)
	}
	if live != nil {
		desired.ResourceVersion = live.ResourceVersion
	}
	live, err := apply(ctx, client, res, desired)
	if err != nil || r.difference(live, desired) == "" {
		return err
	}
	// Server-side apply takes nothing away that someone else has added, such as
	// a match condition that is never true. Whoever wants to escape admission
	// would add one.
	others := slices.DeleteFunc(slices.Clone(live.Webhooks), func(e entry) bool { return r.ours(e.Name) })
	ours := desired.Webhooks
	if r.ForeignBundle {
		keepBundles(ours, live.Webhooks)
	}
	live.Webhooks = slices.Concat(ours, others)
	return replace(ctx, client, res, live)
}

// keepBundles copies what someone else injected.
func keepBundles(to, from []entry) {
	for i := range to {
		for _, e := range from {
			if e.Name == to[i].Name {
				to[i].ClientConfig.CABundle = e.ClientConfig.CABundle
			}
		}
	}
}
