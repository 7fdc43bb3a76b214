package offline

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	unversionedvalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	kjson "sigs.k8s.io/json"
)

// Breach is something that an extension did and that Kubernetes asks webhooks not
// to do (https://kubernetes.io/docs/concepts/cluster-administration/admission-webhooks-good-practices/).
type Breach struct {
	// Extension is the name of the extension.
	Extension string
	// Law says what the extension did wrong, and Detail shows where.
	Law, Detail string
}

func (b Breach) String() string {
	return fmt.Sprintf("%s %s:\n%s", b.Extension, b.Law, strings.TrimSuffix(b.Detail, "\n"))
}

// Check returns what the extensions did wrong in a request with this outcome. It
// sends the request twice more: with the resulting object, as an API server does
// when it reinvokes webhooks; and as a dry run, with fields that no Go type has, as
// an object of a newer API server does.
func (e *Engine) Check(ctx context.Context, req *Request, out *Outcome, scheme *runtime.Scheme) ([]Breach, error) {
	var breaches []Breach
	for _, step := range out.Steps {
		breaches = append(breaches, step.check(scheme)...)
	}
	again, err := e.checkAgain(ctx, req, out)
	if err != nil {
		return nil, err
	}
	breaches = append(breaches, again...)
	dry, err := req.asNewer(scheme)
	if err != nil {
		return nil, err
	}
	dry.DryRun = true
	outcome, err := e.Admit(ctx, dry)
	if err != nil {
		return nil, err
	}
	for _, step := range outcome.Steps {
		if e.options.Effects != nil && !req.DryRun {
			breaches = append(breaches, step.checkEffects(dry)...)
		}
		found, err := step.checkUnknown()
		if err != nil {
			return nil, err
		}
		breaches = append(breaches, found...)
	}
	return breaches, nil
}

// checkAgain calls the webhooks again with the object that they changed.
func (e *Engine) checkAgain(ctx context.Context, req *Request, out *Outcome) ([]Breach, error) {
	if !out.Allowed || req.Operation != admissionv1.Create && req.Operation != admissionv1.Update {
		return nil, nil
	}
	second := *req
	second.Object = out.Object
	outcome, err := e.Admit(ctx, &second)
	if err != nil {
		return nil, err
	}
	var breaches []Breach
	for _, step := range outcome.Steps {
		if step.Observes() {
			continue // it has changed nothing
		}
		diff, err := Diff(step.Before, step.Object)
		if err != nil {
			return nil, err
		}
		switch {
		case step.Err != nil && out.failed(step):
			// It failed the first time, too, and the outcome says so.
		case step.Err != nil:
			breaches = append(breaches, Breach{step.Extension, "fails when it is called again with the object that it changed", step.Err.Error()})
		case step.Result == "denied":
			breaches = append(breaches, Breach{step.Extension, "denies, when it is called again, the object that it changed", step.Reason})
		case diff != "":
			breaches = append(breaches, Breach{step.Extension, "is not idempotent; called again, it changes the object again", diff})
		}
	}
	return breaches, nil
}

// failed reports whether the extension of a step failed in the first call.
func (o *Outcome) failed(again Step) bool {
	return slices.ContainsFunc(o.Steps, func(s Step) bool {
		return s.Err != nil && s.Webhook == again.Webhook && s.Extension == again.Extension
	})
}

// check checks what one extension did.
func (s *Step) check(scheme *runtime.Scheme) []Breach {
	req := s.seen
	breaches := append(s.Faults(), s.checkEffects(req)...)
	if !s.Webhook.Mutates() || len(s.Before) == 0 || len(s.Object) == 0 {
		return breaches
	}
	if unknown := UnknownFields(scheme, req.Kind, s.Object); len(unknown) > 0 {
		known := UnknownFields(scheme, req.Kind, s.Before)
		for _, field := range unknown {
			if !slices.Contains(known, field) {
				breaches = append(breaches, Breach{s.Extension, "sets a field that the API server does not know", field})
			}
		}
	}
	return breaches
}

// Faults returns what the extension did that fails or has no effect in a cluster: changes
// that are refused or lost, calls without the right, and reads that it does not declare.
func (s *Step) Faults() []Breach {
	var faults []Breach
	if s.Result == "panic" {
		faults = append(faults, Breach{s.Extension, "panics", s.Err.Error()})
	}
	if s.Lost != "" {
		law := "changes the object, but nothing comes of it, because it is a Validator; make it a Mutator, or change a copy"
		if s.Webhook.Mutates() {
			law = "changes the Pod, but nothing comes of it, because its response has no patch; return mgr.PatchFromPod(req, pod)"
		}
		faults = append(faults, Breach{s.Extension, law, s.Lost})
	}
	for _, change := range s.Refused {
		faults = append(faults, Breach{s.Extension, "changes a field that must not change", change})
	}
	for _, problem := range s.Invalid {
		faults = append(faults, Breach{s.Extension, "sets what the API server refuses", problem})
	}
	if s.Wrote {
		faults = append(faults, Breach{s.Extension, "changes the object of its request, but nothing comes of it; change the object that it is given", "Request.Object"})
	}
	for _, change := range s.Vain {
		faults = append(faults, Breach{s.Extension, s.seen.inVain(), change})
	}
	if len(s.Forbidden) > 0 {
		forbidden := slices.Compact(slices.Sorted(slices.Values(s.Forbidden)))
		faults = append(faults, Breach{s.Extension, "needs rights that it does not ask for; return them from Rights(), NamespaceRights() or ClusterRights(), or the kind from Reads()", strings.Join(forbidden, "\n")})
	}
	if len(s.Undeclared) > 0 {
		undeclared := slices.Compact(slices.Sorted(slices.Values(s.Undeclared)))
		faults = append(faults, Breach{s.Extension, "reads what it does not declare", strings.Join(undeclared, "\n")})
	}
	return faults
}

// Observes reports whether the extension denies and changes nothing.
func (s *Step) Observes() bool { return s.Webhook.Observes() }

func (s *Step) checkEffects(req *Request) []Breach {
	if len(s.Effects) == 0 {
		return nil
	}
	effects := strings.Join(s.Effects, "\n")
	switch {
	case s.Observes():
		return []Breach{{s.Extension, "has side effects although it is not in force; heed Request.Mode", effects}}
	case *s.Webhook.Scope.SideEffects == admissionregistrationv1.SideEffectClassNone:
		return []Breach{{s.Extension, "has side effects, and its scope's SideEffects is None; make it NoneOnDryRun", effects}}
	case req.DryRun:
		return []Breach{{s.Extension, "has side effects on a dry run", effects}}
	}
	return nil
}

func short(value any) string {
	text, err := json.Marshal(value)
	if err != nil {
		return fmt.Sprint(value)
	}
	if len(text) > 200 {
		return string(text[:200]) + "..."
	}
	return string(text)
}

// invalidMetadata returns what no object can have in its labels, annotations and finalizers,
// unless it was there before.
func invalidMetadata(before, after []byte) []string {
	var problems [2][]string
	for i, text := range [][]byte{before, after} {
		object, path := &metav1.PartialObjectMetadata{}, field.NewPath("metadata")
		if err := json.Unmarshal(text, object); err != nil {
			return nil // UnknownFields says so
		}
		errs := slices.Concat(
			unversionedvalidation.ValidateLabels(object.Labels, path.Child("labels")),
			validation.ValidateAnnotations(object.Annotations, path.Child("annotations")),
			validation.ValidateFinalizers(object.Finalizers, path.Child("finalizers")))
		for _, err := range errs {
			problems[i] = append(problems[i], err.Error())
		}
	}
	return slices.DeleteFunc(problems[1], func(problem string) bool { return slices.Contains(problems[0], problem) })
}

// UnknownFields returns the problems of an object whose fields the Go type of its
// kind does not know.
func UnknownFields(scheme *runtime.Scheme, kind schema.GroupVersionKind, object []byte) []string {
	into, err := scheme.New(kind)
	if err != nil {
		return nil // a custom resource: its schema is in its CRD
	}
	strict, err := kjson.UnmarshalStrict(object, into)
	if err != nil {
		return []string{err.Error()}
	}
	fields := make([]string, len(strict))
	for i, problem := range strict {
		fields[i] = problem.Error()
	}
	return fields
}
