package hook

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/admitkit/admitkit/operator/hook/protocol"
	"github.com/admitkit/admitkit/operator/internal/hook/apply"
	"github.com/admitkit/admitkit/operator/internal/hook/compose"
)

// afterTime is how long after a time the hook is called: a policy may ask whether the time
// is before now, with a clock of its own.
const afterTime = 20 * time.Millisecond

const (
	// wakeEvery is how often times in a parent wake its hook up: a user may write thousands.
	wakeEvery = time.Second
	// minResyncAfter keeps a hook from asking for a loop without a pause.
	minResyncAfter = 100 * time.Millisecond
)

// view is what a hook is asked about.
type view struct {
	key        parentKey
	kind       *parentKind
	parent     *compose.Object
	state      *state
	children   []*compose.Object
	hook       *boundHook
	finalizing bool
	// deleting says that the parent is being deleted, and managed that its children are
	// written all the same.
	deleting, managed bool
	related           protocol.Objects
	// validUntil is that of the answer about the parent as it is now.
	validUntil time.Time
	// revisions are the parent's ControllerRevisions, and left the children that a rollout
	// leaves as they are.
	revisions []*compose.Object
	left      map[compose.ID]bool
	// made says that a child has been created.
	made bool
	// echo says that since the hook was last asked nothing has changed but what it wrote.
	echo bool
	// updated says that a child, or a label or an annotation, has been changed, and restated
	// that the status was, in an echo or after somebody else had changed it.
	updated, restated bool
}

// errBehind says that the cache does not have the last writes yet: nothing is known to have
// become better or worse.
var errBehind = errors.New("the cache is behind")

// syncParent asks the hook about one parent, if there is anything to ask, and does what it says.
func (p *parents) syncParent(ctx context.Context, key parentKey) error {
	v := &view{key: key, kind: &p.parentKinds[key.kind], parent: p.parentOf(key)}
	if v.parent == nil {
		p.drop(key)
		return nil
	}
	v.state = p.stateOf(key, v.parent.GetUID())
	if wait := behind - time.Since(v.state.stale[v.parent.GetResourceVersion()]); wait > 0 {
		p.queue.AddAfter(key, wait) // or when the event comes
		return errBehind
	}
	clear(v.state.stale)
	if proceed, err := p.enter(ctx, v); err != nil || !proceed {
		return err
	}
	if wait := p.behindFor(v.state); wait > 0 {
		p.queue.AddAfter(key, wait) // or when the event comes
		return errBehind
	}
	if err := p.claim(ctx, v); err != nil {
		return err
	}
	if v.hook == nil {
		return nil
	}
	if err := p.syncClaimed(ctx, v); err != nil {
		return errors.Join(err, p.mark(ctx, v, v.children)) // somebody may have taken the label away
	}
	return nil
}

// syncClaimed asks the hook about a parent and its children.
func (p *parents) syncClaimed(ctx context.Context, v *view) error {
	if err := p.customizeFor(ctx, v); err != nil {
		return err
	}
	asked := p.digestOf(v)
	if !p.mustAsk(v, asked) {
		return nil
	}
	p.note(v, "", asking)
	began := time.Now()
	v.state.wake(began)
	answer, err := p.askNow(ctx, v, began)
	if err != nil {
		return err
	}
	if err := p.follow(ctx, v, answer); err != nil {
		return err
	}
	v.state.settled = p.digestOf(v)
	// The event of what was written calls the hook, even if somebody has undone it by then.
	if !v.made && v.state.settled == asked {
		p.note(v, asking, asked)
	}
	p.schedule(v, answer, began)
	if v.restated || v.updated {
		return p.restless(v, time.Now())
	}
	return nil
}

// mustAsk reports whether anything has changed since the hook was asked, by itself, too, or
// its time has come.
func (p *parents) mustAsk(v *view, asked string) bool {
	due := v.state.due
	late := !due.IsZero() && !time.Now().Before(due)
	v.echo = !late && v.state.settled == asked
	p.mu.Lock()
	same := v.state.asked == asked
	p.mu.Unlock()
	if !same || late {
		return true
	}
	if !due.IsZero() {
		// The queue keeps the earliest time of a key, which may have been an older one.
		p.queue.AddAfter(v.key, time.Until(due))
	}
	return false
}

// askNow asks the hook about a parent as it is, unless it has changed too much too often.
func (p *parents) askNow(ctx context.Context, v *view, now time.Time) (*protocol.Answer, error) {
	if err := p.restless(v, now); err != nil {
		return nil, err
	}
	return p.ask(ctx, v, v.parent, "")
}

// restless says that the hook of a parent changes too much too often.
func (p *parents) restless(v *view, now time.Time) error {
	wait := v.state.churn.wait(v.parent.GetGeneration(), now)
	if wait == 0 {
		return nil
	}
	return fault("DoesNotConverge", fmt.Sprintf("the hook wants something else at each call, or somebody else undoes what it wants: it has made more than %d changes, while the parent stayed the same; it is called once in %s",
		maxChurn, churnEvery), &protocol.RetryAfterError{After: wait})
}

// asking stands for what the hook is being asked about: if that fails, it is asked again.
const asking = "asking"

// note notes what the hook has been asked about, unless it is to be called again in any case
// since before.
func (p *parents) note(v *view, before, asked string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if before == "" || v.state.asked == before {
		v.state.asked = asked
	}
}

// enter says whether the parent is to be synced, by which hook, and whether its children are,
// and adds or removes the finalizer.
func (p *parents) enter(ctx context.Context, v *view) (proceed bool, err error) {
	v.deleting = v.parent.GetDeletionTimestamp() != nil
	selected := v.kind.selects(v.parent)
	if has := p.finalizes(v.parent); p.finalize == nil && has || p.finalize != nil && !has && selected && !v.deleting {
		if err := p.setFinalizer(ctx, v, !has); err != nil {
			return false, err
		}
		if has && v.deleting { // if something else keeps it, there is an event
			return false, nil
		}
	}
	has := p.finalizes(v.parent)
	if !selected && !has {
		p.drop(v.key)
		return false, nil
	}
	v.hook = p.sync
	if v.finalizing = p.finalize != nil && (v.deleting || !selected); v.finalizing {
		v.hook = p.finalize
	}
	v.managed = !v.deleting || has && !collected(v.parent)
	return true, nil
}

// finalizes says whether a parent has the controller's finalizer.
func (p *parents) finalizes(parent *compose.Object) bool {
	return slices.Contains(parent.GetFinalizers(), p.finalizer())
}

func (p *parents) setFinalizer(ctx context.Context, v *view, want bool) error {
	if p.finalizes(v.parent) == want {
		return nil
	}
	finalizers := slices.DeleteFunc(v.parent.GetFinalizers(), func(f string) bool { return f == p.finalizer() })
	if want {
		finalizers = append(finalizers, p.finalizer())
	}
	if finalizers == nil {
		finalizers = []string{}
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": v.parent.GetUID(), "resourceVersion": v.parent.GetResourceVersion(), "finalizers": finalizers,
	}})
	if err != nil {
		return err
	}
	fresh, err := p.parentClient(v.key).Patch(ctx, v.parent.GetName(), types.MergePatchType, patch, metav1.PatchOptions{FieldManager: apply.FieldManager})
	if err != nil {
		return fmt.Errorf("the finalizer of the parent: %w", err)
	}
	p.replace(v, fresh)
	return nil
}

// replace notes that the parent is another since it was written: what the cache had is old.
func (p *parents) replace(v *view, after *compose.Object) {
	if v.parent.GetResourceVersion() != after.GetResourceVersion() {
		v.state.stale[v.parent.GetResourceVersion()] = time.Now()
	}
	after.SetManagedFields(nil)
	v.parent = after
}

// behindFor returns how long to wait for the cache to have what was last written.
func (p *parents) behindFor(s *state) time.Duration {
	var wait time.Duration
	for id, w := range s.writes {
		version := ""
		if object := p.cached(id); object != nil {
			version = object.GetResourceVersion()
		}
		left := behind - time.Since(w.at)
		if version != w.before || left <= 0 {
			delete(s.writes, id)
			continue
		}
		wait = max(wait, left)
	}
	return wait
}

// cached returns a child, or a revision, as the cache has it, or nil.
func (p *parents) cached(id compose.ID) *compose.Object {
	if id.GroupVersionKind == revisionKind && p.revisionLease != nil {
		return p.revisionLease.get(id.Namespace, id.Name)
	}
	i := slices.IndexFunc(p.children, func(k childKind) bool { return k.GroupVersionKind == id.GroupVersionKind })
	if i < 0 {
		return nil
	}
	return p.childLeases[i].get(id.Namespace, id.Name)
}

// claim finds the children, and adopts and releases.
func (p *parents) claim(ctx context.Context, v *view) error {
	uid := string(v.parent.GetUID())
	// A selector may select the parent itself, which must not be its own child. An object of
	// another namespace may only say that it is the parent's.
	other := func(o *compose.Object) bool {
		return o.GetUID() == v.parent.GetUID() || v.parent.GetNamespace() != "" && o.GetNamespace() != v.parent.GetNamespace()
	}
	if !p.composite {
		for _, l := range p.childLeases {
			for _, object := range l.indexed(byOwner, uid) {
				if object.GetAnnotations()[compose.AnnotationDecorator] == p.name && !other(object) {
					v.children = append(v.children, object)
				}
			}
		}
		return nil
	}
	selector, err := compose.Selector(v.parent, p.generate)
	if err != nil {
		return fault("NoSelector", err.Error())
	}
	var candidates []*compose.Object
	for _, l := range p.childLeases {
		candidates = append(candidates, l.indexed(byOwner, uid)...)
		switch {
		case p.generate:
			candidates = append(candidates, l.indexed(byOrphanUID, uid)...)
		case v.parent.GetNamespace() != "":
			candidates = append(candidates, l.indexed(byOrphan, v.parent.GetNamespace())...)
		default:
			candidates = append(candidates, slices.DeleteFunc(l.list(), func(o *compose.Object) bool { return metav1.GetControllerOfNoCopy(o) != nil })...)
		}
	}
	claimed := compose.Claim(v.parent, selector, slices.DeleteFunc(candidates, other))
	v.children = claimed.Owned
	if v.finalizing || v.deleting {
		return nil
	}
	if p.revisionLease != nil {
		v.revisions = p.revisionLease.indexed(byOwner, uid)
	}
	return p.own(ctx, v, claimed)
}

func (p *parents) own(ctx context.Context, v *view, claimed compose.Claimed) error {
	if len(claimed.Adopt) > 0 {
		// A parent that has just been deleted, and made anew, adopts nothing of the old one.
		live, err := p.parentClient(v.key).Get(ctx, v.parent.GetName(), metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("reading the parent before it adopts: %w", err)
		}
		if live.GetUID() != v.parent.GetUID() || live.GetDeletionTimestamp() != nil {
			return nil
		}
	}
	for _, object := range claimed.Adopt {
		adopted, err := apply.Adopt(ctx, p.client(object), v.parent, object)
		if err != nil {
			return fmt.Errorf("adopting %s: %w", compose.IDOf(object), err)
		}
		adopted.SetManagedFields(nil)
		p.wrote(v, compose.IDOf(object), object, "adopt")
		v.children = append(v.children, adopted)
	}
	for _, object := range claimed.Release {
		if _, err := apply.Release(ctx, p.client(object), v.parent, object); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("releasing %s: %w", compose.IDOf(object), err)
		}
		p.wrote(v, compose.IDOf(object), object, "release")
	}
	return nil
}

// wrote remembers a write until the cache has it.
func (p *parents) wrote(v *view, id compose.ID, before *compose.Object, verb string) {
	version := ""
	if before != nil {
		version = before.GetResourceVersion()
	}
	if verb == "delete" && time.Since(before.GetCreationTimestamp().Time) < youngChild {
		v.updated = true // a hook that wants another name at each call
	}
	v.state.writes[id] = write{version, time.Now()}
	writesTotal.WithLabelValues(p.metricName(), verb).Inc()
}

// digestOf tells whether the hook has been asked about all that there is now.
func (p *parents) digestOf(v *view) string {
	metadata := maps.Clone(v.parent.Object["metadata"].(map[string]any))
	for _, field := range []string{"resourceVersion", "managedFields"} {
		delete(metadata, field)
	}
	rest := maps.Clone(v.parent.Object)
	delete(rest, "metadata")
	if v.kind.ignoringStatus && !v.deleting {
		delete(metadata, "generation") // which a status counts, too, if it is no subresource
		delete(rest, "status")
	}
	var versions []string
	for _, child := range v.children {
		versions = append(versions, string(child.GetUID())+"/"+v.state.version(child))
	}
	for _, revision := range v.revisions {
		versions = append(versions, string(revision.GetUID())+"/"+revision.GetResourceVersion())
	}
	slices.Sort(versions)
	related := map[string]map[string]string{}
	for kind, all := range v.related {
		related[kind] = map[string]string{}
		for name, object := range all {
			related[kind][name] = (&compose.Object{Object: object}).GetResourceVersion()
		}
	}
	return digest(metadata, rest, versions, related, v.finalizing)
}

// ask calls the hook about the parent, or about what it was at a revision, and reads its
// response.
func (p *parents) ask(ctx context.Context, v *view, parent *compose.Object, revision string) (*protocol.Answer, error) {
	children := compose.Group(v.hook.version, v.parent, p.kinds(), v.children)
	related := v.related
	if related == nil {
		related = protocol.Objects{}
	}
	var request any = protocol.SyncRequest{Controller: p.object, Parent: parent.Object, Children: children, Related: related, Finalizing: v.finalizing}
	read := protocol.ReadSync
	if !p.composite {
		request = protocol.DecorateRequest{Controller: p.object, Object: v.parent.Object, Attachments: children, Related: related, Finalizing: v.finalizing}
		read = protocol.ReadDecorate
	}
	response, err := p.call(ctx, v.hook, string(parent.GetUID())+revision, request)
	if err != nil {
		return nil, err
	}
	answer, err := read(response, v.hook.strict)
	if err != nil {
		return nil, fault("HookFailed", "hooks."+v.hook.name+": "+err.Error())
	}
	return answer, nil
}

func (p *parents) call(ctx context.Context, hook *boundHook, key string, request any) ([]byte, error) {
	body, err := protocol.Marshal(request)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	response, err := hook.Call(ctx, protocol.Request{Key: key + "/" + hook.name, Body: body})
	result := "ok"
	if err != nil {
		result = "error"
	}
	callsTotal.WithLabelValues(p.metricName(), hook.name, result).Inc()
	callSeconds.WithLabelValues(p.metricName(), hook.name).Observe(time.Since(began).Seconds())
	var known *problem
	if err == nil || errors.As(err, &known) {
		return response, err
	}
	return nil, fault("HookFailed", "hooks."+hook.name+": "+err.Error(), err)
}

// prepare completes the children that the hook returned.
func (p *parents) prepare(v *view, answer *protocol.Answer) ([]*compose.Object, error) {
	rules := compose.Rules{Kinds: p.kinds(), Absent: p.absent}
	if p.composite {
		rules.Selector, _ = compose.Selector(v.parent, p.generate)
		if p.generate {
			rules.Labels = map[string]string{compose.LabelControllerUID: string(v.parent.GetUID())}
		}
	} else {
		rules.Annotations = map[string]string{compose.AnnotationDecorator: p.name}
	}
	wanted, err := compose.Prepare(v.parent, rules, answer.Children)
	if err != nil {
		return nil, fault("HookFailed", err.Error())
	}
	for _, w := range wanted {
		compose.SetUntil(w, v.validUntil)
	}
	return wanted, nil
}

// follow does what the hook said. The status is written even if a child could not be.
func (p *parents) follow(ctx context.Context, v *view, answer *protocol.Answer) error {
	v.validUntil = answer.ValidUntil
	if !answer.ValidUntil.IsZero() && !time.Now().Before(answer.ValidUntil) {
		answer.Children = nil
	}
	wanted, err := p.prepare(v, answer)
	if err != nil {
		return err
	}
	v.state.answered, v.state.validUntil = true, answer.ValidUntil
	problems := p.mark(ctx, v, p.unmarked(v, wanted))
	if p.revisionLease != nil && !v.finalizing && !v.deleting {
		var err error
		if wanted, err = p.roll(ctx, v, answer, wanted); wanted == nil {
			return errors.Join(problems, err)
		}
		problems = errors.Join(problems, err)
	}
	if v.managed {
		problems = errors.Join(problems, p.manage(ctx, v, wanted))
	}
	if p.composite {
		problems = errors.Join(problems, p.writeStatus(ctx, v, answer.Status))
	} else {
		problems = errors.Join(problems, p.decorate(ctx, v, answer))
	}
	if v.restated || v.updated {
		rolling := 0
		if p.rolls() {
			rolling = len(wanted)
		}
		v.state.churn.add(v.parent.GetGeneration(), rolling, time.Now())
	}
	if v.finalizing && answer.Finalized && problems == nil {
		return p.setFinalizer(ctx, v, false)
	}
	return problems
}

// collected says whether the garbage collector has the children of a parent that is being
// deleted: it deletes them before their parent, or makes them orphans.
func collected(parent *compose.Object) bool {
	return slices.Contains(parent.GetFinalizers(), metav1.FinalizerDeleteDependents) || slices.Contains(parent.GetFinalizers(), metav1.FinalizerOrphanDependents)
}

// schedule has the hook called again when it wants, when the period is over, or when a
// time in the parent has come.
func (p *parents) schedule(v *view, answer *protocol.Answer, began time.Time) {
	var due time.Time
	sooner := func(at time.Time) {
		if due.IsZero() || at.Before(due) {
			due = at
		}
	}
	if answer.ResyncAfter > 0 {
		sooner(time.Now().Add(max(answer.ResyncAfter, minResyncAfter)))
	}
	if p.resync > 0 {
		sooner(time.Now().Add(p.resync))
	}
	if p.wakeUps {
		// Since the call began: a time that came during it may not have been seen.
		if at, ok := compose.NextTime(v.parent, began); ok {
			at = at.Add(afterTime)
			if next := v.state.woke.Add(wakeEvery); next.After(at) {
				at = next
			}
			sooner(at)
		}
	}
	v.state.due = due
	if !due.IsZero() {
		p.queue.AddAfter(v.key, max(0, time.Until(due)))
	}
}

// writeStatus replaces the parent's status, if it is another.
func (p *parents) writeStatus(ctx context.Context, v *view, status map[string]any) error {
	status = maps.Clone(status)
	if status == nil {
		status = map[string]any{}
	}
	status["observedGeneration"] = v.parent.GetGeneration()
	return p.putStatus(ctx, v, status)
}

func (p *parents) putStatus(ctx context.Context, v *view, status map[string]any) error {
	last := v.state.status
	v.state.status = digest(status)
	fresh := v.parent
	for range 5 {
		if now, _ := fresh.Object["status"].(map[string]any); equalJSON(now, status) {
			return nil
		}
		after, err := p.sendStatus(ctx, v, fresh, status)
		if err == nil {
			if after.GetResourceVersion() != fresh.GetResourceVersion() {
				writesTotal.WithLabelValues(p.metricName(), "status").Inc()
				v.restated = v.echo || last != "" && last != digest(fresh.Object["status"])
			}
			// As the API server keeps it, without the fields that its schema does not have.
			v.state.status = digest(after.Object["status"])
			p.replace(v, after)
			return nil
		}
		if apierrors.IsNotFound(err) {
			return nil
		}
		if !apierrors.IsConflict(err) {
			return fmt.Errorf("the status of the parent: %w", err)
		}
		if fresh, err = p.parentClient(v.key).Get(ctx, v.parent.GetName(), metav1.GetOptions{}); err != nil {
			return fmt.Errorf("the status of the parent: %w", err)
		}
		if fresh.GetUID() != v.parent.GetUID() {
			return nil
		}
	}
	return errors.New("the status of the parent: somebody else writes it all the time")
}

// sendStatus replaces the status, by its subresource if the kind has one.
func (p *parents) sendStatus(ctx context.Context, v *view, fresh *compose.Object, status map[string]any) (*compose.Object, error) {
	if v.kind.hasStatus {
		update := fresh.DeepCopy()
		update.Object["status"] = status
		return p.parentClient(v.key).UpdateStatus(ctx, update, metav1.UpdateOptions{FieldManager: apply.FieldManager})
	}
	patch, err := json.Marshal([]map[string]any{
		{"op": "add", "path": "/metadata/uid", "value": fresh.GetUID()}, // with another one it is a conflict
		{"op": "add", "path": "/status", "value": status},
	})
	if err != nil {
		return nil, err
	}
	after, err := p.parentClient(v.key).Patch(ctx, fresh.GetName(), types.JSONPatchType, patch, metav1.PatchOptions{FieldManager: apply.FieldManager, FieldValidation: metav1.FieldValidationIgnore})
	if err == nil && after.Object["status"] == nil {
		return nil, fault("NoStatus", fmt.Sprintf("the hook returned a status, and %s has no field of this name: leave it out", v.kind.Kind), errLeftAlone)
	}
	return after, err
}

func equalJSON(a, b map[string]any) bool {
	return len(a)+len(b) == 0 || reflect.DeepEqual(a, b) || digest(a) == digest(b)
}

// decorate sets the labels, annotations and status that a decorator wants.
func (p *parents) decorate(ctx context.Context, v *view, answer *protocol.Answer) error {
	labels, annotations := changed(v.parent.GetLabels(), answer.Labels), changed(v.parent.GetAnnotations(), answer.Annotations)
	if len(labels)+len(annotations) > 0 {
		body, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": v.parent.GetUID(), "labels": labels, "annotations": annotations}})
		if err != nil {
			return err
		}
		after, err := p.parentClient(v.key).Patch(ctx, v.parent.GetName(), types.MergePatchType, body, metav1.PatchOptions{FieldManager: apply.FieldManager})
		if err != nil {
			return fmt.Errorf("labels and annotations of the object: %w", err)
		}
		writesTotal.WithLabelValues(p.metricName(), "decorate").Inc()
		v.updated = true
		p.replace(v, after)
	}
	if answer.Status == nil {
		return nil
	}
	return p.putStatus(ctx, v, answer.Status)
}

// changed returns the patch that makes labels or annotations what a decorator wants.
func changed(have map[string]string, want map[string]*string) map[string]any {
	patch := map[string]any{}
	for key, value := range want {
		now, has := have[key]
		switch {
		case value == nil && has:
			patch[key] = nil
		case value != nil && (!has || now != *value):
			patch[key] = *value
		}
	}
	return patch
}
