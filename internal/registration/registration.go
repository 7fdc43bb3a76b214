// Package registration makes the API server call the webhooks: it builds the
// MutatingWebhookConfiguration and the ValidatingWebhookConfiguration, applies
// them, repairs them and removes them.
//
// It writes both by server-side apply under one field manager, in one step and never
// by delete and create. So the API server knows them at every moment, and replicas
// that start together write the same. Labels, annotations and entries of others stay
// as they are; what others add to our entries is removed, unless it changes nothing or
// is Tolerated. The repair of what somebody changes again and again is put off, for a
// minute at most.
//
// Their name is FINGERPRINT.NAMESPACE, with the namespace of the manager. An
// annotation names the installation that owns them. A second installation with the
// same name gets an error, and writes nothing.
//
// Read registration.go first; then desired.go, difference.go and client.go: what the
// objects should be, what is wrong with them, and how they are written; selector.go and
// backoff.go: what others may add, and how often to repair what they may not. probe.go
// asks whether API servers call the webhooks, told.go says which repairs to tell.
// conversion.go registers what converts custom resources, in the objects that define them.
package registration

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
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
	// OwnerAnnotation names the installation that they belong to.
	OwnerAnnotation = "admitkit.dev/owner"
	// RevisionAnnotation is a digest of the webhooks, and RevisionTimeAnnotation
	// says when the newest replica that registered them started. During an upgrade,
	// these tell replicas of the older revision that the newer webhooks are not
	// drift.
	RevisionAnnotation     = "admitkit.dev/revision"
	RevisionTimeAnnotation = "admitkit.dev/revision-time"
	// ProbedAnnotation is "true" once a probe has succeeded. From then on the failure
	// policy is Fail; see Registration.IgnoreUntilProbed.
	ProbedAnnotation = "admitkit.dev/probed"
)

// Target says where the API server finds the webhooks: a Service, or a URL.
type Target struct {
	// ServiceName, ServiceNamespace and ServicePort are those of a Service in
	// the cluster. If ServiceName is set, Host and Port are ignored.
	ServiceName, ServiceNamespace string
	ServicePort                   int32
	// Host and Port make the URL, for a server outside the cluster.
	Host string
	Port int32
}

// Owner names the installation that serves at the target.
func (t Target) Owner() string {
	if t.ServiceName != "" {
		return "service " + t.ServiceNamespace + "/" + t.ServiceName
	}
	return "host " + net.JoinHostPort(t.Host, strconv.Itoa(int(t.Port)))
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
	// Owner is a cluster-scoped object; both objects are removed with it. Default:
	// none.
	Owner *metav1.OwnerReference
	// Webhooks are the entries. A kind without entries has no object.
	Webhooks []*webhook.Webhook
	// Conversions are the conversion stanzas that are registered, too. Default: none.
	Conversions *Conversions
	// ProbeNamespace is the manager's own namespace. [Registration.Probe] probes there,
	// by an entry of its own. Default: no such entry.
	ProbeNamespace string
	// Target is where they are served.
	Target Target
	// Paths signs the paths at which they are registered. Default: these are as they are.
	Paths Paths
	// ForeignBundle leaves the caBundle to others, for example cert-manager's
	// injector.
	ForeignBundle bool
	// IgnoreUntilProbed writes the failure policy Fail as Ignore until Probed
	// reports true in any replica.
	IgnoreUntilProbed bool
	// Probed reports whether a probe has succeeded. Required with IgnoreUntilProbed.
	Probed func() bool
	// Started is when this replica did; see RevisionTimeAnnotation.
	Started time.Time
	// Tolerated are the terms that others may add to namespace selectors. Terms that
	// follow from ours may always stay. Default: no others.
	Tolerated Tolerated
	// Later is called when a repair is put off, with the time after which to call
	// Reconcile again. Default: none.
	Later func(time.Duration)
	// Spread is the time within which replicas repair drift, each after a random
	// delay. The first one repairs it, and the others find nothing to do. Default: at
	// once.
	Spread time.Duration

	backoff *repairBackoff // nil until something was repaired
}

// Paths make paths that nobody can guess.
type Paths interface {
	// Sign returns the path at which to register one.
	Sign(plain string) string
	// Saw learns of one that is registered, before Sign is asked for others.
	Saw(ctx context.Context, signed string) error
	// Settled is called with all that are registered, when each is what Sign has returned.
	Settled(ctx context.Context, signed []string) error
}

// Objects returns both objects as they are registered in a cluster that has neither,
// without certificates and time.
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

// ErrForeign is the error for an object of another installation.
var ErrForeign = errors.New("another installation's")

// Repair says what was wrong with an object.
type Repair struct {
	// Object is its kind and name.
	Object string
	// Kind is what was wrong: missing, entry, extra, rules, caBundle, ... It is PathChanged if
	// nothing was, and Paths signs others now.
	Kind string
	// Detail says more, and what to do about it; "" if Kind says it all.
	Detail string
}

// configuration serves for both kinds: a ValidatingWebhook is a MutatingWebhook
// without a reinvocation policy.
type configuration = admissionregistrationv1.MutatingWebhookConfiguration

type entry = admissionregistrationv1.MutatingWebhook

// resource is one of the two kinds.
type resource struct{ kind, plural string }

var (
	mutating  = resource{"MutatingWebhookConfiguration", "mutatingwebhookconfigurations"}
	resources = []resource{mutating, {"ValidatingWebhookConfiguration", "validatingwebhookconfigurations"}}
)

// Reconcile makes both objects what they should be, and returns the repairs. It
// reads both, then calls bundle for the PEM of the certificates that API servers
// should trust, and writes only if nobody wrote in between; otherwise it starts
// again.
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

// minSpread is the time within which replicas that lost a race try again.
const minSpread = 100 * time.Millisecond

// reconcileOnce repairs both objects, or only looks for what is wrong.
func (r *Registration) reconcileOnce(ctx context.Context, client rest.Interface, bundle func(context.Context) ([]byte, error), look bool) ([]Repair, error) {
	lives, err := r.read(ctx, client)
	if err != nil {
		return nil, err
	}
	crds, unread := r.readCRDs(ctx, client)
	registered, err := r.saw(ctx, lives, crds)
	if err != nil {
		return nil, err
	}
	pem, err := bundle(ctx)
	if err != nil {
		return nil, err
	}
	var repairs []Repair
	var later time.Duration
	settled := true
	for i, res := range resources {
		desired := r.desired(res, lives[i], pem)
		wanted := content(desired.Webhooks)
		r.keepTerms(desired.Webhooks, lives[i])
		causes := r.differences(lives[i], desired)
		if len(causes) == 0 {
			continue
		}
		settled = settled && !slices.ContainsFunc(causes, cause.ofPath)
		first, wait := r.due(res, causes, wanted)
		if wait > 0 {
			later = min(wait, cmp.Or(later, wait))
			continue
		}
		repairs = append(repairs, Repair{Object: res.kind + " " + r.Name, Kind: first.kind, Detail: first.detail})
		if look {
			continue
		}
		if err := r.write(ctx, client, res, lives[i], desired); err != nil {
			// The repairs before it were made all the same.
			return repairs[:len(repairs)-1], err
		}
		r.repairs().repaired(res.kind, kinds(causes), wanted, time.Now())
	}
	if later > 0 && r.Later != nil {
		r.Later(later)
	}
	if unread != nil {
		return repairs, unread
	}
	converted, conversions, err := r.reconcileCRDs(ctx, client, crds, pem, look)
	if settled && conversions {
		err = joined([]error{err, r.settle(ctx, registered)})
	}
	return append(repairs, converted...), err
}

// settle tells Paths that all that is registered is as it should be.
func (r *Registration) settle(ctx context.Context, registered []string) error {
	if r.Paths == nil {
		return nil
	}
	return r.Paths.Settled(ctx, registered)
}

// read returns both objects, nil for one that does not exist.
func (r *Registration) read(ctx context.Context, client rest.Interface) ([]*configuration, error) {
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
	return lives, nil
}

// due returns the first cause for a write now, or how long to put the write off.
func (r *Registration) due(res resource, causes []cause, wanted string) (first cause, wait time.Duration) {
	now := time.Now()
	for _, c := range causes {
		left, _ := r.repairs().wait(repairKey{res.kind, c.kind}, wanted, now)
		if left == 0 {
			return c, 0
		}
		if wait == 0 || left < wait {
			wait = left
		}
	}
	return cause{}, wait
}

func kinds(causes []cause) []string {
	names := make([]string, len(causes))
	for i, c := range causes {
		names[i] = c.kind
	}
	return names
}

// Check returns an error that wraps ErrForeign if either object, or a conversion, belongs to
// another installation.
func (r *Registration) Check(ctx context.Context, client rest.Interface) error {
	if _, err := r.read(ctx, client); err != nil {
		return err
	}
	crds, err := r.readCRDs(ctx, client)
	if err != nil {
		return err
	}
	for name, live := range crds {
		if err := r.checkCRD(name, live); err != nil {
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
	before := live
	live, err := apply(ctx, client, res, desired)
	if err != nil {
		return r.explained(err, res, before, desired)
	}
	if len(r.differences(live, desired)) == 0 {
		return nil
	}
	// Server-side apply does not remove what others added, such as a match condition
	// that is never true, which would switch off admission.
	others := slices.DeleteFunc(slices.Clone(live.Webhooks), func(e entry) bool { return r.ours(e.Name) })
	ours := desired.Webhooks
	if r.ForeignBundle {
		keepBundles(ours, live.Webhooks)
	}
	live.Webhooks = slices.Concat(ours, others)
	return replace(ctx, client, res, live)
}

// keepBundles copies the caBundles that others injected.
func keepBundles(to, from []entry) {
	for i := range to {
		for _, e := range from {
			if e.Name == to[i].Name {
				to[i].ClientConfig.CABundle = e.ClientConfig.CABundle
			}
		}
	}
}
