package audit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/admitkit/admitkit/api/v1alpha1"
)

// LabelEnforce on a Namespace, with the value "true", turns enforcement on for
// it. Who may exec may as a rule not write Namespaces.
const LabelEnforce = "admitkit.dev/enforce-access"

// Enforcement makes sessions need a live access request, of extension/access:
// without one there is no exec, attach, portforward, proxy or ephemeral
// container, whatever RBAC allows.
//
// In the namespaces that it is on for, the webhook's failure policy is Fail:
// while no replica runs there are no sessions, except those of exempt users,
// for whom the failure policy of recording holds.
type Enforcement struct {
	// Namespaces are the names of those in which it is on. Default: those with
	// the label [LabelEnforce].
	Namespaces []string
	// ExemptUsers and ExemptGroups are held to no rule (break-glass). When they
	// break one, the record, a warning and a metric say so. Put service accounts
	// here by their user names: system:serviceaccount:NAMESPACE:NAME.
	ExemptUsers, ExemptGroups []string
	// Commands are those that exec and ephemeral containers may run. Default:
	// any.
	Commands []Command
	// ForbidTTY and ForbidStdin forbid terminals and standard input.
	ForbidTTY, ForbidStdin bool
}

func (e *Enforcement) validate() error {
	for i, namespace := range e.Namespaces {
		if problems := validation.IsDNS1123Label(namespace); len(problems) > 0 {
			return fmt.Errorf("Enforcement.Namespaces[%d]: %q: %s", i, namespace, strings.Join(problems, ", "))
		}
	}
	for i, c := range e.Commands {
		if err := c.validate(); err != nil {
			return fmt.Errorf("Enforcement.Commands[%d]: %w", i, err)
		}
	}
	for name, list := range map[string][]string{"ExemptUsers": e.ExemptUsers, "ExemptGroups": e.ExemptGroups} {
		if i := slices.Index(list, ""); i >= 0 {
			return fmt.Errorf("Enforcement.%s[%d] is empty", name, i)
		}
	}
	return nil
}

// named selects one namespace.
func named(namespace string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: namespace}}
}

// selector selects the namespaces in which enforcement is on, or those in which
// it is off, of those that base selects.
func (e *Enforcement) selector(base *metav1.LabelSelector, on bool) *metav1.LabelSelector {
	key, values, operator := LabelEnforce, []string{"true"}, metav1.LabelSelectorOpIn
	if len(e.Namespaces) > 0 {
		key, values = corev1.LabelMetadataName, e.Namespaces
	}
	if !on {
		operator = metav1.LabelSelectorOpNotIn
	}
	selector := &metav1.LabelSelector{}
	if base != nil {
		selector = base.DeepCopy()
	}
	selector.MatchExpressions = append(selector.MatchExpressions, metav1.LabelSelectorRequirement{Key: key, Operator: operator, Values: values})
	if on {
		// Who turns it on for kube-system means that, too: no cluster needs a
		// session to start.
		selector.MatchExpressions = append(selector.MatchExpressions, metav1.LabelSelectorRequirement{Key: corev1.LabelMetadataName, Operator: metav1.LabelSelectorOpExists})
	}
	return selector
}

// enforcer decides.
type enforcer struct {
	*Enforcement
	grants *grants
}

// decide decides about an act. When it cannot, it denies. What it allows by a
// request for a single use is used up.
func (e *enforcer) decide(ctx context.Context, a *act) decision {
	if a.record.Way == v1alpha1.WayNodeProxy {
		return e.settle(a, e.judgeKubelet(ctx, a))
	}
	broken, req := e.judge(ctx, a)
	d := e.settle(a, broken)
	d.accessRequest = referTo(req)
	return d
}

// settle makes a decision of the rule that is broken, if one is.
func (e *enforcer) settle(a *act, broken *violation) decision {
	if broken == nil {
		return decision{}
	}
	d := decision{rule: string(broken.rule), reason: broken.text(a)}
	if by := e.exemption(&a.record.User); by != "" {
		d.breakGlass = true
		a.req.Warnf("break-glass: rule %s does not hold for %s; this is on record", broken.rule, by)
		exempted.WithLabelValues(string(a.record.Way), d.rule).Inc()
		return d
	}
	d.denied = true
	enforced.WithLabelValues(string(a.record.Way), d.rule).Inc()
	return d
}

// judge returns the rule that an act breaks, or nil and the request that
// covers it.
func (e *enforcer) judge(ctx context.Context, a *act) (*violation, accessRequest) {
	if broken := e.staticRules(a); broken != nil {
		return broken, nil
	}
	found, whyNot, err := e.grants.covering(ctx, a)
	if err != nil {
		return undecided(err), nil
	}
	for _, req := range found {
		if !req.GetRequestSpec().SingleUse || a.record.DryRun {
			return nil, req
		}
		err := e.grants.claim(ctx, req, a)
		switch {
		case err == nil:
			return nil, req
		case errors.Is(err, errUsed), apierrors.IsNotFound(err):
			whyNot = append(whyNot, "request "+req.GetName()+" was for a single use, and another session was first")
		default:
			return undecided(fmt.Errorf("request %s is for a single use, and cannot be marked as used: %w", req.GetName(), err)), nil
		}
	}
	rule := RuleRequest
	if len(found) > 0 {
		rule = RuleSingleUse
	}
	return violates(rule, "%s needs a live access request here. %s", a.record.User.Username, e.grants.advice(ctx, a, whyNot)), nil
}

func undecided(err error) *violation {
	return violates(RuleUndecided, "it cannot be told whether a request covers it, and so it is refused; try again: %v", err)
}

// judgeKubelet judges a request to a kubelet through nodes/proxy. Of a session
// there the admission request has not the query, in which the command is, so
// that none is allowed into a namespace where enforcement is on.
func (e *enforcer) judgeKubelet(ctx context.Context, a *act) *violation {
	options, ok := a.object.(*corev1.NodeProxyOptions)
	if ok && harmless.MatchString(options.Path) {
		return nil
	}
	r := &a.record
	if r.Namespace == "" {
		return violates(RuleKubelet, "this path may be a way into a container, past every rule; use kubectl exec, with an access request")
	}
	on, err := e.isOn(ctx, r.Namespace)
	switch {
	case err != nil:
		return undecided(err)
	case on:
		return violates(RuleKubelet, "it leads into Pod %s/%s past every rule; use kubectl exec, with an access request", r.Namespace, r.Pod)
	}
	return nil
}

// isOn reports whether enforcement is on for a namespace. The webhook's selector
// says so, where the request has a namespace.
func (e *enforcer) isOn(ctx context.Context, name string) (bool, error) {
	if len(e.Namespaces) > 0 {
		return slices.Contains(e.Namespaces, name), nil
	}
	namespace := &metav1.PartialObjectMetadata{}
	namespace.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
	err := e.grants.client.Get(ctx, types.NamespacedName{Name: name}, namespace)
	if apierrors.IsNotFound(err) {
		return true, nil // or what it says is not what the kubelet reads
	}
	if err != nil {
		return false, fmt.Errorf("reading Namespace %s: %w", name, err)
	}
	return namespace.Labels[LabelEnforce] == "true", nil
}
