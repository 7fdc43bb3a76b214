package offline

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/google/cel-go/common"
	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/operators"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/parser"
	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apiserver/pkg/admission"
	plugincel "k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/matchconditions"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/cel/environment"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	kjson "sigs.k8s.io/json"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/internal/deadlock"
)

// Failed is the error of a request that an API server refuses because a match condition of
// a webhook with failure policy Fail failed.
type Failed struct {
	Webhook string
	Err     error
}

func (f *Failed) Error() string {
	return fmt.Sprintf("webhook %s: a match condition failed, and its failure policy is Fail: %v", f.Webhook, f.Err)
}

func (f *Failed) Unwrap() error { return f.Err }

// compiler compiles CEL. It takes more than ten milliseconds to make, so it is made for the first
// condition only.
var compiler = sync.OnceValue(func() plugincel.Compiler {
	return plugincel.NewCompiler(environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()))
})

// compile compiles an expression as API servers do: NewExpressions are registered,
// StoredExpressions are evaluated.
func compile(expression string, mode environment.Type) plugincel.CompilationResult {
	return compiler().CompileCELExpression(&matchconditions.MatchCondition{Expression: expression}, plugincel.OptionalVariableDeclarations{HasAuthorizer: true}, mode)
}

// program is an expression to evaluate, with the paths that it reads, such as
// [request userInfo username].
type program struct {
	plugincel.CompilationResult
	paths [][]string
}

// programs has a func() program for each expression.
var programs sync.Map

func programOf(expression string) program {
	compiled, _ := programs.LoadOrStore(expression, sync.OnceValue(func() program {
		return program{compile(expression, environment.StoredExpressions), pathsOf(expression)}
	}))
	return compiled.(func() program)()
}

// pathsOf returns the paths of an expression, each from a variable on. It knows no macros:
// to it, they are calls.
func pathsOf(expression string) (paths [][]string) {
	p, err := parser.NewParser(parser.EnableOptionalSyntax(true), parser.EnableIdentEscapeSyntax(true))
	if err != nil {
		panic(err) // the options are constants
	}
	parsed, errs := p.Parse(common.NewTextSource(expression))
	if len(errs.GetErrors()) > 0 {
		return nil // it does not compile either
	}
	for _, variable := range ast.MatchDescendants(ast.NavigateAST(parsed), ast.KindMatcher(ast.IdentKind)) {
		path := []string{variable.AsIdent()}
		for parent, has := variable.Parent(); has; parent, has = parent.Parent() {
			field := fieldOf(parent)
			if field == "" {
				break
			}
			path = append(path, field)
		}
		paths = append(paths, path)
	}
	return paths
}

// fieldOf returns the field that an expression selects, as in a.b or a.?b.
func fieldOf(e ast.Expr) string {
	switch {
	case e.Kind() == ast.SelectKind:
		return e.AsSelect().FieldName()
	case e.Kind() == ast.CallKind && e.AsCall().FunctionName() == operators.OptSelect:
		field, _ := e.AsCall().Args()[1].AsLiteral().Value().(string)
		return field
	}
	return ""
}

// lacks returns the first of some paths that the request does not have, or "".
func (r *Request) lacks(paths [][]string, ruled answer) string {
	i := slices.IndexFunc(paths, func(path []string) bool {
		path = append(slices.Clone(path), "", "") // of which the last two are all of it
		return r.lacksPath(path[0], path[1], path[2], ruled)
	})
	if i < 0 {
		return ""
	}
	return strings.Join(paths[i], ".")
}

func (r *Request) lacksPath(variable, field, inner string, ruled answer) bool {
	switch {
	case variable == "object" || variable == "oldObject":
		return ruled == unknown
	case variable != "request":
		return false
	}
	switch field {
	case "", "options":
		return true
	case "kind":
		return ruled == unknown
	case "resource", "requestResource":
		return !r.known && !r.named
	case "userInfo":
		return (inner == "" || inner == "uid") && r.User.UID == "" || (inner == "" || inner == "extra") && r.User.Extra == nil
	}
	return false
}

// evaluation evaluates the match conditions of a scope for a request.
type evaluation struct {
	*Request
	scope extension.Scope
	ruled answer
	open  []string // the conditions that only a cluster can evaluate
	errs  []error
}

var _ plugincel.ConditionEvaluator = (*evaluation)(nil)

// CompilationErrors implements plugincel.ConditionEvaluator.
func (e *evaluation) CompilationErrors() []error { return nil }

// ForInput implements plugincel.ConditionEvaluator. An open condition holds.
func (e *evaluation) ForInput(ctx context.Context, attr *admission.VersionedAttributes, request *admissionv1.AdmissionRequest,
	bindings plugincel.OptionalVariableBindings, namespace *corev1.Namespace, budget int64,
) (results []plugincel.EvaluationResult, _ int64, err error) {
	for _, c := range e.scope.MatchConditions {
		condition := matchconditions.MatchCondition(c)
		result := plugincel.EvaluationResult{ExpressionAccessor: &condition, EvalResult: types.True}
		if holds, given := e.given(e.scope, c.Name); given {
			result.EvalResult = types.Bool(holds)
			results = append(results, result)
			continue
		}
		program := programOf(c.Expression)
		program.ExpressionAccessor = &condition
		lacks := e.lacks(program.paths, e.ruled)
		if lacks == "" {
			asked := &nobody{}
			bindings.Authorizer = asked
			var one []plugincel.EvaluationResult
			one, budget, err = plugincel.NewCondition([]plugincel.CompilationResult{program.CompilationResult}).ForInput(ctx, attr, request, bindings, namespace, budget)
			if err != nil {
				err = fmt.Errorf("%s: %w", c.Name, err)
				e.errs = append(e.errs, err)
				return nil, budget, err
			}
			if asked.asked {
				lacks = "the authorizer"
			} else {
				result = one[0]
			}
		}
		if lacks != "" {
			e.open = append(e.open, fmt.Sprintf("%s (%s), which reads %s", c.Name, c.Expression, lacks))
		}
		if result.Error != nil {
			result.Error = fmt.Errorf("%s: %w", c.Name, result.Error)
			e.errs = append(e.errs, result.Error)
		}
		results = append(results, result)
	}
	return results, budget, nil
}

// nobody is the authorizer of no cluster.
type nobody struct{ asked bool }

func (n *nobody) Authorize(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
	n.asked = true
	return authorizer.DecisionNoOpinion, "", nil
}

// given returns what a match condition evaluates to, if the caller or the guards say so.
func (r *Request) given(scope extension.Scope, name string) (holds, given bool) {
	if name == deadlock.ConditionName {
		return r.guard(scope) == nil, true
	}
	holds, given = r.MatchConditions[name]
	return holds, given
}

// verdict is what the match conditions of a scope say about a request.
type verdict struct {
	answer  answer
	open    string // of unknown: the conditions that decide
	false   string // of no: the condition that is false, if any
	ignored error  // of no: what failed, if no condition is false
}

// conditions decides by the match conditions. If it is unknown whether the rules match, the
// object has to be converted first. The error is a *[Failed], or about the object.
func (r *Request) conditions(scope extension.Scope, ruled answer) (verdict, error) {
	if len(scope.MatchConditions) == 0 {
		return verdict{answer: yes}, nil
	}
	reader := *r
	if !slices.ContainsFunc(scope.MatchConditions, func(c admissionregistrationv1.MatchCondition) bool {
		_, given := r.given(scope, c.Name)
		return !given
	}) {
		reader.Object, reader.OldObject = nil, nil // nothing reads them
	}
	attr, err := reader.attributes()
	if err != nil {
		return verdict{}, err
	}
	e := &evaluation{Request: r, scope: scope, ruled: ruled}
	result := matchconditions.NewMatcher(e, scope.FailurePolicy, "webhook", "", scope.Name).Match(context.Background(), attr, nil, nil)
	switch {
	case result.Error == nil && !result.Matches:
		return verdict{answer: no, false: result.FailedConditionName, ignored: errors.Join(e.errs...)}, nil
	case len(e.open) > 0:
		return verdict{answer: unknown, open: strings.Join(e.open, ", ")}, nil
	case result.Error != nil:
		return verdict{answer: yes}, &Failed{scope.Name, result.Error}
	}
	return verdict{answer: yes}, nil
}

// attributes returns the request as the admission plugins of an API server get it.
func (r *Request) attributes() (*admission.VersionedAttributes, error) {
	object, err := r.decode(r.Object)
	if err != nil {
		return nil, err
	}
	old, err := r.decode(r.OldObject)
	if err != nil {
		return nil, err
	}
	by := &user.DefaultInfo{Name: r.User.Username, UID: r.User.UID, Groups: r.User.Groups, Extra: map[string][]string{}}
	for key, values := range r.User.Extra {
		by.Extra[key] = values
	}
	asked := cmp.Or(r.asked, r)
	// No condition with request.options is evaluated.
	record := admission.NewAttributesRecord(object, old, asked.Kind, r.Namespace, r.Name, asked.Resource, r.SubResource, admission.Operation(r.Operation), nil, r.DryRun, by)
	return admission.NewVersionedAttributes(record, r.Kind, nil) // the objects have this kind
}

// typed has the kinds whose objects an API server has as Go types. Those of a
// CustomResourceDefinition are not among them, even if the program has a type for them.
var typed = sync.OnceValue(func() *runtime.Scheme {
	scheme := runtime.NewScheme()
	utilruntime.Must(errors.Join(clientgoscheme.AddToScheme(scheme), apiextensionsv1.AddToScheme(scheme)))
	return scheme
})

// decode decodes an object as an API server does.
func (r *Request) decode(object []byte) (runtime.Object, error) {
	if len(object) == 0 {
		return nil, nil
	}
	into, err := typed().New(r.Kind)
	if err != nil {
		into = &unstructured.Unstructured{}
	}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(object, into); err != nil {
		return nil, fmt.Errorf("decoding %s %s: %w", r.Kind.Kind, r.Name, err)
	}
	into.GetObjectKind().SetGroupVersionKind(r.Kind)
	return into, nil
}

// guard returns the guard that leaves the request out, or nil.
func (r *Request) guard(scope extension.Scope) *deadlock.Guard {
	return deadlock.Of(scope.Rules, admissionregistrationv1.OperationType(r.Operation), r.User.Username, r.Resource.GroupResource())
}

// HasGiven reports whether the caller gave the result of a match condition of a scope.
func (r *Request) HasGiven(scope extension.Scope) bool {
	return slices.ContainsFunc(scope.MatchConditions, func(c admissionregistrationv1.MatchCondition) bool {
		_, given := r.MatchConditions[c.Name]
		return given
	})
}

// UnknownConditions returns those of some names that no match condition of a scope has.
func (e *Engine) UnknownConditions(names []string) []string {
	return slices.DeleteFunc(names, func(name string) bool {
		return slices.ContainsFunc(e.hooks, func(h *hook) bool {
			return slices.ContainsFunc(h.Scope.MatchConditions, func(c admissionregistrationv1.MatchCondition) bool { return c.Name == name })
		})
	})
}
