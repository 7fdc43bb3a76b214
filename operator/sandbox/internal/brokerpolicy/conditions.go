package brokerpolicy

import (
	"context"
	"fmt"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/extension/cluster"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

// discovery says in the status of each BrokerPolicy whether it lets runs discover
// names. It decides nothing: what enforces a policy reads the end itself.
type discovery struct {
	clock      clock.PassiveClock
	namespaces []string
	client     client.Client
}

var (
	_ extension.Reconciler        = (*discovery)(nil)
	_ extension.Entitled          = (*discovery)(nil)
	_ extension.NamespaceEntitled = (*discovery)(nil)
)

// Rights implements [extension.Entitled].
func (c *discovery) Rights() []rbacv1.PolicyRule {
	if len(c.namespaces) > 0 {
		return nil
	}
	return conditionRights()
}

// NamespaceRights implements [extension.NamespaceEntitled].
func (c *discovery) NamespaceRights() map[string][]rbacv1.PolicyRule {
	rights := make(map[string][]rbacv1.PolicyRule, len(c.namespaces))
	for _, namespace := range c.namespaces {
		rights[namespace] = conditionRights()
	}
	return rights
}

func conditionRights() []rbacv1.PolicyRule {
	group := []string{v1alpha1.GroupVersion.Group}
	return []rbacv1.PolicyRule{
		{APIGroups: group, Resources: []string{"brokerpolicies"}, Verbs: []string{"get", "list", "watch"}},
		{APIGroups: group, Resources: []string{"brokerpolicies/status"}, Verbs: []string{"patch"}},
	}
}

// Register watches BrokerPolicies.
func (c *discovery) Register(mgr extension.Manager) error {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		return err
	}
	own, err := cluster.New(mgr, cluster.Options{Name: "broker-policy", Scheme: scheme, Namespaces: c.namespaces})
	if err != nil {
		return err
	}
	c.client = own.GetClient()
	return builder.ControllerManagedBy(mgr.GetKubeManager()).Named("broker-policy").
		WatchesRawSource(source.Kind(own.GetCache(), &v1alpha1.BrokerPolicy{}, &handler.TypedEnqueueRequestForObject[*v1alpha1.BrokerPolicy]{})).
		Complete(c)
}

// Reconcile writes the conditions, and asks to be called again a second after the end.
func (c *discovery) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	policy := &v1alpha1.BrokerPolicy{}
	if err := c.client.Get(ctx, req.NamespacedName, policy); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	before := policy.DeepCopy()
	again := setDiscovery(policy, c.clock.Now())
	if !apiequality.Semantic.DeepEqual(before.Status, policy.Status) {
		if err := c.client.Status().Patch(ctx, policy, client.MergeFrom(before)); client.IgnoreNotFound(err) != nil {
			return reconcile.Result{}, fmt.Errorf("writing the conditions of BrokerPolicy %s: %w", req.NamespacedName, err)
		}
	}
	return reconcile.Result{RequeueAfter: again}, nil
}

// setDiscovery sets the conditions as they are now, and returns when they change.
func setDiscovery(policy *v1alpha1.BrokerPolicy, now time.Time) (again time.Duration) {
	active, expired, reason, message := metav1.ConditionFalse, metav1.ConditionFalse, v1alpha1.DiscoveryNone, "runs reach the names of spec.egress only"
	if discovery := policy.Spec.EgressDiscovery; discovery != nil {
		end := discovery.ExpiresAt.Time
		if policy.Discovers(now) {
			active, reason, again = metav1.ConditionTrue, v1alpha1.DiscoveryActive, end.Sub(now)+time.Second
			message = fmt.Sprintf("runs reach every name until %s, and each is on record", stamp(end))
		} else {
			expired, reason = metav1.ConditionTrue, v1alpha1.DiscoveryExpired
			message = fmt.Sprintf("the discovery ended at %s: runs reach the names of spec.egress only; remove spec.egressDiscovery", stamp(end))
		}
	}
	policy.Status.ObservedGeneration = policy.Generation
	for _, condition := range []metav1.Condition{
		{Type: v1alpha1.ConditionDiscoveryModeActive, Status: active},
		{Type: v1alpha1.ConditionDiscoveryExpired, Status: expired},
	} {
		condition.Reason, condition.Message, condition.ObservedGeneration, condition.LastTransitionTime = reason, message, policy.Generation, metav1.NewTime(now)
		meta.SetStatusCondition(&policy.Status.Conditions, condition)
	}
	return again
}
