package enforce

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/audit/internal/act"
)

// advice tells a user whose session is denied what became of their requests, and
// how to make another. It decides nothing, and reads only when a session is
// denied.
func (g *grants) advice(ctx context.Context, a *act.Act, whyNot []string) string {
	var parts []string
	if len(whyNot) == 0 {
		whyNot = g.pending(ctx, a)
	}
	if len(whyNot) > 0 {
		parts = append(parts, strings.Join(whyNot, "; "))
	}
	parts = append(parts, g.howToAsk(ctx, a))
	for i, part := range parts {
		parts[i] = strings.ToUpper(part[:1]) + part[1:]
	}
	return strings.Join(parts, ". ")
}

// pending says why the user's requests for the Pod have no grant.
func (g *grants) pending(ctx context.Context, a *act.Act) []string {
	var list v1alpha1.ExecAccessRequestList
	const most = 500 // it is advice, and must not cost more than the decision
	if g.client.List(ctx, &list, client.InNamespace(a.Record.Namespace), client.Limit(most)) != nil {
		return nil
	}
	var pending []string
	for i := range list.Items {
		req := &list.Items[i]
		if req.Spec.Grantee() != a.Record.User.Username {
			continue
		}
		about := req.Status.PodName
		if about == "" {
			about = req.Spec.TargetPod
		}
		if about == "" || about == a.Record.Pod {
			pending = append(pending, g.whyPending(req))
		}
	}
	slices.Sort(pending)
	const enough = 3
	return pending[:min(len(pending), enough)]
}

func (g *grants) whyPending(req *v1alpha1.ExecAccessRequest) string {
	if end, _ := v1alpha1.EndOf(req); !g.clock.Now().Before(end) {
		return fmt.Sprintf("request %s ended at %s", req.Name, end.UTC().Format(time.RFC3339))
	}
	created := meta.FindStatusCondition(req.Status.Conditions, v1alpha1.ConditionAccessResourcesCreated)
	if created != nil && created.Status == metav1.ConditionFalse {
		return fmt.Sprintf("request %s gives no access: %s", req.Name, created.Message)
	}
	return fmt.Sprintf("request %s is not granted yet", req.Name)
}

// howToAsk returns the command that makes a request for the act, if a template
// lets the user make one.
func (g *grants) howToAsk(ctx context.Context, a *act.Act) string {
	var list v1alpha1.ExecAccessTemplateList
	if err := g.client.List(ctx, &list, client.InNamespace(a.Record.Namespace)); err != nil {
		return "Ask for access by an ExecAccessRequest"
	}
	if a.Pod == nil {
		return "there is no such Pod"
	}
	var templates []*v1alpha1.ExecAccessTemplate
	for i := range list.Items {
		if t := &list.Items[i]; mayAsk(&t.Spec.AccessConfig, a) && isTarget(&t.Spec.ControllerTargetRef, a.Pod) {
			templates = append(templates, t)
		}
	}
	if len(templates) == 0 {
		return fmt.Sprintf("no ExecAccessTemplate of namespace %s lets you ask for %s on this Pod; ask who looks after it for one", a.Record.Namespace, verbFor(a))
	}
	return ask(a, templates[0], templates[1:])
}

// ask returns the command that makes a request by a template, and names the
// others.
func ask(a *act.Act, template *v1alpha1.ExecAccessTemplate, others []*v1alpha1.ExecAccessTemplate) string {
	spec := map[string]any{"templateName": template.Name, "targetPod": a.Record.Pod}
	if template.Spec.AccessConfig.RequireReason {
		spec["reason"] = "WHY"
	}
	manifest, _ := json.Marshal(map[string]any{ // strings always marshal
		"apiVersion": v1alpha1.GroupVersion.String(), "kind": "ExecAccessRequest",
		"metadata": map[string]any{"generateName": "access-", "namespace": a.Record.Namespace}, "spec": spec,
	})
	command := fmt.Sprintf("Ask for access, for at most %s, with: echo '%s' | kubectl create -f -", template.Spec.AccessConfig.MaxDuration, manifest)
	if len(others) == 0 {
		return command
	}
	names := make([]string, len(others))
	for i, other := range others {
		names[i] = other.Name
	}
	return command + fmt.Sprintf(" (or by one of the templates %s)", strings.Join(names, ", "))
}

// mayAsk reports whether a template lets the user ask for the act.
func mayAsk(config *v1alpha1.AccessConfig, a *act.Act) bool {
	verbs := config.Verbs
	if len(verbs) == 0 {
		verbs = []v1alpha1.AccessVerb{v1alpha1.VerbExec, v1alpha1.VerbLog}
	}
	return slices.Contains(verbs, verbFor(a)) && (slices.Contains(config.AllowedUsers, a.Record.User.Username) ||
		slices.ContainsFunc(a.Record.User.Groups, func(group string) bool { return slices.Contains(config.AllowedGroups, group) }))
}

// isTarget reports whether a Pod seems to belong to a template's target, by its
// owner reference alone. That is enough for advice; admission of the request
// reads the target.
func isTarget(ref *v1alpha1.ControllerTargetRef, pod *corev1.Pod) bool {
	if ref.Kind == "Pod" {
		return ref.Name == pod.Name
	}
	owner := metav1.GetControllerOf(pod)
	if owner == nil {
		return false
	}
	switch ref.Kind {
	case "Deployment", "Rollout": // its ReplicaSets have its name and a hash
		name, hash, found := cutLast(owner.Name)
		return owner.Kind == "ReplicaSet" && found && name == ref.Name && hash != ""
	case "CronJob": // its Jobs have its name and a time
		name, _, found := cutLast(owner.Name)
		return owner.Kind == "Job" && found && name == ref.Name
	}
	return owner.Kind == ref.Kind && owner.Name == ref.Name
}

func cutLast(name string) (before, after string, found bool) {
	i := strings.LastIndexByte(name, '-')
	if i < 0 {
		return "", "", false
	}
	return name[:i], name[i+1:], true
}
