package audit

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

	"github.com/admitkit/admitkit/api/v1alpha1"
)

// advice says what to do about a session that no request covers: what became of
// those that there are, and how to make another. It looks only when a session
// is denied, and decides nothing.
func (g *grants) advice(ctx context.Context, a *act, whyNot []string) string {
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

// pending says why the user's requests that may be about the Pod have no grant.
func (g *grants) pending(ctx context.Context, a *act) []string {
	var list v1alpha1.ExecAccessRequestList
	if g.client.List(ctx, &list, client.InNamespace(a.record.Namespace)) != nil {
		return nil
	}
	var pending []string
	for i := range list.Items {
		req := &list.Items[i]
		if who := req.Spec.Requester; who == nil || who.Username != a.record.User.Username {
			continue
		}
		about := req.Status.PodName
		if about == "" {
			about = req.Spec.TargetPod
		}
		if about == "" || about == a.record.Pod {
			pending = append(pending, g.whyPending(req))
		}
	}
	slices.Sort(pending)
	const enough = 3
	return pending[:min(len(pending), enough)]
}

func (g *grants) whyPending(req *v1alpha1.ExecAccessRequest) string {
	if end := endOf(req); !g.clock.Now().Before(end) {
		return fmt.Sprintf("request %s ended at %s", req.Name, end.UTC().Format(time.RFC3339))
	}
	created := meta.FindStatusCondition(req.Status.Conditions, v1alpha1.ConditionAccessResourcesCreated)
	if created != nil && created.Status == metav1.ConditionFalse {
		return fmt.Sprintf("request %s gives no access: %s", req.Name, created.Message)
	}
	return fmt.Sprintf("request %s is not granted yet", req.Name)
}

// howToAsk is the command that makes a request which would cover the act, if
// there is a template for it that the user may ask by.
func (g *grants) howToAsk(ctx context.Context, a *act) string {
	var list v1alpha1.ExecAccessTemplateList
	if err := g.client.List(ctx, &list, client.InNamespace(a.record.Namespace)); err != nil {
		return "Ask for access by an ExecAccessRequest"
	}
	if a.pod == nil {
		return "there is no such Pod"
	}
	var names []string
	var first *v1alpha1.AccessConfig
	for i := range list.Items {
		config := &list.Items[i].Spec.AccessConfig
		if mayAsk(config, a) && isTarget(&list.Items[i].Spec.ControllerTargetRef, a.pod) {
			names = append(names, list.Items[i].Name)
			if first == nil {
				first = config
			}
		}
	}
	if len(names) == 0 {
		return fmt.Sprintf("no ExecAccessTemplate of namespace %s lets you ask for %s on this Pod; ask who looks after it for one", a.record.Namespace, verbFor(a))
	}
	spec := map[string]any{"templateName": names[0], "targetPod": a.record.Pod}
	if first.RequireReason {
		spec["reason"] = "WHY"
	}
	manifest, _ := json.Marshal(map[string]any{ // strings can always be marshalled
		"apiVersion": v1alpha1.GroupVersion.String(), "kind": "ExecAccessRequest",
		"metadata": map[string]any{"generateName": "access-", "namespace": a.record.Namespace}, "spec": spec,
	})
	ask := fmt.Sprintf("Ask for access, for at most %s, with: echo '%s' | kubectl create -f -", first.MaxDuration, manifest)
	if len(names) > 1 {
		ask += fmt.Sprintf(" (or by one of the templates %s)", strings.Join(names[1:], ", "))
	}
	return ask
}

// mayAsk reports whether a template lets the user ask for what they wanted to do.
func mayAsk(config *v1alpha1.AccessConfig, a *act) bool {
	verbs := config.Verbs
	if len(verbs) == 0 {
		verbs = []v1alpha1.AccessVerb{v1alpha1.VerbExec, v1alpha1.VerbLog}
	}
	return slices.Contains(verbs, verbFor(a)) && (slices.Contains(config.AllowedUsers, a.record.User.Username) ||
		slices.ContainsFunc(a.record.User.Groups, func(group string) bool { return slices.Contains(config.AllowedGroups, group) }))
}

// isTarget reports whether a Pod looks like one of a template's target, from what
// the Pod itself says: good enough for advice. When the request is made it is
// looked up.
func isTarget(ref *v1alpha1.ControllerTargetRef, pod *corev1.Pod) bool {
	if ref.Kind == "Pod" {
		return ref.Name == pod.Name
	}
	owner := metav1.GetControllerOf(pod)
	if owner == nil {
		return false
	}
	switch ref.Kind {
	case "Deployment", "Rollout": // own ReplicaSets, whose names are theirs and a hash
		name, hash, found := cutLast(owner.Name)
		return owner.Kind == "ReplicaSet" && found && name == ref.Name && hash != ""
	case "CronJob": // owns Jobs, whose names are theirs and a time
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
