package enforce

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/audit/internal/act"
)

// grants finds the access requests that cover a session. It reads from the API
// server and not from a cache, which would still have a grant that was revoked a
// moment ago.
//
// It trusts the record of a grant, which only the manager can write, and those
// fields of a request that admission guards. It ignores what a Pod says of
// itself, by labels or its name.
type grants struct {
	client client.Client
	clock  clock.PassiveClock
}

// verbFor returns the verb that an access request must grant for an act.
func verbFor(a *act.Act) v1alpha1.AccessVerb {
	switch a.Record.Way {
	case v1alpha1.WayPodProxy:
		return v1alpha1.VerbPortForward // both open a connection to a port
	case v1alpha1.WayPod:
		return v1alpha1.VerbEphemeralContainers // both run an image of the user's choice
	}
	_, verb, _ := strings.Cut(string(a.Record.Way), "/")
	return v1alpha1.AccessVerb(verb)
}

// covering returns the requests that cover an act, in the order of [v1alpha1.ByUse], and
// why others nearly do.
func (g *grants) covering(ctx context.Context, a *act.Act) (found []v1alpha1.Request, whyNot []string, err error) {
	podUID, err := g.podUID(ctx, a)
	if err != nil || podUID == "" {
		return nil, nil, err
	}
	// The API server selects: a namespace may have thousands of grants.
	var roles rbacv1.RoleList
	labels := client.MatchingLabels{v1alpha1.LabelManagedBy: v1alpha1.ManagedByAccess, v1alpha1.LabelPodUID: string(podUID)}
	if err := g.client.List(ctx, &roles, client.InNamespace(a.Record.Namespace), labels); err != nil {
		return nil, nil, fmt.Errorf("listing the grants of Pod %s/%s: %w", a.Record.Namespace, a.Record.Pod, err)
	}
	for i := range roles.Items {
		grant, err := v1alpha1.GrantOf(&roles.Items[i])
		if err != nil || grant.PodName != a.Record.Pod || !grant.Concerns(a.Record.User.Username, a.Record.User.Groups) {
			continue
		}
		req, why, err := g.live(ctx, grant, a, podUID)
		if err != nil {
			return nil, nil, err
		}
		if why != "" {
			whyNot = append(whyNot, why)
			continue
		}
		found = append(found, req)
	}
	slices.SortStableFunc(found, v1alpha1.ByUse)
	return found, whyNot, nil
}

// podUID returns the UID of the Pod that has the name now. A grant does not cover
// another Pod that took the name.
func (g *grants) podUID(ctx context.Context, a *act.Act) (types.UID, error) {
	if a.Pod != nil && a.Pod.UID != "" {
		return a.Pod.UID, nil
	}
	pod := &metav1.PartialObjectMetadata{}
	pod.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Pod"))
	err := g.client.Get(ctx, types.NamespacedName{Namespace: a.Record.Namespace, Name: a.Record.Pod}, pod)
	if apierrors.IsNotFound(err) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("reading Pod %s/%s: %w", a.Record.Namespace, a.Record.Pod, err)
	}
	return pod.UID, nil
}

// live returns the request of a grant, and why it does not cover the act if it
// does not.
func (g *grants) live(ctx context.Context, grant *v1alpha1.Grant, a *act.Act, podUID types.UID) (v1alpha1.Request, string, error) {
	name := "request " + grant.Request.Name
	var req v1alpha1.Request = &v1alpha1.ExecAccessRequest{}
	if grant.Kind == "PodAccessRequest" {
		req = &v1alpha1.PodAccessRequest{}
	}
	if err := g.client.Get(ctx, grant.Request, req); apierrors.IsNotFound(err) {
		return nil, name + " is gone", nil
	} else if err != nil {
		return nil, "", fmt.Errorf("reading %s %s: %w", grant.Kind, grant.Request, err)
	}
	if req.GetUID() != grant.RequestUID {
		return nil, name + " is gone", nil
	}
	return req, whyNotCovered(req, grant, a, podUID, g.clock.Now()), nil
}

// whyNotCovered says why a request does not cover an act on the Pod with this UID.
// It returns nothing if the request covers the act.
func whyNotCovered(req v1alpha1.Request, grant *v1alpha1.Grant, a *act.Act, podUID types.UID, now time.Time) string {
	name := "request " + req.GetName()
	spec := req.GetRequestSpec()
	end, err := v1alpha1.EndOf(req)
	who := spec.Requester
	switch {
	case err != nil || spec.Duration == "":
		return name + " has no valid duration"
	case !req.GetDeletionTimestamp().IsZero():
		return name + " is being deleted"
	case v1alpha1.Over(req, now):
		return name + " ended at " + end.UTC().Format(time.RFC3339)
	case who == nil || who.Username == "":
		return name + " has no requester"
	case who.Username == a.Record.User.Username && who.UID != "" && a.Record.User.UID != "" && who.UID != a.Record.User.UID:
		return name + " was made by another user of your name"
	case grant.PodUID != podUID:
		return name + " is for a Pod of this name that is gone"
	case !slices.Contains(grant.Verbs, verbFor(a)):
		return fmt.Sprintf("%s grants %s, not %s", name, joined(grant.Verbs), verbFor(a))
	case req.GetRequestStatus().UsedBy != nil:
		used := req.GetRequestStatus().UsedBy
		return fmt.Sprintf("%s was for a single use, and was used by %s for %s at %s", name, used.Username, used.Verb, used.Time.UTC().Format(time.RFC3339))
	}
	return ""
}

func joined(verbs []v1alpha1.AccessVerb) string {
	words := make([]string, len(verbs))
	for i, verb := range verbs {
		words[i] = string(verb)
	}
	return strings.Join(words, " and ")
}

// errUsed is returned by claim when another session was first.
var errUsed = errors.New("another session was first")

// claim uses up a request with singleUse. The resource version decides between
// sessions that begin at the same time, in the same replica or in two: the API
// server accepts one of the writes. Without a write there is no session.
func (g *grants) claim(ctx context.Context, req v1alpha1.Request, a *act.Act) error {
	key, uid := client.ObjectKeyFromObject(req), req.GetUID()
	for {
		if req.GetUID() != uid || req.GetRequestStatus().UsedBy != nil {
			return errUsed
		}
		claimed := req.DeepCopyObject().(v1alpha1.Request)
		claimed.GetRequestStatus().UsedBy = &v1alpha1.Use{
			UID: a.Record.ID, Username: a.Record.User.Username, Verb: string(verbFor(a)), Time: metav1.NewTime(g.clock.Now()),
		}
		err := g.client.Status().Patch(ctx, claimed, client.MergeFromWithOptions(req, client.MergeFromWithOptimisticLock{}))
		if err == nil || !apierrors.IsConflict(err) {
			return err
		}
		// The other writer may be another session, or an update of the status.
		if err := g.client.Get(ctx, key, req); err != nil {
			return err
		}
	}
}

// referTo returns the reference to a request in the record of an act.
func referTo(req v1alpha1.Request) *v1alpha1.AuditAccessRequest {
	if req == nil {
		return nil
	}
	kind := "ExecAccessRequest"
	if _, ok := req.(*v1alpha1.PodAccessRequest); ok {
		kind = "PodAccessRequest"
	}
	return &v1alpha1.AuditAccessRequest{Kind: kind, Name: req.GetName(), UID: req.GetUID()}
}
