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

// The reasons of Events, which are Metacontroller's. The message has the reason of the
// condition.
const (
	eventSyncError   = "SyncError"
	eventCreateError = "CreateError"
	eventStarted     = "Started"
	eventStopped     = "Stopped"
)

// report writes the conditions of a controller's object, and its Events.
type report struct {
	engine *engine
	object *unstructured.Unstructured
	kick   chan struct{}
	cancel context.CancelFunc
	done   sync.WaitGroup

	mu         sync.Mutex
	conditions []metav1.Condition
	problems   map[parentKey]explained
	// told is the last Event of the object itself.
	told    explained
	written string
}

// reportOf returns the report of a controller's object, which is the same for as long as its
// spec is: what has been told is not told again with each try to start it.
func (e *engine) reportOf(key string, object *unstructured.Unstructured) *report {
	e.mu.Lock()
	defer e.mu.Unlock()
	old := e.reports[key]
	if old != nil && old.object.GetUID() == object.GetUID() && old.object.GetGeneration() == object.GetGeneration() {
		old.mu.Lock()
		defer old.mu.Unlock()
		clear(old.problems)
		return old
	}
	old.stop()
	e.reports[key] = newReport(e, object)
	return e.reports[key]
}

// dropReport ends the report of a controller that is gone.
func (e *engine) dropReport(key string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.reports[key].stop()
	delete(e.reports, key)
}

// newReport returns a report, which runs until it is stopped.
func newReport(e *engine, object *unstructured.Unstructured) *report {
	ctx, cancel := context.WithCancel(e.ctx)
	r := &report{engine: e, object: object.DeepCopy(), kick: make(chan struct{}, 1), cancel: cancel, problems: map[parentKey]explained{}}
	var status v1alpha1.ControllerStatus
	text, err := json.Marshal(object.Object["status"])
	if err == nil {
		err = json.Unmarshal(text, &status)
	}
	if err == nil { // else there is a time that Go does not read: half a condition could not be written
		r.conditions = status.Conditions
	}
	r.done.Go(func() { r.run(ctx) })
	return r
}

func (r *report) stop() {
	if r != nil {
		r.cancel()
		r.done.Wait()
	}
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
		r.tell(eventStarted, explained{"Running", "the hooks are called"})
		return
	}
	r.unready(eventSyncError, err)
}

func (r *report) unready(event string, err error) {
	reason, message := explain(err)
	r.set("Ready", false, reason, message)
	r.tell(event, explained{reason, message})
}

// stopped says that the hooks are not called any more.
func (r *report) stopped() {
	r.tell(eventStopped, explained{"Stopped", "the controller was deleted or changed"})
}

// tell makes an Event of the controller's object, and logs what is wrong, unless it is what
// was told last.
func (r *report) tell(event string, now explained) {
	r.mu.Lock()
	same := now.same(r.told)
	r.told = now
	r.mu.Unlock()
	if same {
		return
	}
	kind := corev1.EventTypeNormal
	if event == eventSyncError || event == eventCreateError {
		kind = corev1.EventTypeWarning
		r.engine.log.Warn("a controller does not run", zap.String("controller", r.object.GetName()), zap.String("reason", now.reason), zap.String("error", now.message))
	}
	r.engine.events.Eventf(r.object, nil, kind, event, "Run", "%s", shorten(now.reason+": "+now.message, maxEvent))
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
func (r *report) notReady(err error) error {
	p, known := errors.AsType[*problem](err)
	event := eventCreateError
	if known && p.reason == "NoStatus" {
		event = eventSyncError
	}
	r.unready(event, err)
	if known && (p.reason == "Invalid" || p.reason == "KindNotAllowed" || p.reason == "NamespaceNotAllowed") {
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
	r.engine.events.Eventf(parent, r.object, corev1.EventTypeWarning, eventSyncError, "Sync", "%s", shorten(r.object.GetName()+": "+now.reason+": "+now.message, maxEvent))
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

const (
	// firstWrite leaves the object alone at first: a client that has made or changed it may
	// change it once more, with the version that it knows.
	firstWrite = time.Second
	// writeEvery bounds how often the conditions are written.
	writeEvery = 500 * time.Millisecond
)

func (r *report) run(ctx context.Context) {
	for pause := firstWrite; ; pause = writeEvery {
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
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
	after, err := r.engine.dynamic.Resource(resource).Patch(ctx, r.object.GetName(), types.MergePatchType, patch, metav1.PatchOptions{FieldValidation: metav1.FieldValidationIgnore}, "status")
	if err != nil {
		return err
	}
	if _, kept, _ := unstructured.NestedFieldNoCopy(after.Object, "status", "conditions"); !kept && r.written == "" {
		lost := fmt.Sprintf("the CustomResourceDefinition %s is not this program's, so the conditions of its objects are lost: apply the one in the folder crd of the release, or install the chart with --take-ownership", resource.GroupResource())
		r.engine.log.Warn(lost, zap.String("controller", r.object.GetName()))
		r.engine.events.Eventf(r.object, nil, corev1.EventTypeWarning, "ConditionsLost", "Run", "%s", lost)
	}
	r.written = hash
	return nil
}
