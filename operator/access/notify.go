package access

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/extension/deliver"
	"github.com/admitkit/admitkit/operator/access/internal/decision"
	"github.com/admitkit/admitkit/operator/access/internal/grant"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

// NotificationType begins the types of notifications: dev.admitkit.access.granted is that of
// the step granted.
const NotificationType = "dev.admitkit.access."

// Notification is the data of a CloudEvent about a step of a request. Its ID is the UID of
// the request and the step, with what tells it from others of that step, so that one which
// is sent again, as after a restart, is known by it. It holds no secret, and what is in it
// is bounded by the CRDs.
type Notification struct {
	// Step is asked, waiting, approved, denied, timed-out, granted, ending, revoked or
	// ended.
	Step string `json:"step"`
	// Kind, Namespace, Name and UID are the request's.
	Kind      string `json:"kind"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	UID       string `json:"uid"`
	// Requester is who asks, OnBehalfOf who gets access instead, if anybody, and By who
	// approves, denies or revokes.
	Requester  string `json:"requester,omitempty"`
	OnBehalfOf string `json:"onBehalfOf,omitempty"`
	By         string `json:"by,omitempty"`
	Template   string `json:"template,omitempty"`
	Pod        string `json:"pod,omitempty"`
	// Role is what a request for a role was granted, as "ClusterRole view".
	Role string `json:"role,omitempty"`
	// Reason is that of the request, and Message the step in a sentence, for people.
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message"`
	// Until is when access ends, or how long the request waits for approval.
	Until *time.Time `json:"until,omitempty"`
	// Waiting is how it stands with the approval, if the request needs any.
	Waiting *NotifiedApproval `json:"waiting,omitempty"`
}

// NotifiedApproval says how many approvals there are, and who may give the others.
type NotifiedApproval struct {
	Approvals int      `json:"approvals"`
	Required  int      `json:"required"`
	Groups    []string `json:"groups,omitempty"`
	Users     []string `json:"users,omitempty"`
}

// Steps that are no records; see the actions of records for the others.
const (
	stepWaiting = "waiting"
	stepEnding  = "ending"
)

// step is a notification with the ID of its event.
type step struct {
	id string
	Notification
}

// stepsOf returns the notifications of what a status says that the one before did not.
func stepsOf(k grant.Kind, req v1alpha1.Request, before *v1alpha1.RequestStatus, s *decision.Status) (steps []step) { //nolint:gocyclo // a list of cases, each of which stands alone
	spec := req.GetRequestSpec()
	tell := func(name, suffix, by, format string, args ...any) {
		steps = append(steps, newStep(k, req, s, name, suffix, by, fmt.Sprintf(format, args...)))
	}
	if len(before.Conditions) == 0 {
		tell(grant.ActionAsked, "", "", "%s", grant.AskedFor(req))
	}
	approved, checked := s.Wanted[v1alpha1.ConditionApproved], s.Wanted[v1alpha1.ConditionChecked]
	if approved.Reason == v1alpha1.ReasonWaiting && meta.FindStatusCondition(before.Conditions, approved.Type) == nil {
		tell(stepWaiting, "", "", "%s", approved.Message)
	}
	for _, v := range decision.NewVerdicts(before.Verdicts, s.Verdicts) {
		if v.Decision == v1alpha1.DecisionDeny {
			tell(grant.ActionDenied, "-"+grant.ShortHash(v.Username), v.Username, "%s denies the request of %s: %s", v.Username, grant.RequesterOf(req), grant.Said(v.Reason))
		} else {
			tell(grant.ActionApproved, "-"+grant.ShortHash(v.Username), v.Username, "%s approves the request of %s: %s", v.Username, grant.RequesterOf(req), grant.Said(v.Reason))
		}
	}
	valid := s.Wanted[v1alpha1.ConditionAccessStillValid]
	over := valid.Status == metav1.ConditionFalse && !meta.IsStatusConditionFalse(before.Conditions, valid.Type)
	created := meta.IsStatusConditionTrue(before.Conditions, v1alpha1.ConditionAccessResourcesCreated)
	switch {
	case over && checked.Reason == v1alpha1.ReasonDenied:
		tell(grant.ActionDenied, "", "check "+s.Check.Name, "the request of %s was %s", grant.RequesterOf(req), checked.Message)
	case over && valid.Reason == v1alpha1.ReasonTimedOut || over && approved.Reason == v1alpha1.ReasonTimedOut:
		tell(grant.ActionTimedOut, "", "", "the request of %s is over: %s", grant.RequesterOf(req), valid.Message)
	case over && spec.Revoked != nil:
		tell(grant.ActionRevoked, "", spec.Revoked.By, "%s revokes the request of %s: %s", spec.Revoked.By, grant.RequesterOf(req), grant.Said(spec.Revoked.Reason))
	}
	switch {
	case over && created:
		tell(grant.ActionEnded, "", "", "access of %s has ended: %s", spec.Grantee(), valid.Message)
	case created && s.Lost():
		tell(grant.ActionEnded, "", "", "access of %s has ended: %s", spec.Grantee(), s.Wanted[v1alpha1.ConditionAccessResourcesCreated].Message)
	case !over && !created && meta.IsStatusConditionTrue(s.Conditions, v1alpha1.ConditionAccessResourcesCreated):
		tell(grant.ActionGranted, "", "", "%s", mayAccess(s, spec))
	}
	if announced(before, s) {
		tell(stepEnding, fmt.Sprintf("-%d", s.EndAnnounced.Unix()), "", "access of %s ends at %s", spec.Grantee(), s.EndAnnounced.UTC().Format(time.RFC3339))
	}
	return steps
}

// announced reports whether the end of access is announced now.
func announced(before *v1alpha1.RequestStatus, s *decision.Status) bool {
	return s.EndAnnounced != nil && !s.EndAnnounced.Equal(before.EndAnnounced)
}

func newStep(k grant.Kind, req v1alpha1.Request, s *decision.Status, name, suffix, by, message string) step {
	spec := req.GetRequestSpec()
	n := Notification{
		Step: name, Kind: k.RequestKind, Namespace: req.GetNamespace(), Name: req.GetName(), UID: string(req.GetUID()),
		OnBehalfOf: spec.OnBehalfOf, By: by, Template: spec.TemplateName, Pod: s.PodName, Reason: spec.Reason, Message: noteOf(message),
	}
	if spec.Requester != nil {
		n.Requester = spec.Requester.Username
	}
	if role := s.GrantedRole; role != nil {
		n.Role = role.Kind + " " + role.Name
	}
	if s.ExpiresAt != nil {
		n.Until = new(s.ExpiresAt.UTC())
	}
	if terms := spec.Approval; terms.Needed() {
		n.Waiting = &NotifiedApproval{Approvals: len(approvalsOf(s.Verdicts)), Required: int(terms.Required), Groups: terms.Groups, Users: terms.Users}
		if until, waits := v1alpha1.BeginOf(req); waits && s.ExpiresAt == nil && s.ApprovedAt == nil {
			n.Until = new(until.UTC())
		}
	}
	return step{n.UID + "-" + name + suffix, n}
}

func approvalsOf(verdicts []v1alpha1.Verdict) (approvals []v1alpha1.Verdict) {
	for _, v := range verdicts {
		if v.Decision == v1alpha1.DecisionApprove {
			approvals = append(approvals, v)
		}
	}
	return approvals
}

// stepOf returns the notification of a record about a request that is gone.
func stepOf(record extension.Record) step {
	return step{record.ID, Notification{
		Step: record.Action, Kind: record.Object.Kind, Namespace: record.Object.Namespace, Name: record.Object.Name, UID: string(record.Object.UID),
		Requester: record.User.Username, Pod: record.Pod.Name, Message: noteOf(record.Reason),
	}}
}

// notify sends notifications, and waits for nobody. What this process has sent it does not
// send again.
func (a *shared) notify(steps []step) {
	if a.notifier == nil {
		return
	}
	for _, s := range steps {
		key := "notification " + s.id
		if _, told := a.told.Get(key); told {
			continue
		}
		a.told.Add(key, nil)
		a.notifier.enqueue(deliver.Event{
			ID: s.id, Type: NotificationType + s.Step, Subject: strings.Join([]string{s.Kind, s.Namespace, s.Name}, "/"), Time: a.Clock.Now(), Data: s.Notification,
		})
	}
}

var notificationsLost = prometheus.NewCounter(prometheus.CounterOpts{
	Name: "admitkit_access_notifications_lost_total", Help: "Notifications about access requests that were lost: the queue was full, or the receiver rejected them for good.",
})

func init() { metrics.Registry.MustRegister(notificationsLost) }

// Limits of notifications that wait: to be queued, and, in memory, to be sent.
const maxNotifications = 1000

// notifier queues notifications apart from the reconcilers, which must wait neither for a
// receiver nor for a disk.
type notifier struct {
	sender *deliver.Events
	queue  chan deliver.Event
	// losing says that the log has said so.
	losing atomic.Bool
	log    *zap.Logger

	once sync.Once
	err  error
}

var _ manager.LeaderElectionRunnable = (*notifier)(nil)

func newNotifier(options deliver.EventOptions) *notifier {
	n := &notifier{queue: make(chan deliver.Event, maxNotifications), log: zap.NewNop()}
	options.Name = cmp.Or(options.Name, "access")
	options.Source = cmp.Or(options.Source, "admitkit.dev/access")
	if options.Dir == "" {
		options.Memory = true
		options.MaxQueued = cmp.Or(options.MaxQueued, maxNotifications)
	}
	rejected := options.Rejected
	options.Rejected = func(event []byte) {
		notificationsLost.Inc()
		if rejected != nil {
			rejected(event)
		}
	}
	n.sender = deliver.NewEvents(options)
	return n
}

// register has the manager send, once for all kinds of access.
func (n *notifier) register(mgr extension.Manager) error {
	n.once.Do(func() {
		n.log = mgr.GetLogger().Desugar().Named("access")
		if n.err = n.sender.Register(mgr); n.err == nil {
			n.err = mgr.GetKubeManager().Add(n)
		}
	})
	return n.err
}

// NeedLeaderElection is false: what waits when a leader steps down is still sent.
func (*notifier) NeedLeaderElection() bool { return false }

func (n *notifier) enqueue(event deliver.Event) {
	select {
	case n.queue <- event:
	default:
		n.lost(event, errors.New("too many wait to be queued"))
	}
}

// lost counts a notification that is lost, and logs the first of several.
func (n *notifier) lost(event deliver.Event, err error) {
	notificationsLost.Inc()
	if n.losing.CompareAndSwap(false, true) {
		n.log.Error("notifications about access requests are lost, from this one on", zap.String("id", event.ID), zap.Error(err))
	}
}

// queueTimeout bounds the wait for a disk that hangs.
const queueTimeout = 10 * time.Second

// Start queues until ctx ends, and then what is left.
func (n *notifier) Start(ctx context.Context) error {
	for {
		select {
		case event := <-n.queue:
			n.push(ctx, event)
		case <-ctx.Done():
			for {
				select {
				case event := <-n.queue:
					n.push(ctx, event)
				default:
					return nil
				}
			}
		}
	}
}

func (n *notifier) push(ctx context.Context, event deliver.Event) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), queueTimeout)
	defer cancel()
	if err := n.sender.Send(ctx, event); err != nil {
		n.lost(event, err)
		return
	}
	n.losing.Store(false)
}
