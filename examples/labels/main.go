// Command labels requires labels: a Deployment, StatefulSet or DaemonSet whose
// Pods lack one is denied, and the message says which are missing.
//
//	labels start --required team,app.kubernetes.io/name ...
package main

import (
	"context"
	"fmt"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/manager"
	"github.com/admitkit/admitkit/manager/command"
)

type required []string

// Validate is called with objects of several kinds, each of its Go type.
func (r *required) Validate(_ context.Context, obj runtime.Object, _ *extension.Request) error {
	labels, err := labelsOfPods(obj)
	if err != nil {
		return err
	}
	var missing []string
	for _, label := range *r {
		if labels[label] == "" {
			missing = append(missing, label)
		}
	}
	if len(missing) > 0 {
		return extension.Denyf("spec.template.metadata.labels: missing %s", strings.Join(missing, ", "))
	}
	return nil
}

func labelsOfPods(obj runtime.Object) (map[string]string, error) {
	switch workload := obj.(type) {
	case *appsv1.Deployment:
		return workload.Spec.Template.Labels, nil
	case *appsv1.StatefulSet:
		return workload.Spec.Template.Labels, nil
	case *appsv1.DaemonSet:
		return workload.Spec.Template.Labels, nil
	}
	return nil, fmt.Errorf("cannot tell the Pods of %T", obj)
}

func main() {
	labels := required{"team"}
	cmd := command.New("labels", func(mgr *manager.Manager) error {
		return mgr.AddExtension(extension.Validating(&labels, extension.Scope{
			Name: "labels",
			Rules: extension.Resources("apps", "v1", []string{"deployments", "statefulsets", "daemonsets"},
				admissionregistrationv1.Create, admissionregistrationv1.Update),
		}))
	})
	cmd.PersistentFlags().StringSliceVar((*[]string)(&labels), "required", labels, "labels that Pods must have")
	command.Main(cmd)
}
