package manager

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/admitkit/admitkit/manager/internal/scaledown"
)

// ScaleDown stops the managers of an installation before it is unregistered: it
// scales Deployments in the manager's own namespace (Options.WebhookNamespace) to
// zero, and returns when their Pods are gone, because a Pod that drains still repairs
// and grants. Give ctx a deadline; if it ends first, the error names the Pods that are
// left. Missing Deployments are skipped.
//
// It needs the rights to get these Deployments and to patch their scale, both by name,
// and to list Pods there.
func (m *Manager) ScaleDown(ctx context.Context, deployments ...string) error {
	if err := m.reach(ctx); err != nil {
		return fmt.Errorf("manager: %w", err)
	}
	scaled := scaledown.Deployments{Apps: m.clients.Apps, Core: m.clients.Core, Namespace: m.options.WebhookNamespace, Log: m.options.Logger}
	var stopping []string
	for _, name := range deployments {
		found, err := scaled.ToZero(ctx, name)
		if err != nil {
			return fmt.Errorf("manager: scaling down %w", err)
		}
		if found {
			stopping = append(stopping, name)
		}
	}
	if err := scaled.AwaitGone(ctx, stopping); err != nil {
		return fmt.Errorf("manager: scaling down %w", err)
	}
	return nil
}

// MissingDeployments returns those of the Deployments that do not exist in the manager's
// own namespace. A name that is wrong would leave a manager running. It needs the right
// to get them, by name.
func (m *Manager) MissingDeployments(ctx context.Context, deployments ...string) (missing []string, err error) {
	if err := m.reach(ctx); err != nil {
		return nil, fmt.Errorf("manager: %w", err)
	}
	for _, name := range deployments {
		_, err := m.clients.Apps.Deployments(m.options.WebhookNamespace).Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			missing = append(missing, m.options.WebhookNamespace+"/"+name)
		} else if err != nil {
			return nil, fmt.Errorf("manager: Deployment %s/%s: %w", m.options.WebhookNamespace, name, err)
		}
	}
	return missing, nil
}
