// Package registration makes the API server call the webhooks: it builds the
// MutatingWebhookConfiguration and the ValidatingWebhookConfiguration, applies
// them and removes them.
//
// Both are written by server-side apply under one field manager, in one step
// and never by delete and create, so that there is no moment in which the API
// server does not know them, and replicas that start together write the same
// thing. What others own in them (labels, annotations) is left alone.
//
// Their name is FINGERPRINT.NAMESPACE, with the namespace of the manager, so
// that two installations never write the same object.
package registration

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	applyadmissionregistrationv1 "k8s.io/client-go/applyconfigurations/admissionregistration/v1"
	applymetav1 "k8s.io/client-go/applyconfigurations/meta/v1"
	admissionregistrationv1client "k8s.io/client-go/kubernetes/typed/admissionregistration/v1"
	"k8s.io/client-go/util/retry"

	"github.com/admitkit/admitkit/webhook"
)

// FieldManager is the owner, in server-side apply, of what this package writes.
const FieldManager = "admitkit"

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

// Registration is the configuration of one installation.
type Registration struct {
	// Name of both objects, a DNS subdomain.
	Name string
	// Domain is appended to the names of the webhooks, which must be fully
	// qualified.
	Domain string
	// Labels are put on both objects.
	Labels map[string]string
	// Webhooks are the entries. A kind of which there is none has no object.
	Webhooks []*webhook.Webhook
	// Target is where they are served.
	Target Target
	// Bundle is the PEM of the certificates that the API server trusts.
	Bundle []byte
}

// Apply writes the objects, and removes the one that has no entries any more.
func (r *Registration) Apply(ctx context.Context, client admissionregistrationv1client.AdmissionregistrationV1Interface) error {
	mutating, validating := r.mutating(), r.validating()
	options := metav1.ApplyOptions{FieldManager: FieldManager, Force: true}
	if len(mutating.Webhooks) > 0 {
		if err := retryConflict(func() error {
			_, err := client.MutatingWebhookConfigurations().Apply(ctx, mutating, options)
			return err
		}); err != nil {
			return fmt.Errorf("applying MutatingWebhookConfiguration %s: %w", r.Name, err)
		}
	} else if err := removeMutating(ctx, client, r.Name); err != nil {
		return err
	}
	if len(validating.Webhooks) > 0 {
		if err := retryConflict(func() error {
			_, err := client.ValidatingWebhookConfigurations().Apply(ctx, validating, options)
			return err
		}); err != nil {
			return fmt.Errorf("applying ValidatingWebhookConfiguration %s: %w", r.Name, err)
		}
	} else if err := removeValidating(ctx, client, r.Name); err != nil {
		return err
	}
	return nil
}

// Remove deletes both objects. One that does not exist is no error.
func Remove(ctx context.Context, client admissionregistrationv1client.AdmissionregistrationV1Interface, name string) error {
	return errors.Join(removeMutating(ctx, client, name), removeValidating(ctx, client, name))
}

func removeMutating(ctx context.Context, client admissionregistrationv1client.AdmissionregistrationV1Interface, name string) error {
	err := client.MutatingWebhookConfigurations().Delete(ctx, name, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("deleting MutatingWebhookConfiguration %s: %w", name, err)
	}
	return nil
}

func removeValidating(ctx context.Context, client admissionregistrationv1client.AdmissionregistrationV1Interface, name string) error {
	err := client.ValidatingWebhookConfigurations().Delete(ctx, name, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("deleting ValidatingWebhookConfiguration %s: %w", name, err)
	}
	return nil
}

// retryConflict runs an apply again when another replica wrote in between. The
// API server retries too, but gives up after a few rounds.
func retryConflict(apply func() error) error {
	return retry.OnError(retry.DefaultBackoff, func(err error) bool {
		return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err)
	}, apply)
}

func (r *Registration) mutating() *applyadmissionregistrationv1.MutatingWebhookConfigurationApplyConfiguration {
	config := applyadmissionregistrationv1.MutatingWebhookConfiguration(r.Name).WithLabels(r.Labels)
	for _, w := range r.Webhooks {
		if !w.Mutating {
			continue
		}
		entry := applyadmissionregistrationv1.MutatingWebhook().
			WithName(w.Name + "." + r.Domain).
			WithClientConfig(r.clientConfig(w)).
			WithAdmissionReviewVersions("v1").
			WithFailurePolicy(*w.Scope.FailurePolicy).
			WithMatchPolicy(*w.Scope.MatchPolicy).
			WithReinvocationPolicy(*w.Scope.ReinvocationPolicy).
			WithSideEffects(*w.Scope.SideEffects).
			WithTimeoutSeconds(seconds(w.Scope.Timeout)).
			WithNamespaceSelector(selector(w.Scope.NamespaceSelector)).
			WithObjectSelector(selector(w.Scope.ObjectSelector)).
			WithRules(rules(w.Scope.Rules)...).
			WithMatchConditions(matchConditions(w.Scope.MatchConditions)...)
		config.WithWebhooks(entry)
	}
	return config
}

func (r *Registration) validating() *applyadmissionregistrationv1.ValidatingWebhookConfigurationApplyConfiguration {
	config := applyadmissionregistrationv1.ValidatingWebhookConfiguration(r.Name).WithLabels(r.Labels)
	for _, w := range r.Webhooks {
		if w.Mutating {
			continue
		}
		entry := applyadmissionregistrationv1.ValidatingWebhook().
			WithName(w.Name + "." + r.Domain).
			WithClientConfig(r.clientConfig(w)).
			WithAdmissionReviewVersions("v1").
			WithFailurePolicy(*w.Scope.FailurePolicy).
			WithMatchPolicy(*w.Scope.MatchPolicy).
			WithSideEffects(*w.Scope.SideEffects).
			WithTimeoutSeconds(seconds(w.Scope.Timeout)).
			WithNamespaceSelector(selector(w.Scope.NamespaceSelector)).
			WithObjectSelector(selector(w.Scope.ObjectSelector)).
			WithRules(rules(w.Scope.Rules)...).
			WithMatchConditions(matchConditions(w.Scope.MatchConditions)...)
		config.WithWebhooks(entry)
	}
	return config
}

func (r *Registration) clientConfig(w *webhook.Webhook) *applyadmissionregistrationv1.WebhookClientConfigApplyConfiguration {
	config := applyadmissionregistrationv1.WebhookClientConfig().WithCABundle(r.Bundle...)
	if r.Target.ServiceName != "" {
		return config.WithService(applyadmissionregistrationv1.ServiceReference().
			WithNamespace(r.Target.ServiceNamespace).
			WithName(r.Target.ServiceName).
			WithPort(r.Target.ServicePort).
			WithPath(w.Path()))
	}
	address := net.JoinHostPort(r.Target.Host, strconv.Itoa(int(r.Target.Port)))
	return config.WithURL((&url.URL{Scheme: "https", Host: address, Path: w.Path()}).String())
}

// seconds is exact: a scope's timeout is whole seconds, 30 at most.
func seconds(timeout time.Duration) int32 {
	return int32(timeout / time.Second) //nolint:gosec // see above
}

func rules(rules []admissionregistrationv1.RuleWithOperations) []*applyadmissionregistrationv1.RuleWithOperationsApplyConfiguration {
	configs := make([]*applyadmissionregistrationv1.RuleWithOperationsApplyConfiguration, 0, len(rules))
	for _, rule := range rules {
		config := applyadmissionregistrationv1.RuleWithOperations().
			WithOperations(rule.Operations...).
			WithAPIGroups(rule.APIGroups...).
			WithAPIVersions(rule.APIVersions...).
			WithResources(rule.Resources...)
		if rule.Scope != nil {
			config.WithScope(*rule.Scope)
		}
		configs = append(configs, config)
	}
	return configs
}

func matchConditions(conditions []admissionregistrationv1.MatchCondition) []*applyadmissionregistrationv1.MatchConditionApplyConfiguration {
	configs := make([]*applyadmissionregistrationv1.MatchConditionApplyConfiguration, 0, len(conditions))
	for _, condition := range conditions {
		configs = append(configs, applyadmissionregistrationv1.MatchCondition().WithName(condition.Name).WithExpression(condition.Expression))
	}
	return configs
}

func selector(s *metav1.LabelSelector) *applymetav1.LabelSelectorApplyConfiguration {
	config := applymetav1.LabelSelector()
	if s == nil {
		return config
	}
	config.WithMatchLabels(s.MatchLabels)
	for _, requirement := range s.MatchExpressions {
		config.WithMatchExpressions(applymetav1.LabelSelectorRequirement().
			WithKey(requirement.Key).WithOperator(requirement.Operator).WithValues(requirement.Values...))
	}
	return config
}
