package sink

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	eventsv1client "k8s.io/client-go/kubernetes/typed/events/v1"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/extension/cluster"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

const (
	// reportingController is the Events' reporting controller, a qualified name.
	reportingController = "admitkit.dev/audit"
	// noteLimit is the API's limit of an Event's note, in bytes.
	noteLimit = 1024
)

// eventSink writes one Event for each record. It does not use client-go's
// recorder, which counts Events of the same kind on the same object as one
// series and keeps the note of the first: the second of two commands in one Pod
// would be lost.
type eventSink struct {
	events   eventsv1client.EventsGetter
	instance string

	mu     sync.Mutex
	minute time.Time
	caused map[string]int // Events of this minute by user
}

// eventsAMinute bounds the Events that a user can cause in a minute, because anybody who
// may exec could fill etcd with them.
const eventsAMinute = 100

// NewEvent returns the sink "event": each record is an Event (events.k8s.io/v1)
// on the Pod, Service or node, which kubectl describe and kubectl events show.
// The record's ID is part of its name. Do not rely on this sink alone:
// kube-apiserver keeps Events for an hour by default (--event-ttl), a note
// is cut at 1024 bytes, and it fails when a user causes more than 100 Events in a minute.
func NewEvent() Sink { return &eventSink{caused: map[string]int{}} }

// Name is "event".
func (*eventSink) Name() string { return "event" }

// Register connects to the cluster.
func (s *eventSink) Register(mgr extension.Manager) error {
	config, err := cluster.Unthrottled(mgr)
	if err != nil {
		return err
	}
	if s.events, err = eventsv1client.NewForConfig(config); err != nil {
		return err
	}
	if s.instance, err = os.Hostname(); err != nil {
		s.instance = "unknown"
	}
	return nil
}

// Rights implements [extension.Entitled].
func (*eventSink) Rights() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{{APIGroups: []string{"events.k8s.io"}, Resources: []string{"events"}, Verbs: []string{"create"}}}
}

// Write creates the Event.
func (s *eventSink) Write(ctx context.Context, r *v1alpha1.AuditRecord) error {
	if r.DryRun || r.Way == v1alpha1.WayDecision { // extensions make Events of their own
		return nil
	}
	if s.tooMany(r) {
		return fmt.Errorf("%s has caused %d Events in this minute; wait for the next", r.User.Username, eventsAMinute)
	}
	regarding, namespace := subject(r)
	eventType := corev1.EventTypeNormal
	if r.Decision == v1alpha1.AuditDenied || slices.Contains(r.Flags, v1alpha1.FlagBreakGlass) {
		eventType = corev1.EventTypeWarning
	}
	action, reason := kind(r)
	event := &eventsv1.Event{
		ObjectMeta:          metav1.ObjectMeta{Namespace: namespace, Name: "audit." + r.ID},
		EventTime:           r.Time,
		ReportingController: reportingController,
		ReportingInstance:   s.instance,
		Action:              action,
		Reason:              reason,
		Regarding:           regarding,
		Note:                cut(sentence(r)),
		Type:                eventType,
	}
	_, err := s.events.Events(namespace).Create(ctx, event, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("writing the Event on %s %s/%s: %w", regarding.Kind, namespace, regarding.Name, err)
	}
	return nil
}

// tooMany counts a record, and reports whether there is an Event too many of its user.
func (s *eventSink) tooMany(r *v1alpha1.AuditRecord) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if minute := r.Time.Truncate(time.Minute); minute.After(s.minute) {
		s.minute = minute
		clear(s.caused)
	}
	s.caused[r.User.Username]++
	return s.caused[r.User.Username] > eventsAMinute
}

// subject returns the object that the Event regards, and the Event's namespace:
// the API requires default for objects without one.
func subject(r *v1alpha1.AuditRecord) (corev1.ObjectReference, string) {
	namespace := r.Namespace
	if namespace == "" {
		namespace = metav1.NamespaceDefault
	}
	switch {
	case r.Way == v1alpha1.WayNodeProxy && r.PodUID == "":
		return corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: r.Node}, metav1.NamespaceDefault
	case r.Service != "":
		return corev1.ObjectReference{APIVersion: "v1", Kind: "Service", Namespace: namespace, Name: r.Service}, namespace
	}
	pod := corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: namespace, Name: r.Pod, UID: r.PodUID}
	if r.Container != "" {
		pod.FieldPath = fmt.Sprintf("spec.containers{%s}", r.Container)
	}
	return pod, namespace
}

var (
	actions = map[v1alpha1.AuditWay]string{
		v1alpha1.WayExec: "Exec", v1alpha1.WayAttach: "Attach", v1alpha1.WayPortForward: "PortForward",
		v1alpha1.WayPodProxy: "Proxy", v1alpha1.WayServiceProxy: "Proxy", v1alpha1.WayNodeProxy: "Proxy",
		v1alpha1.WayDebug: "Debug", v1alpha1.WayPod: "Create",
	}
	reasons = map[v1alpha1.AuditWay]string{
		v1alpha1.WayExec: "PodExec", v1alpha1.WayAttach: "PodAttach", v1alpha1.WayPortForward: "PodPortForward",
		v1alpha1.WayPodProxy: "PodProxy", v1alpha1.WayServiceProxy: "ServiceProxy", v1alpha1.WayNodeProxy: "NodeProxy",
		v1alpha1.WayDebug: "PodDebug", v1alpha1.WayPod: "PodWayIn",
	}
)

// kind returns the action and the reason of an Event about a record.
func kind(r *v1alpha1.AuditRecord) (action, reason string) {
	if r.Way == v1alpha1.WayPod && r.Verb == "update" {
		return "Update", "PodImage"
	}
	return actions[r.Way], reasons[r.Way]
}

// sentence describes a record for a person.
func sentence(r *v1alpha1.AuditRecord) string {
	var text strings.Builder
	action, reason := kind(r)
	fmt.Fprintf(&text, "%s: %s", r.User.Username, strings.ToLower(action))
	if r.Container != "" {
		fmt.Fprintf(&text, " in container %s", r.Container)
	}
	if reason == "PodImage" && r.Image != "" {
		fmt.Fprintf(&text, " to image %s", r.Image)
	}
	if len(r.Command) > 0 {
		fmt.Fprintf(&text, ": %q", r.Command)
	}
	if r.Path != "" {
		fmt.Fprintf(&text, " %s", r.Path)
	}
	if len(r.Ports) > 0 {
		fmt.Fprintf(&text, " port %s", strings.Join(r.Ports, ", "))
	}
	if r.Decision == v1alpha1.AuditDenied {
		fmt.Fprintf(&text, " was denied: %s", r.Reason)
		return text.String()
	}
	if r.AccessRequest != nil {
		fmt.Fprintf(&text, " under %s %s", r.AccessRequest.Kind, r.AccessRequest.Name)
	}
	if len(r.Flags) > 0 {
		fmt.Fprintf(&text, " %v", r.Flags)
	}
	fmt.Fprintf(&text, " (tty %t, stdin %t)", r.TTY, r.Stdin)
	return text.String()
}

// cut shortens text to fit a note, between characters.
func cut(text string) string {
	const mark = "..."
	if len(text) <= noteLimit {
		return text
	}
	end := noteLimit - len(mark)
	for !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + mark
}
