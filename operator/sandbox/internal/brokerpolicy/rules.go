package brokerpolicy

import (
	"context"
	"fmt"
	"net/textproto"
	"slices"
	"strings"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/extension/cluster"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/sandbox/internal/owned"
)

// Parts are what admits BrokerPolicies, and what keeps their conditions in these namespaces, none for every one.
func Parts(mgr extension.Manager, namespaces []string) []any {
	fail := admissionregistrationv1.Fail
	scope := extension.Scope{
		Name: "broker-policy", FailurePolicy: &fail, Modes: []extension.Mode{extension.Enforce}, NamespaceSelector: extension.EveryNamespace(),
		Rules: extension.Resources(v1alpha1.GroupVersion.Group, v1alpha1.GroupVersion.Version, []string{"brokerpolicies"},
			admissionregistrationv1.Create, admissionregistrationv1.Update),
	}
	return []any{
		extension.Validating(&rules{clock: mgr.GetClock()}, scope),
		&discovery{clock: mgr.GetClock(), namespaces: namespaces},
	}
}

// rules judges BrokerPolicies by what their schema cannot express.
type rules struct {
	clock clock.PassiveClock
	// asker asks the API server who may read Secrets. Register sets it.
	asker client.Client
}

var (
	_ extension.Validator[*v1alpha1.BrokerPolicy] = (*rules)(nil)
	_ extension.Hosted                            = (*rules)(nil)
	_ extension.ClusterEntitled                   = (*rules)(nil)
)

// Register connects to the cluster.
func (r *rules) Register(mgr extension.Manager) (err error) {
	r.asker, err = cluster.NewClient(mgr, nil)
	return err
}

// ClusterRights implements [extension.ClusterEntitled]: a policy can be in any namespace.
func (*rules) ClusterRights() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{{APIGroups: []string{"authorization.k8s.io"}, Resources: []string{"subjectaccessreviews"}, Verbs: []string{"create"}}}
}

// Validate refuses names that no run can be held to, a discovery without a near end, and
// credentials that the author may not read.
func (r *rules) Validate(ctx context.Context, policy *v1alpha1.BrokerPolicy, req *extension.Request) error {
	var old *v1alpha1.BrokerPolicy
	if req.Operation == admissionv1.Update {
		var err error
		if old, err = extension.Old[*v1alpha1.BrokerPolicy](req); err != nil {
			return err
		}
		if apiequality.Semantic.DeepEqual(policy.Spec, old.Spec) {
			return nil // as of what takes a finalizer away
		}
	}
	for _, warning := range warnings(&policy.Spec) {
		req.Warnf("%s", warning)
	}
	if problem := refuse(&policy.Spec); problem != "" {
		return extension.Deny(problem)
	}
	if problem := r.refuseDiscovery(policy, old); problem != "" {
		return extension.Deny(problem)
	}
	return r.mayRead(ctx, policy, req)
}

// refuse says what is wrong with the names in a policy, "" if nothing is.
func refuse(spec *v1alpha1.BrokerPolicySpec) string {
	if problem := RefuseNames("spec.egress", spec.Egress); problem != "" {
		return problem
	}
	for i := range spec.Grants.Credentials {
		if problem := refuseGrant(spec, i); problem != "" {
			return fmt.Sprintf("spec.grants.credentials[%d].%s", i, problem)
		}
	}
	return ""
}

// refuseGrant says what is wrong with a credential, with the field in it, "" if nothing is.
func refuseGrant(spec *v1alpha1.BrokerPolicySpec, i int) string {
	grant := &spec.Grants.Credentials[i]
	inject := grant.Delivery.ProxyInjected
	if inject == nil {
		if len(spec.AppliesToTemplates) == 0 {
			return "delivery.inContainer: the policy applies to no template, and " + inSeed
		}
		if owned.IsReserved(grant.Name) {
			return fmt.Sprintf("name: %s is reserved: the container would have the credential in place of what the sandbox itself sets; choose another name", grant.Name)
		}
		return ""
	}
	if isOfHTTP(inject.Header) {
		return fmt.Sprintf("delivery.proxyInjected.header: HTTP itself uses %s, and the server would not get the credential: choose another, such as Authorization", inject.Header)
	}
	for j, host := range inject.Hosts {
		field := fmt.Sprintf("delivery.proxyInjected.hosts[%d]: %q", j, host)
		if problem := RefuseHost(host); problem != "" {
			return field + " " + problem
		}
		if !slices.ContainsFunc(spec.Egress, func(e v1alpha1.EgressName) bool { return v1alpha1.CoversHost(e.Host, host) }) {
			return field + " is not allowed by spec.egress of this policy: add it there, since the credential would never be used"
		}
		if k := rival(spec.Grants.Credentials[:i], inject.Header, host); k >= 0 {
			return fmt.Sprintf("%s gets the header %s of spec.grants.credentials[%d], too, and one would replace the other: give them hosts or headers of their own", field, inject.Header, k)
		}
	}
	return ""
}

// rival is which of these credentials is set in the same header at a host, -1 for none.
func rival(before []v1alpha1.CredentialGrant, header, host string) int {
	return slices.IndexFunc(before, func(other v1alpha1.CredentialGrant) bool {
		inject := other.Delivery.ProxyInjected
		return inject != nil && strings.EqualFold(inject.Header, header) && slices.ContainsFunc(inject.Hosts, func(of string) bool {
			return v1alpha1.CoversHost(of, host) || v1alpha1.CoversHost(host, of)
		})
	})
}

// isOfHTTP reports whether a header says how a request is sent, so that a proxy replaces or removes it.
func isOfHTTP(header string) bool {
	header = textproto.CanonicalMIMEHeaderKey(header)
	return strings.HasPrefix(header, "Proxy-") || slices.Contains([]string{"Host", "Connection", "Content-Length", "Keep-Alive", "Te", "Trailer", "Transfer-Encoding", "Upgrade"}, header)
}

// refuseDiscovery refuses an end that is over or far away. One that has passed can stay
// while the rest of a policy changes.
func (r *rules) refuseDiscovery(policy, old *v1alpha1.BrokerPolicy) string {
	discovery := policy.Spec.EgressDiscovery
	if discovery == nil || old != nil && apiequality.Semantic.DeepEqual(discovery, old.Spec.EgressDiscovery) {
		return ""
	}
	now, end := r.clock.Now(), discovery.ExpiresAt.Time
	switch {
	case !end.After(now):
		return fmt.Sprintf("spec.egressDiscovery.expiresAt: %s is over; it is %s", stamp(end), stamp(now))
	case end.Sub(now) > v1alpha1.MaxDiscovery:
		return fmt.Sprintf("spec.egressDiscovery.expiresAt: %s is more than %s ahead; it is %s", stamp(end), v1alpha1.MaxDiscovery, stamp(now))
	}
	return ""
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// mayRead refuses a policy whose author may not read the Secrets that it names: they would
// get them by a run of their own.
func (r *rules) mayRead(ctx context.Context, policy *v1alpha1.BrokerPolicy, req *extension.Request) error {
	asked := map[string]bool{}
	for i := range policy.Spec.Grants.Credentials {
		grant := &policy.Spec.Grants.Credentials[i]
		name := grant.SecretName()
		if name == "" || asked[name] {
			continue
		}
		asked[name] = true
		allowed, err := r.mayGet(ctx, req.User(), req.Namespace, name)
		if err != nil {
			return err
		}
		if !allowed {
			return extension.Denyf("spec.grants.credentials[%d]: user %q may not read Secret %s/%s, and so cannot give it to runs: grant them the verb get on secrets with resourceNames [%q]",
				i, req.User().Username, req.Namespace, name, name)
		}
	}
	return nil
}

func (r *rules) mayGet(ctx context.Context, user authenticationv1.UserInfo, namespace, secret string) (bool, error) {
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: user.Username, UID: user.UID, Groups: user.Groups, Extra: make(map[string]authorizationv1.ExtraValue, len(user.Extra)),
		ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: namespace, Verb: "get", Version: "v1", Resource: "secrets", Name: secret},
	}}
	for key, value := range user.Extra {
		review.Spec.Extra[key] = authorizationv1.ExtraValue(value)
	}
	if err := r.asker.Create(ctx, review); err != nil {
		return false, fmt.Errorf("asking whether user %q may read Secret %s/%s: %w", user.Username, namespace, secret, err)
	}
	return review.Status.Allowed && !review.Status.Denied, nil
}
