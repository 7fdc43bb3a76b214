package access

import (
	"fmt"
	"strings"
	"text/template"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/admitkit/admitkit/api/v1alpha1"
)

// defaultCommand is the access command of a template that has none.
const defaultCommand = "kubectl exec -ti -n {{ .Metadata.Namespace }} {{ .Metadata.Name }} -- /bin/sh"

// commandLimit bounds what the template of a command may produce.
const commandLimit = 4096

// commandFor returns the access command for a Pod, or why a template gives none.
func commandFor(t v1alpha1.Template, pod *metav1.ObjectMeta) (string, *refusal) {
	command, err := accessCommand(t.GetAccessConfig(), pod)
	if err != nil {
		return "", refuse(v1alpha1.ReasonTemplateInvalid, "template %q: %v", t.GetName(), err).about(v1alpha1.ConditionAccessMessage)
	}
	return command, nil
}

// accessCommand returns the command with which the engineer uses the access.
func accessCommand(config *v1alpha1.AccessConfig, pod *metav1.ObjectMeta) (string, error) {
	text := config.AccessCommand
	if text == "" {
		text = defaultCommand
	}
	parsed, err := template.New("accessCommand").Option("missingkey=zero").Parse(text)
	if err != nil {
		return "", fmt.Errorf("spec.accessConfig.accessCommand: %w", err)
	}
	out := &limited{limit: commandLimit}
	if err := parsed.Execute(out, struct{ Metadata *metav1.ObjectMeta }{pod}); err != nil {
		return "", fmt.Errorf("spec.accessConfig.accessCommand: %w", err)
	}
	return out.String(), nil
}

// limited is a buffer that refuses more than limit bytes.
type limited struct {
	strings.Builder
	limit int
}

func (l *limited) Write(p []byte) (int, error) {
	if l.Len()+len(p) > l.limit {
		return 0, fmt.Errorf("the result is longer than %d bytes", l.limit)
	}
	return l.Builder.Write(p)
}
