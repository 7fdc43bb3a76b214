package registration

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// ofEntry is the path of a field of an entry, as the API server names it.
var ofEntry = regexp.MustCompile(`^webhooks\[(\d+)\]\.(.+)$`)

// explained says whose scope it is that the API server refuses, such as a match condition
// that does not compile. The API server knows only the position of an entry, which is ours
// if nobody else has entries in the object.
func (r *Registration) explained(err error, res resource, live, desired *configuration) error {
	var status apierrors.APIStatus
	foreign := live != nil && slices.ContainsFunc(live.Webhooks, func(e entry) bool { return !r.ours(e.Name) })
	if !apierrors.IsInvalid(err) || foreign || !errors.As(err, &status) || status.Status().Details == nil {
		return err
	}
	var texts []string
	for _, cause := range status.Status().Details.Causes {
		parts := ofEntry.FindStringSubmatch(cause.Field)
		if parts == nil {
			return err
		}
		i, _ := strconv.Atoi(parts[1])
		if i >= len(desired.Webhooks) {
			return err
		}
		texts = append(texts, fmt.Sprintf("%s: Scope.%s: %s", r.whose(res, desired.Webhooks[i].Name), goName(parts[2]), cause.Message))
	}
	if len(texts) == 0 {
		return err
	}
	return fmt.Errorf("the API server refuses %s (%w)", strings.Join(texts, "; "), err)
}

// whose names the webhook of an entry, and its extensions.
func (r *Registration) whose(res resource, name string) string {
	name = strings.TrimSuffix(name, "."+r.Domain)
	for _, w := range r.Webhooks {
		if w.RegisteredName() != name || w.Mutating != (res == mutating) {
			continue
		}
		return fmt.Sprintf("webhook %s of %s", name, strings.Join(w.Extensions(), ", "))
	}
	return "webhook " + name
}

// goName returns a path of the API as fields of Go: matchConditions[0].expression as
// MatchConditions[0].Expression.
func goName(path string) string {
	fields := strings.Split(path, ".")
	for i, field := range fields {
		fields[i] = strings.ToUpper(field[:1]) + field[1:]
	}
	return strings.Join(fields, ".")
}
