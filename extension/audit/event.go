package audit

import (
	"context"
	"fmt"
	"os"
	"strings"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	eventsv1client "k8s.io/client-go/kubernetes/typed/events/v1"
)

const (
	// controller is the Events' reporting controller, a qualified name.
	controller = "admitkit.dev/audit"
	// noteLimit is the API's limit of an Event's note, in bytes.
	noteLimit = 1024
)

// eventWriter writes one Event for each session. It does not use client-go's
// recorder, which counts Events of the same kind on the same object as one
// series and keeps the note of the first: of two commands in one Pod the second
// would be lost.
type eventWriter struct {
	pods   corev1client.PodsGetter
	events eventsv1client.EventsGetter
}

func (w *eventWriter) write(ctx context.Context, r record) error {
	regarding := corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: r.namespace, Name: r.pod}
	// kubectl describe finds an Event by the UID of its object, which a CONNECT
	// request does not carry. Without it the Event is still worth having.
	if pod, err := w.pods.Pods(r.namespace).Get(ctx, r.pod, metav1.GetOptions{}); err == nil {
		regarding.UID = pod.UID
		regarding.ResourceVersion = pod.ResourceVersion
		if r.container == "" && len(pod.Spec.Containers) > 0 {
			r.container = pod.Spec.Containers[0].Name
		}
	}
	if r.container != "" {
		regarding.FieldPath = fmt.Sprintf("spec.containers{%s}", r.container)
	}
	instance, err := os.Hostname()
	if err != nil {
		instance = "unknown"
	}
	event := &eventsv1.Event{
		ObjectMeta:          metav1.ObjectMeta{Namespace: r.namespace, GenerateName: generateName(r.pod)},
		EventTime:           metav1.NewMicroTime(r.time),
		ReportingController: controller,
		ReportingInstance:   instance,
		Action:              actions[r.verb],
		Reason:              reasons[r.verb],
		Regarding:           regarding,
		Note:                cut(r.String()),
		Type:                corev1.EventTypeNormal,
	}
	if _, err := w.events.Events(r.namespace).Create(ctx, event, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("writing the Event on Pod %s/%s: %w", r.namespace, r.pod, err)
	}
	return nil
}

var (
	actions = map[string]string{"exec": "Exec", "attach": "Attach"}
	reasons = map[string]string{"exec": "PodExec", "attach": "PodAttach"}
)

// generateName leaves room for the random end of the name.
func generateName(pod string) string {
	return strings.TrimRight(pod[:min(len(pod), 200)], "-.") + "-"
}

// cut shortens a text to what a note may hold, at a character.
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
