package session

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.uber.org/zap"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/extension/cluster"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/internal/session/collector"
	"github.com/admitkit/admitkit/operator/internal/session/protocol"
	"github.com/admitkit/admitkit/operator/session/internal/recorded"
)

const (
	// everyNamespace stands for all in Options.AccessNamespaces.
	everyNamespace = "*"
	// refreshTime is after how long the end of a session is asked for anew if that failed.
	refreshTime = 2 * time.Second
)

// grants end sessions with the access that allowed them. Which grant that is stands in the
// ticket, so that every replica knows it, after a restart too; when it ends, the request says.
// A nil one ends none.
type grants struct {
	*shared
	namespaces []string
	cached     cache.Cache
	live       client.Reader
	collector  *collector.Collector
}

func newGrants(s *shared, mgr extension.Manager) (*grants, error) {
	g := &grants{shared: s, namespaces: s.options.AccessNamespaces}
	if slices.Contains(g.namespaces, everyNamespace) {
		g.namespaces = []string{metav1.NamespaceAll}
	}
	ours := cache.ByObject{Label: labels.SelectorFromSet(labels.Set{v1alpha1.LabelManagedBy: v1alpha1.ManagedByAccess})}
	own, err := cluster.New(mgr, cluster.Options{
		Name: "session-grants", Scheme: grantScheme, Namespaces: g.namespaces, ByObject: map[client.Object]cache.ByObject{&rbacv1.RoleBinding{}: ours},
	})
	if err != nil {
		return nil, err
	}
	g.cached = own.GetCache()
	if g.live, err = cluster.NewClient(mgr, grantScheme); err != nil {
		return nil, err
	}
	for _, object := range followed() {
		if _, err := g.cached.GetInformer(mgr.GetContext(), object, cache.BlockUntilSynced(false)); err != nil {
			return nil, err
		}
	}
	return g, nil
}

// grantScheme has the requests and the records of grants.
var grantScheme = func() *runtime.Scheme {
	s := runtime.NewScheme()
	if err := errors.Join(v1alpha1.AddToScheme(s), rbacv1.AddToScheme(s)); err != nil {
		panic(err)
	}
	return s
}()

func followed() []client.Object {
	return []client.Object{&v1alpha1.ExecAccessRequest{}, &v1alpha1.PodAccessRequest{}, &rbacv1.RoleBinding{}}
}

// allowance is a grant that allows a session, and ends or limits it.
type allowance struct {
	*v1alpha1.Grant
	request v1alpha1.Request
	found   *protocol.Grant
}

// ends reports whether the session ends with access, as all do in access Pods.
func (a *allowance) ends() bool { return a.EndsSessions || a.Kind == podRequest }

// before reports whether a grant is the one that counts, and not the other: one that ends
// sessions before one that only limits them, and else the one that audit names.
func (a *allowance) before(other *allowance) bool {
	switch {
	case other == nil:
		return true
	case a.ends() != other.ends():
		return a.ends()
	}
	return v1alpha1.ByUse(a.request, other.request) < 0
}

// bind writes into a ticket what the grant that allows the session says: with which request
// it ends, and its limits. A session that has to end with access does not go on without a
// collector, which alone hears that access was revoked.
func (g *grants) bind(ctx context.Context, ticket *protocol.Ticket, user authenticationv1.UserInfo) error {
	if g == nil || !slices.Contains(g.namespaces, ticket.Namespace) && !slices.Contains(g.namespaces, metav1.NamespaceAll) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, readTime)
	defer cancel()
	best, err := g.allowing(ctx, ticket, user)
	if err != nil || best == nil {
		return err
	}
	if best.ends() {
		ticket.Grant = best.found
	}
	ticket.Terms.Closed = ticket.Terms.Closed || best.EndsSessions
	ticket.Terms.Max, ticket.Terms.Idle = smaller(ticket.Terms.Max, best.MaxLength), smaller(ticket.Terms.Idle, best.IdleTimeout)
	return nil
}

// smaller returns the smaller of two limits, of which 0 is none.
func smaller(seconds int64, than time.Duration) int64 {
	if other := int64(than / time.Second); other > 0 && (seconds == 0 || other < seconds) {
		return other
	}
	return seconds
}

// allowing returns the grant that counts, nil if none ends or limits the session.
func (g *grants) allowing(ctx context.Context, ticket *protocol.Ticket, user authenticationv1.UserInfo) (best *allowance, err error) {
	var records rbacv1.RoleList // as they are now, and not as a cache knows them
	err = g.live.List(ctx, &records, client.InNamespace(ticket.Namespace),
		client.MatchingLabels{v1alpha1.LabelManagedBy: v1alpha1.ManagedByAccess, v1alpha1.LabelPodUID: ticket.PodUID})
	if err != nil {
		return nil, fmt.Errorf("listing the grants of Pod %s/%s: %w", ticket.Namespace, ticket.Pod, err)
	}
	for i := range records.Items {
		grant, err := v1alpha1.GrantOf(&records.Items[i])
		if err != nil || grant.PodName != ticket.Pod || !grant.Concerns(user.Username, user.Groups) || !slices.Contains(grant.Verbs, v1alpha1.VerbExec) {
			continue
		}
		by := &allowance{Grant: grant, found: &protocol.Grant{Kind: grant.Kind, Name: grant.Request.Name, UID: string(grant.RequestUID)}}
		if !by.ends() && by.MaxLength == 0 && by.IdleTimeout == 0 {
			continue
		}
		req, over, err := g.read(ctx, g.live, ticket, by.found)
		if err != nil {
			return nil, err
		}
		if by.request = req; over == "" && by.before(best) {
			best = by
		}
	}
	return best, nil
}

const podRequest = "PodAccessRequest"

// read reads the request of a grant. over says why there is no access by it any more.
func (g *grants) read(ctx context.Context, from client.Reader, ticket *protocol.Ticket, grant *protocol.Grant) (req v1alpha1.Request, over string, err error) {
	prefix := v1alpha1.ExecAccessPrefix
	req = &v1alpha1.ExecAccessRequest{}
	if grant.Kind == podRequest {
		prefix, req = v1alpha1.PodAccessPrefix, &v1alpha1.PodAccessRequest{}
	}
	err = from.Get(ctx, types.NamespacedName{Namespace: ticket.Namespace, Name: grant.Name}, req)
	used := req.GetRequestStatus().UsedBy
	switch {
	case apierrors.IsNotFound(err), err == nil && (string(req.GetUID()) != grant.UID || !req.GetDeletionTimestamp().IsZero()):
		return nil, "was deleted", nil
	case err != nil:
		return nil, "", fmt.Errorf("reading %s %s/%s: %w", grant.Kind, ticket.Namespace, grant.Name, err)
	case req.GetRequestSpec().Revoked != nil || req.GetRequestStatus().RevokedAt != nil:
		return nil, "was revoked", nil
	case v1alpha1.Over(req, g.clock.Now()):
		return nil, "ends", nil // as the clock would have said, had it been first
	case used != nil && used.UID == ticket.ID:
		return req, "", nil // its RoleBinding is gone, so that no other session begins
	case used != nil:
		return nil, "was for one session, and another has used it", nil
	}
	binding := &rbacv1.RoleBinding{}
	err = from.Get(ctx, types.NamespacedName{Namespace: ticket.Namespace, Name: prefix + grant.Name}, binding)
	if apierrors.IsNotFound(err) || err == nil && binding.Annotations[v1alpha1.AnnotationRequestUID] != grant.UID {
		return nil, "was withdrawn", nil
	}
	if err != nil {
		return nil, "", fmt.Errorf("reading RoleBinding %s/%s%s: %w", ticket.Namespace, prefix, grant.Name, err)
	}
	return req, "", nil
}

// limits returns when a session ends. What the cache has may be late: that access is over
// counts only if the API server says so, too.
func (g *grants) limits(ticket *protocol.Ticket) (collector.Limits, error) {
	limits := collector.LimitsOf(ticket)
	if ticket.Grant == nil {
		return limits, nil
	}
	if g == nil {
		return limits, errors.New("the session ends with access, which this replica does not know: all replicas need the same AccessNamespaces")
	}
	ctx, cancel := context.WithTimeout(context.Background(), readTime)
	defer cancel()
	req, over, err := g.read(ctx, g.cached, ticket, ticket.Grant)
	if err != nil || over != "" {
		if req, over, err = g.read(ctx, g.live, ticket, ticket.Grant); err != nil {
			return limits, err
		}
	}
	limits.Reason = fmt.Sprintf("%s %s ", protocol.ReasonAccess, ticket.Grant.Name)
	if over != "" {
		limits.End, limits.Reason = time.Unix(1, 0), limits.Reason+over
		return limits, nil
	}
	limits.Reason += "ends"
	limits.End, err = v1alpha1.EndOf(req)
	return limits, err
}

// follow looks at each change of a grant for sessions that end with it, until ctx ends.
func (g *grants) follow(ctx context.Context) error {
	changed := func(object any) {
		if last, ok := object.(toolscache.DeletedFinalStateUnknown); ok {
			object = last.Obj
		}
		if object, ok := object.(client.Object); ok {
			g.changed(ctx, object)
		}
	}
	for _, object := range followed() {
		informer, err := g.cached.GetInformer(ctx, object, cache.BlockUntilSynced(false))
		if err != nil {
			return err
		}
		_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
			AddFunc: changed, UpdateFunc: func(_, object any) { changed(object) }, DeleteFunc: changed,
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// changed asks for the end of the sessions anew that a request or a RoleBinding is about.
// One recorder that takes nothing does not hold up others.
func (g *grants) changed(ctx context.Context, object client.Object) {
	for id, ticket := range g.collector.Live() {
		if ticket.Grant == nil || ticket.Namespace != object.GetNamespace() {
			continue
		}
		switch object.GetName() {
		case ticket.Grant.Name, v1alpha1.ExecAccessPrefix + ticket.Grant.Name, v1alpha1.PodAccessPrefix + ticket.Grant.Name:
			go g.refresh(ctx, id)
		}
	}
}

// refresh asks for the end of a session until there is an answer.
func (g *grants) refresh(ctx context.Context, id string) {
	err := g.collector.Refresh(id)
	if err == nil || errors.Is(err, collector.ErrNotLive) || ctx.Err() != nil {
		return
	}
	g.log.Error("cannot find out when a session ends; trying again", zap.String("session", id), zap.Error(err))
	time.AfterFunc(refreshTime, func() { g.refresh(ctx, id) })
}

// CannotEnd says why sessions in a Pod cannot be ended with the access that allows them, ""
// if they can. It is for operator/access, and reads the labels of the namespace if sessions
// are recorded by these.
func (s *Session) CannotEnd(ctx context.Context, reader client.Reader, pod *corev1.Pod) (why string, err error) {
	isRecorded, err := s.records(ctx, reader, pod.Namespace)
	switch {
	case err != nil:
		return "", err
	case !isRecorded:
		return fmt.Sprintf("sessions in namespace %s are not recorded, and so cannot be ended or limited: ask the operator to record them, or leave onExpiry EndSession and session out of the template", pod.Namespace), nil
	}
	if !recorded.CanHaveRecorder(pod) {
		return fmt.Sprintf("Pod %s has no recorder, which static Pods and Pods of Windows cannot have, and so its sessions cannot be ended or limited: leave onExpiry EndSession and session out of the template", pod.Name), nil
	}
	for _, c := range pod.Spec.Containers {
		if !recorded.HasRecorder(pod, c.Name) {
			return fmt.Sprintf("Pod %s was made before sessions were recorded there, and its sessions cannot be ended: replace it, for example by kubectl rollout restart", pod.Name), nil
		}
	}
	return "", nil
}

// records reports whether sessions in a namespace are recorded.
func (s *Session) records(ctx context.Context, reader client.Reader, namespace string) (bool, error) {
	return s.options.recordsIn(ctx, s.watched, namespace, func(ctx context.Context, name string) (map[string]string, error) {
		found := &metav1.PartialObjectMetadata{}
		found.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
		err := reader.Get(ctx, types.NamespacedName{Name: name}, found)
		return found.Labels, err
	})
}

// recordsIn reports whether sessions in a namespace are recorded. It asks for the labels of
// the namespace if they decide.
func (o *Options) recordsIn(ctx context.Context, watched []string, namespace string, labelsOf func(context.Context, string) (map[string]string, error)) (bool, error) {
	if o.NamespaceSelector == nil {
		return len(watched) == 0 || slices.Contains(watched, namespace), nil
	}
	selector, err := metav1.LabelSelectorAsSelector(o.NamespaceSelector)
	if err != nil {
		return false, err
	}
	found := map[string]string{corev1.LabelMetadataName: namespace}
	if o.byLabels() {
		if found, err = labelsOf(ctx, namespace); err != nil {
			return false, err
		}
	}
	return selector.Matches(labels.Set(found)), nil
}

// byLabels reports whether sessions are recorded by labels of namespaces, and not by names.
func (o *Options) byLabels() bool {
	selector := o.NamespaceSelector
	return selector != nil && (len(selector.MatchLabels) > 0 || slices.ContainsFunc(selector.MatchExpressions, func(r metav1.LabelSelectorRequirement) bool {
		return r.Key != corev1.LabelMetadataName
	}))
}

var getNamespaces = rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"namespaces"}, Verbs: []string{"get"}}

// namespaceRights are those to read the labels of namespaces, if they decide.
func (o *Options) namespaceRights() []rbacv1.PolicyRule {
	if !o.byLabels() {
		return nil
	}
	return []rbacv1.PolicyRule{getNamespaces}
}

// ReaderRights are the rights in the cluster that the reader of CannotEnd needs.
func (s *Session) ReaderRights() []rbacv1.PolicyRule { return s.options.namespaceRights() }
