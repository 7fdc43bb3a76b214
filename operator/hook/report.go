package hook

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/admitkit/admitkit/operator/api/metacontroller/v1alpha1"
	"github.com/admitkit/admitkit/operator/internal/hook/compose"
	"github.com/admitkit/admitkit/operator/internal/truncate"
)

// problem is what keeps a controller, or a parent, from being as it should be.
type problem struct {
	// reason is that of a condition.
	reason, message string
	cause           error
}

func fault(reason, message string, cause ...error) *problem {
	return &problem{reason, message, errors.Join(cause...)}
}

func (p *problem) Error() string { return p.message }
func (p *problem) Unwrap() error { return p.cause }

// maxError is how much of an error is told, and maxForbidden how much of a missing right: the
// API server lists each rule of a role that somebody may not bind. An Event has room for it
// and for the remedy.
const (
	maxError     = 1 << 10
	maxForbidden = 640
)

// explain returns the reason and the message of a condition for an error.
func explain(err error) (reason, message string) {
	var p *problem
	message = shorten(err.Error(), maxError)
	switch {
	case apierrors.IsForbidden(err):
		what := "Grant the right"
		if strings.Contains(err.Error(), "not currently held") { // as RBAC's escalation check has it
			what = "Grant the verb bind on the role that is bound (escalate on one that is written), with its name in resourceNames, or all that it has,"
		}
		return "MissingRight", fmt.Sprintf("%s. %s by a ClusterRole with the label %s=true", shorten(err.Error(), maxForbidden), what, LabelAggregate)
	case errors.As(err, &p):
		return p.reason, message
	}
	return "Failed", message
}

func shorten(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return truncate.Text(text, most) + "..."
}

// LabelAggregate is the label of ClusterRoles whose rules the operator for hooks gets.
const LabelAggregate = "admitkit.dev/aggregate-to-hooks"

// explained is what is told of an error, which may be long, and have objects.
type explained struct{ reason, message string }

// same says whether two tell the same but for their numbers, such as how long is left.
func (e explained) same(as explained) bool {
	letters := func(text string) string {
		return strings.Map(func(r rune) rune {
			if unicode.IsDigit(r) {
				return -1
			}
			return r
		}, text)
	}
	return e.reason == as.reason && letters(e.message) == letters(as.message)
}

// report writes the conditions of a controller's object.
type report struct {
	engine *engine
	object *unstructured.Unstructured
	kick   chan struct{}

	mu         sync.Mutex
	conditions []metav1.Condition
	problems   map[parentKey]explained
	written    string
}

func newReport(e *engine, object *unstructured.Unstructured) *report {
	r := &report{engine: e, object: object.DeepCopy(), kick: make(chan struct{}, 1), problems: map[parentKey]explained{}}
	var status v1alpha1.ControllerStatus
	text, err := json.Marshal(object.Object["status"])
	if err == nil {
		err = json.Unmarshal(text, &status)
	}
	if err == nil { // else there is a time that Go does not read: half a condition could not be written
		r.conditions = status.Conditions
	}
	return r
}

// maxMessage is how long a condition's message is.
const maxMessage = 2048

func (r *report) set(kind string, status bool, reason, message string) {
	condition := metav1.Condition{Type: kind, Status: metav1.ConditionFalse, Reason: reason, Message: shorten(message, maxMessage), ObservedGeneration: r.object.GetGeneration()}
	if status {
		condition.Status = metav1.ConditionTrue
	}
	r.mu.Lock()
	meta.SetStatusCondition(&r.conditions, condition)
	r.mu.Unlock()
	select {
	case r.kick <- struct{}{}:
	default:
	}
}

// ready says whether the hooks of the controller are called, or what is in the way.
func (r *report) ready(err error) {
	if err == nil {
		r.set("Ready", true, "Running", "the hooks are called")
		r.converged()
		return
	}
	reason, message := explain(err)
	r.set("Ready", false, reason, message)
}

// honored names the fields of the controller that have no effect.
func (r *report) honored(ignored []string) {
	if len(ignored) == 0 {
		r.set("Honored", true, "AllFields", "every field has an effect")
		return
	}
	slices.Sort(ignored)
	r.set("Honored", false, "IgnoredFields", strings.Join(ignored, "; "))
}

// notReady reports a controller that cannot run, and returns the error to be tried again
// on, or nil if that would be in vain before its object changes.
func (r *report) notReady(ctx context.Context, err error) error {
	r.ready(err)
	if writeErr := r.write(ctx); writeErr != nil {
		return errors.Join(err, writeErr)
	}
	r.engine.log.Warn("a controller does not run", zap.String("controller", r.object.GetName()), zap.String("error", shorten(err.Error(), maxError)))
	var p *problem
	if errors.As(err, &p) && (p.reason == "Invalid" || p.reason == "KindNotAllowed" || p.reason == "NamespaceNotAllowed") {
		return nil
	}
	return err
}

// outcome notes how the sync of a parent ended.
func (r *report) outcome(key parentKey, parent *compose.Object, err error) {
	var now explained
	if err != nil {
		now.reason, now.message = explain(err)
	}
	r.mu.Lock()
	last, had := r.problems[key]
	if err == nil {
		delete(r.problems, key)
	} else {
		r.problems[key] = now
	}
	left := len(r.problems)
	r.mu.Unlock()
	unconverged.WithLabelValues(metricName(r.object)).Set(float64(left))
	if err == nil && !had {
		return
	}
	r.converged()
	if err == nil || parent == nil || had && now.same(last) {
		return
	}
	r.engine.log.Warn("a parent is not as its hook wants it", zap.String("controller", r.object.GetName()),
		zap.String("parent", parent.GetNamespace()+"/"+parent.GetName()), zap.String("reason", now.reason), zap.String("error", now.message))
	r.engine.events.Eventf(parent, r.object, corev1.EventTypeWarning, now.reason, "Sync", "%s", shorten(r.object.GetName()+": "+now.message, maxEvent))
}

// maxEvent is how long an Event's note is: the API server takes 1 KiB.
const maxEvent = 1000

// converged says whether all objects are as their hook wants them, or which is not, and why.
func (r *report) converged() {
	r.mu.Lock()
	var first string
	var problem explained
	for key, each := range r.problems {
		name := strings.TrimPrefix(key.namespace+"/"+key.name, "/")
		if first == "" || name < first {
			first, problem = name, each
		}
	}
	count := len(r.problems)
	r.mu.Unlock()
	if count == 0 {
		r.set("Converged", true, "AsWanted", "all objects are as the hook wants them")
		return
	}
	message := first + ": " + problem.message
	if count > 1 {
		message = fmt.Sprintf("%d objects are not as the hook wants them, such as %s", count, message)
	}
	r.set("Converged", false, problem.reason, message)
}

// writeEvery bounds how often the conditions are written.
const writeEvery = 500 * time.Millisecond

func (r *report) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.kick:
		}
		if err := r.write(ctx); err != nil && ctx.Err() == nil {
			r.engine.log.Warn("writing the conditions of a controller", zap.String("controller", r.object.GetName()), zap.Error(err))
			if !apierrors.IsNotFound(err) {
				time.AfterFunc(10*writeEvery, func() {
					select {
					case r.kick <- struct{}{}:
					default:
					}
				})
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(writeEvery):
		}
	}
}

func (r *report) write(ctx context.Context) error {
	r.mu.Lock()
	conditions := slices.Clone(r.conditions)
	r.mu.Unlock()
	hash := digest(conditions)
	if hash == r.written {
		return nil
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": r.object.GetUID()},
		"status":   v1alpha1.ControllerStatus{ObservedGeneration: r.object.GetGeneration(), Conditions: conditions},
	})
	if err != nil {
		return err
	}
	resource := v1alpha1.GroupVersion.WithResource(strings.ToLower(r.object.GetKind()) + "s")
	_, err = r.engine.dynamic.Resource(resource).Patch(ctx, r.object.GetName(), types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	if err == nil {
		r.written = hash
	}
	return err
}
