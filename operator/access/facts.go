package access

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/operator/access/internal/workload"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/egress"
)

// facts are what is known about a request at one moment, before anything is
// decided. Which of the last ones were read depends on the stage.
type facts struct {
	kind kind
	key  types.NamespacedName

	// request is nil when it is gone or being deleted.
	request v1alpha1.Request
	// end is when its access ends, unless the request is invalid, and keepUntil
	// how long the request is kept after that.
	end, keepUntil time.Time
	invalid        error
	// lastMove is the last move of the end that this process has told.
	lastMove move

	// role, the record of the grant, and binding are nil if they do not exist.
	role    *rbacv1.Role
	binding *rbacv1.RoleBinding
	// lastRole is the Role as it was, if the request is gone and the garbage collector was
	// first.
	lastRole *rbacv1.Role
	// unbound says that this process has deleted the RoleBinding.
	unbound bool

	// closed says that no access is granted in the namespace; nothing else is then read.
	closed *refusal
	// templateGone says that the template of a grant was deleted, or that the one that a
	// request has waited for does not exist.
	templateGone bool
	// warnBefore is how long before its end a grant is announced to end, 0 for never.
	warnBefore time.Duration
	// enforced says that something limits requests with singleUse to one session.
	enforced bool
	// template is nil if it does not exist.
	template v1alpha1.Template
	// noCheck says that the check which the template names does not exist, and trouble why
	// it has not answered.
	noCheck *refusal
	trouble string
	// decisions are about this request, if it waits for approval.
	decisions []v1alpha1.AccessDecision
	// othersOpen are the user's other requests that count for the template's limit.
	othersOpen []v1alpha1.Request
	// target is what an access Pod is made after, nil if the template has a Pod
	// spec. chosen is the Pod that exec access would be to. noTarget says why there
	// is neither.
	target   *workload.Workload
	chosen   *corev1.Pod
	noTarget error
	// unended says why sessions in the Pod cannot be ended or limited, if the template, or
	// the record of the grant, wants that.
	unended *refusal
	// newRole is the role that a request would get; noRole says why it gets none, or
	// loses the one that it has.
	newRole choice
	noRole  *refusal

	// egressOptions are the operator's, nil if the kind makes no Pod. policies are those of the
	// name of what the request gets, there is the Pod of that name, and apiServer where the API
	// server is reached, all as the cache has them.
	egressOptions *egress.Options
	policies      []*unstructured.Unstructured
	there         *corev1.Pod
	apiServer     []netip.AddrPort
	// hold is what holds the access Pod that is to be made, nil if the template has no
	// egress; noHold says why it cannot be held.
	hold   *v1alpha1.EgressDecision
	noHold *refusal

	// own is the access Pod of a grant as it is now, nil if that is not known yet,
	// and lost says what has become of the Pod of a grant that no longer exists.
	own  *corev1.Pod
	lost string
	// made is the access Pod that must go with the request.
	made choice
}

// stage is how far a request has come. It says what there is to decide, and so what
// must be known.
type stage int

const (
	gone     stage = iota // the request no longer exists
	invalid               // its duration cannot be parsed
	over                  // its access has ended
	stale                 // what it has belongs to an earlier request of its name
	used                  // its single use has begun
	asking                // it has nothing yet
	recorded              // its Pod is recorded in the Role
	granted               // it has the RoleBinding
)

// stage comes from what the cache has: the request, Role and RoleBinding. The end
// comes first, since it needs nothing but the request itself.
func (f *facts) stage(now time.Time) stage {
	switch {
	case f.request == nil:
		return gone
	case f.invalid != nil:
		return invalid
	case v1alpha1.Over(f.request, now):
		return over
	case f.stale():
		return stale
	case f.request.GetRequestStatus().UsedBy != nil:
		return used
	case f.role == nil:
		return asking
	case f.binding == nil:
		return recorded
	}
	return granted
}

// settled returns the Pod or role that an earlier grant of the request was about, if there
// was one: the status has it, where the API server lets nobody change it. Somebody
// may have written it before the manager did, and so it can only take access away.
func (f *facts) settled() choice {
	return chosenIn(f.request.GetRequestStatus())
}

// disowned reports whether the Pod no longer owns the RoleBinding, as when somebody
// deletes it with --cascade=orphan. A later Pod of its name must not inherit that.
func (f *facts) disowned() bool {
	if f.kind.givesRole {
		return f.binding != nil && !f.kind.owns(f.binding, f.request.GetUID())
	}
	return f.binding != nil && !slices.ContainsFunc(f.binding.OwnerReferences, func(o metav1.OwnerReference) bool {
		return o.Kind == "Pod" && o.UID == choiceOf(f.role).uid
	})
}

// drifted reports whether the RoleBinding does not say what was granted: somebody has
// changed it while no webhook kept them from that, or made it anew.
func (f *facts) drifted() bool {
	if f.binding == nil {
		return false
	}
	want, err := newBinding(f.kind, f.request, f.role)
	return err != nil || !isSameGrant(f.binding, want)
}

// read reads the facts about a request; req is nil if it is gone. What belongs to
// others it reads by name from the API server, and only if the stage needs it. The
// end of access never waits for that.
func (r *requests) read(ctx context.Context, key types.NamespacedName, req v1alpha1.Request, now time.Time) (*facts, error) {
	f := &facts{kind: r.kind, key: key, request: req, enforced: r.options.SingleUse, warnBefore: r.options.WarnBefore}
	if req != nil {
		f.end, f.invalid = v1alpha1.EndOf(req)
		f.keepUntil = keepUntil(req, r.options.Retention)
	}
	_, f.unbound = r.unbound.Load(key)
	if err := errors.Join(r.readRole(ctx, f), r.readBinding(ctx, f), r.readEgress(ctx, f)); err != nil {
		return f, err
	}
	if req != nil && req.GetRequestSpec().Duration == "" && (f.role != nil || f.binding != nil) {
		f.invalid = errors.New("spec.duration: there is none, and only a request that waits may lack it")
	}
	if last, ok := r.lastRoles.Load(key); ok && req == nil {
		f.lastRole = last.(*rbacv1.Role)
	}
	switch f.stage(now) {
	case gone, invalid, stale:
		return f, r.readMade(ctx, f, r.cached, "")
	case over:
		if err := r.readExpiry(ctx, f); err != nil {
			return f, err
		}
		// A RoleBinding is deleted before anything is read from the API server.
		reader := r.live
		if f.mayBeBound() || ended(req) {
			reader = r.cached
		}
		return f, r.readMade(ctx, f, reader, req.GetUID())
	case asking:
		if f.closed = r.places.closed(key.Namespace); f.closed != nil {
			return f, nil //nolint:nilerr // decide tells
		}
		return f, r.readAsking(ctx, f, now)
	case recorded, granted:
		if r.kind.givesRole {
			return f, errors.Join(r.readGrantedRole(ctx, f), r.missTemplate(ctx, f))
		}
		f.unended = r.endless(f)
		return f, errors.Join(r.readPod(ctx, f), r.missTemplate(ctx, f))
	}
	return f, nil
}

// readAsking reads what decides about a request that has nothing yet. That its template
// has not come in time ends it, and so the API server has the last word.
func (r *requests) readAsking(ctx context.Context, f *facts, now time.Time) error {
	if f.waitsForApproval() {
		var err error
		if f.decisions, err = r.decisionsAbout(ctx, f.key.Namespace, string(f.request.GetUID())); err != nil {
			return err
		}
	}
	err := r.readTarget(ctx, f)
	switch {
	case err != nil:
		return err
	case f.template != nil:
		r.readCheck(f)
		r.readHold(ctx, f)
		return r.promise(ctx, f)
	case now.Before(waitsUntil(f.request)) && f.settled() == (choice{}): // else it has had its template
		return nil
	}
	if err := r.missTemplate(ctx, f); err != nil || f.templateGone {
		return err
	}
	return r.errBehind(f)
}

// waitsUntil is how long a request waits for its template.
func waitsUntil(req v1alpha1.Request) time.Time {
	return req.GetCreationTimestamp().Add(v1alpha1.TemplateWait)
}

// templateLate reports whether the template did not come in time, or was made anew after
// that.
func (f *facts) templateLate() bool {
	if f.template == nil {
		return f.templateGone
	}
	return f.template.GetCreationTimestamp().After(waitsUntil(f.request))
}

// isOfAnother reports whether the template is not the one on whose terms the request
// waits for approval, or got it.
func (f *facts) isOfAnother() bool {
	terms := f.request.GetRequestSpec().Approval
	return terms != nil && f.template != nil && terms.TemplateUID != string(f.template.GetUID())
}

// incomplete reports whether a request lacks what its template says, because that did not
// exist when it was made, or did not say it.
func (f *facts) incomplete() bool {
	spec, made, came := f.request.GetRequestSpec(), f.request.GetCreationTimestamp(), f.template.GetCreationTimestamp()
	narrower := f.template.GetAccessConfig().SingleUse && !spec.SingleUse
	return spec.Requester != nil && !came.Before(&made) && (spec.Duration == "" || narrower) || f.approvalIsMissing()
}

// unusedFor is how much of its time counts for a request that was revoked before it got a Pod,
// because no template may have limited that.
const unusedFor = 24 * time.Hour

// keepUntil returns how long a request is kept: from when its time is over, and not
// from when it was revoked. Who may write the status could make the record go at once. Of one
// that got nothing only [unusedFor] counts.
func keepUntil(req v1alpha1.Request, retention time.Duration) time.Time {
	end, _ := v1alpha1.TermOf(req) // one that is invalid is not discarded
	if unused := req.GetCreationTimestamp().Add(unusedFor); !gotSomething(req) && unused.Before(end) {
		if end, _ = v1alpha1.EndOf(req); end.Before(unused) {
			end = unused
		}
	}
	return end.Add(retention)
}

// readExpiry reads the template of a request that ends without its record, which others
// may delete: it says whether the Pod is to be evicted.
func (r *requests) readExpiry(ctx context.Context, f *facts) error {
	if f.role != nil || f.kind.makesPod || f.kind.givesRole || f.settled() == (choice{}) || ended(f.request) {
		return nil
	}
	key := types.NamespacedName{Namespace: f.key.Namespace, Name: f.request.GetRequestSpec().TemplateName}
	template, err := get(ctx, r.cached, key, r.kind.newTemplate())
	f.template = template
	return err
}

// stale reports whether a request has what an earlier one of its name has left.
func (f *facts) stale() bool {
	uid := string(f.request.GetUID())
	return f.role != nil && f.role.Annotations[AnnotationRequestUID] != uid ||
		f.binding != nil && f.binding.Annotations[AnnotationRequestUID] != uid
}

// mayBeBound reports whether the RoleBinding must be deleted at the end. Until the
// request says that its access has ended, that is so even if the cache has none: it
// holds only what has our label, and the label can be removed. Once this process has
// deleted it, a RoleBinding in the cache only shows that the cache is behind.
func (f *facts) mayBeBound() bool {
	return f.isKept() || !f.unbound && (f.binding != nil || !ended(f.request))
}

// isKept reports whether the RoleBinding would outlast its deletion.
func (f *facts) isKept() bool { return f.binding != nil && len(f.binding.Finalizers) > 0 }

// readRole reads the record of the grant from the cache.
func (r *requests) readRole(ctx context.Context, f *facts) error {
	role, err := get(ctx, r.cached, r.kind.resource(f.key), &rbacv1.Role{})
	f.role = role
	return err
}

// readBinding reads the RoleBinding from the cache.
func (r *requests) readBinding(ctx context.Context, f *facts) error {
	binding, err := get(ctx, r.cached, r.kind.resource(f.key), &rbacv1.RoleBinding{})
	f.binding = binding
	return err
}

// get reads an object; the result is nil if there is none.
func get[T client.Object](ctx context.Context, reader client.Reader, key types.NamespacedName, into T) (T, error) {
	err := reader.Get(ctx, key, into)
	if err == nil {
		return into, nil
	}
	var none T
	return none, client.IgnoreNotFound(err)
}

// readMade finds the access Pod: by the record, or, where there is no record yet,
// by its owner, the request with the UID, or any if uid is "".
func (r *requests) readMade(ctx context.Context, f *facts, reader client.Reader, uid types.UID) error {
	if !f.kind.makesPod {
		return nil
	}
	resource := f.kind.resource(f.key)
	if f.role != nil && choiceOf(f.role).name == resource.Name {
		f.made = choiceOf(f.role)
		return nil
	}
	pod, err := get(ctx, reader, resource, &corev1.Pod{})
	if pod != nil && f.kind.owns(pod, uid) {
		f.made = choice{name: pod.Name, uid: pod.UID}
	}
	return err
}

// readTarget reads the template and its target, and chooses a Pod. Where the
// template allows nothing, the target does not matter.
func (r *requests) readTarget(ctx context.Context, f *facts) error {
	spec, t := f.request.GetRequestSpec(), r.kind.newTemplate()
	err := r.cached.Get(ctx, types.NamespacedName{Namespace: f.key.Namespace, Name: spec.TemplateName}, t)
	if err != nil {
		return client.IgnoreNotFound(err)
	}
	f.template = t
	if r.kind.givesRole {
		return r.readNewRole(ctx, f)
	}
	if ref := t.GetTargetRef(); ref != nil && allows(t, spec) == nil {
		f.target, err = workload.Find(ctx, r.live, f.key.Namespace, *ref)
	}
	if err == nil && f.target != nil && !r.kind.makesPod {
		name := f.request.GetTargetPod()
		if name == "" {
			name = f.settled().name
		}
		f.chosen, err = f.target.Choose(ctx, r.live, name)
	}
	if noTarget(err) != nil {
		f.noTarget, err = err, nil
	}
	if err == nil && (f.chosen != nil || r.kind.makesPod) {
		err = r.readEnding(ctx, f)
	}
	return err
}

// missTemplate reads the template of a grant, or finds out that it is gone, even if there is
// another of its name now. The API server has the last word, since that ends access.
func (r *requests) missTemplate(ctx context.Context, f *facts) error {
	key := types.NamespacedName{Namespace: f.key.Namespace, Name: f.request.GetRequestSpec().TemplateName}
	for _, reader := range []client.Reader{r.cached, r.live} {
		t, err := get(ctx, reader, key, r.kind.newTemplate())
		if err != nil {
			return err
		}
		if t != nil && f.isOf(t) {
			f.template = t
			return nil
		}
	}
	f.templateGone = true
	return nil
}

// isOf reports whether a template is the one by which a grant was made, if that is on
// record.
func (f *facts) isOf(t v1alpha1.Template) bool {
	if f.role == nil {
		return true
	}
	uid := f.role.Annotations[annotationTemplateUID]
	return uid == "" || uid == string(t.GetUID())
}

// noTarget says why an error of package workload keeps a request from being
// granted for now; nil for any other error.
func noTarget(err error) *refusal {
	var unknown workload.UnknownPodError
	switch {
	case err == nil:
		return nil
	case errors.Is(err, workload.ErrNoPod):
		return &refusal{reason: v1alpha1.ReasonNoPod, message: err.Error(), waits: true, quiet: true}
	case errors.As(err, &unknown):
		return refuse(v1alpha1.ReasonUnknownPod, "%s", err.Error()).forNow()
	case workload.Missing(err):
		return &refusal{reason: v1alpha1.ReasonTargetMissing, message: err.Error(), waits: true, quiet: true}
	}
	return nil
}

// readPod reads what has become of the Pod of a grant. An access Pod is in the cache
// soon after it was made. Other Pods are not watched: when one goes, the garbage
// collector deletes the RoleBinding that it owns, and that is watched.
func (r *requests) readPod(ctx context.Context, f *facts) error {
	pod := choiceOf(f.role)
	if settled := f.settled(); settled != (choice{}) && settled != pod {
		f.lost = podOther
		return nil
	}
	key := types.NamespacedName{Namespace: f.key.Namespace, Name: pod.name}
	if f.kind.makesPod {
		own, err := get(ctx, r.cached, key, &corev1.Pod{})
		if err != nil {
			return err
		}
		if own != nil && own.UID == pod.uid { // else it may be an earlier one, if the cache is behind
			f.own = own
		}
	}
	if f.binding != nil && (f.own != nil || !f.kind.makesPod) {
		return nil
	}
	found, err := r.livePod(ctx, key)
	switch {
	case err != nil:
		return err
	case found == nil:
		f.lost = podGone
	case found.UID != pod.uid:
		f.lost = podReplaced
	case !found.DeletionTimestamp.IsZero():
		f.lost = podGoing
	}
	return nil
}

// livePod returns the metadata of a Pod as the API server has it, nil if it does not
// exist.
func (a *shared) livePod(ctx context.Context, key types.NamespacedName) (*metav1.PartialObjectMetadata, error) {
	found := &metav1.PartialObjectMetadata{}
	found.APIVersion, found.Kind = "v1", "Pod"
	return get(ctx, a.live, key, found)
}

// What has become of the Pod of a grant that has lost it.
const (
	podGone     = "is gone"
	podGoing    = "is being deleted"
	podReplaced = "was replaced by another of the same name"
	podOther    = "is not the one that status.podUID names"
)
