package rules

import (
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

// defaultApprovalTimeout is the CRD's default.
const defaultApprovalTimeout = "1h"

// TermsOf returns what the approval of a request depends on, nil if nobody needs to approve.
func TermsOf(t v1alpha1.Template, spec *v1alpha1.RequestSpec) *v1alpha1.ApprovalTerms {
	approval := t.GetAccessConfig().Approval
	if approval == nil || approval.Required == 0 {
		return nil
	}
	terms := &v1alpha1.ApprovalTerms{
		TemplateUID: string(t.GetUID()), Gives: GivenBy(t), Required: approval.Required, Groups: approval.Groups, Users: approval.Users,
		Timeout: cmp.Or(approval.Timeout, defaultApprovalTimeout),
	}
	if spec.OnBehalfOf != "" || spec.Requester == nil {
		return terms
	}
	for _, group := range approval.SkipGroups {
		if slices.Contains(spec.Requester.Groups, group) {
			terms.SkippedFor = group
			break
		}
	}
	return terms
}

// GivenBy returns the SHA-256 of what a template gives.
func GivenBy(t v1alpha1.Template) string {
	config := t.GetAccessConfig()
	given := []any{t.GetTargetRef(), config.Verbs, config.AccessCommand}
	if pods, is := t.(*v1alpha1.PodAccessTemplate); is {
		spec := pods.Spec
		spec.AccessConfig = v1alpha1.AccessConfig{}
		given = append(given, spec)
	}
	text, _ := json.Marshal(given) // it came as JSON
	return fmt.Sprintf("%x", sha256.Sum256(text))
}

// allowsApproval refuses the system's users where somebody must approve: whoever may use
// a ServiceAccount could ask as that, and approve as themselves.
func allowsApproval(t v1alpha1.Template, spec *v1alpha1.RequestSpec) *Refusal {
	config, who := t.GetAccessConfig(), spec.Requester.Username
	if TermsOf(t, spec) == nil || spec.OnBehalfOf != "" || !strings.HasPrefix(who, "system:") || slices.Contains(config.AllowedUsers, who) {
		return nil
	}
	return Refuse(v1alpha1.ReasonNotAllowed, "user %q is one of the system's, and template %q needs approval: whoever may use it could approve their own request; "+
		"ask as a person, or have allowedUsers name it", who, t.GetName())
}
