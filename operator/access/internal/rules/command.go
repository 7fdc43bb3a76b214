package rules

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/admitkit/admitkit/operator/access/internal/command"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

// defaultCommand is the access command of a template that has none.
const defaultCommand = "kubectl exec -ti -n {{ .Metadata.Namespace }} {{ .Metadata.Name }} -- /bin/sh"

// CommandFor returns the access command for a Pod, or why a template gives none.
func CommandFor(t v1alpha1.Template, pod *metav1.ObjectMeta) (string, *Refusal) {
	made, err := Command(t.GetAccessConfig(), pod)
	if err != nil {
		return "", Refuse(v1alpha1.ReasonTemplateInvalid, "template %q: %v", t.GetName(), err).About(v1alpha1.ConditionAccessMessage)
	}
	return made, nil
}

// Command returns the command with which the engineer uses the access.
func Command(config *v1alpha1.AccessConfig, pod *metav1.ObjectMeta) (string, error) {
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
