package access

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/admitkit/admitkit/operator/access/internal/command"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

// defaultCommand is the access command of a template that has none.
const defaultCommand = "kubectl exec -ti -n {{ .Metadata.Namespace }} {{ .Metadata.Name }} -- /bin/sh"

// commandFor returns the access command for a Pod, or why a template gives none.
func commandFor(t v1alpha1.Template, pod *metav1.ObjectMeta) (string, *refusal) {
	made, err := accessCommand(t.GetAccessConfig(), pod)
	if err != nil {
		return "", refuse(v1alpha1.ReasonTemplateInvalid, "template %q: %v", t.GetName(), err).about(v1alpha1.ConditionAccessMessage)
	}
	return made, nil
}

// accessCommand returns the command with which the engineer uses the access.
func accessCommand(config *v1alpha1.AccessConfig, pod *metav1.ObjectMeta) (string, error) {
	text := config.AccessCommand
	if text == "" {
		text = defaultCommand
	}
	template, err := command.Parse(text)
	if err != nil {
		return "", fmt.Errorf("spec.accessConfig.accessCommand: %w", err)
	}
	made, err := template.For(pod)
	if err != nil {
		return "", fmt.Errorf("spec.accessConfig.accessCommand: %w", err)
	}
	return made, nil
}
