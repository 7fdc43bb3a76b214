package workload

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

// Kinds of templates.
const (
	kindTemplate        = "SandboxRunTemplate"
	kindClusterTemplate = "ClusterSandboxRunTemplate"
)

// Find returns what the template of a reference makes. missing says what there is not, if
// anything. A template that cannot run is an [UnfitError].
func Find(ctx context.Context, reader client.Reader, namespace string, ref v1alpha1.SandboxRunTemplateRef) (p *Plan, missing string, err error) {
	spec, base := (*v1alpha1.SandboxRunTemplateSpec)(nil), (*v1alpha1.SandboxRunTemplateSpec)(nil)
	if ref.Kind != kindClusterTemplate {
		template := &v1alpha1.SandboxRunTemplate{}
		switch err := reader.Get(ctx, client.ObjectKey{Namespace: namespace, Name: ref.Name}, template); {
		case err == nil:
			spec = &template.Spec
		case !apierrors.IsNotFound(err):
			return nil, "", fmt.Errorf("reading SandboxRunTemplate %s/%s: %w", namespace, ref.Name, err)
		}
	}
	if spec == nil && ref.Kind != kindTemplate {
		if spec, err = clusterTemplate(ctx, reader, ref.Name); err != nil {
			return nil, "", err
		}
	}
	if spec == nil {
		kind := ref.Kind
		if kind == "" {
			kind = kindTemplate + " or " + kindClusterTemplate
		}
		return nil, fmt.Sprintf("there is no %s %s", kind, ref.Name), nil
	}
	if spec.BaseTemplateRef != nil {
		if base, err = clusterTemplate(ctx, reader, spec.BaseTemplateRef.Name); err != nil {
			return nil, "", err
		}
		if base == nil {
			return nil, fmt.Sprintf("there is no ClusterSandboxRunTemplate %s, the base of template %s", spec.BaseTemplateRef.Name, ref.Name), nil
		}
	}
	if p, err = Of(spec, base); err != nil {
		return nil, "", &UnfitError{fmt.Errorf("template %s: spec.%w", ref.Name, err)}
	}
	return p, "", nil
}

// UnfitError says that a template cannot run as it is.
type UnfitError struct{ error }

// Unwrap returns what is wrong with the template.
func (e *UnfitError) Unwrap() error { return e.error }

// Base returns the base of a template, nil if it has none, or it does not exist.
func Base(ctx context.Context, reader client.Reader, spec *v1alpha1.SandboxRunTemplateSpec) (*v1alpha1.SandboxRunTemplateSpec, error) {
	if spec.BaseTemplateRef == nil {
		return nil, nil //nolint:nilnil // most have none
	}
	return clusterTemplate(ctx, reader, spec.BaseTemplateRef.Name)
}

func clusterTemplate(ctx context.Context, reader client.Reader, name string) (*v1alpha1.SandboxRunTemplateSpec, error) {
	template := &v1alpha1.ClusterSandboxRunTemplate{}
	err := reader.Get(ctx, client.ObjectKey{Name: name}, template)
	if apierrors.IsNotFound(err) {
		return nil, nil //nolint:nilnil // it does not exist, which is no error
	}
	if err != nil {
		return nil, fmt.Errorf("reading ClusterSandboxRunTemplate %s: %w", name, err)
	}
	return &template.Spec, nil
}
