// Package audit records who ran what in which Pod: every exec and attach, as
// one structured log line and as an Event on the Pod.
//
//	err := mgr.AddExtension(audit.New(audit.Options{}))
//
// Recording never blocks an engineer unless Options.Required says so: by
// default the webhook's failure policy is Ignore, the log line is written before
// the session begins, and the Event is written in the background.
package audit

import (
	"context"
	"fmt"
	"strings"
	"time"

	"go.uber.org/zap"
	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/admitkit/admitkit/extension"
)

// Options are the options of New; the zero value is useful.
type Options struct {
	// Required makes the record a condition: a session that cannot be recorded
	// as an Event is denied, and while the webhook is down there is none at
	// all. Default: false.
	Required bool
	// NamespaceSelector selects the namespaces. Default: the manager's
	// namespace, or all if it has none.
	NamespaceSelector *metav1.LabelSelector
	// QueueLength is how many Events may wait to be written; those beyond are
	// dropped and the drop is logged. Default: 1000.
	QueueLength int
	// Clock is the real one by default.
	Clock clock.PassiveClock
}

// New returns the auditor: a validator on CONNECT of pods/exec and pods/attach.
func New(options Options) *extension.Admission {
	if options.QueueLength == 0 {
		options.QueueLength = 1000
	}
	if options.Clock == nil {
		options.Clock = clock.RealClock{}
	}
	failurePolicy := admissionregistrationv1.Ignore
	if options.Required {
		failurePolicy = admissionregistrationv1.Fail
	}
	sideEffects := admissionregistrationv1.SideEffectClassNoneOnDryRun
	a := &auditor{options: options, queue: make(chan record, options.QueueLength)}
	return extension.Validating[runtime.Object](a, extension.Scope{
		Name:              "audit",
		Rules:             extension.Connect("pods/exec", "pods/attach"),
		NamespaceSelector: options.NamespaceSelector,
		FailurePolicy:     &failurePolicy,
		SideEffects:       &sideEffects,
	})
}

// auditor is the validator behind New.
type auditor struct {
	options Options
	log     *zap.Logger
	events  *eventWriter
	queue   chan record
}

// record is one session.
type record struct {
	time      time.Time
	uid       string
	user      string
	groups    []string
	namespace string
	pod       string
	container string
	verb      string
	command   []string
	tty       bool
	stdin     bool
}

// Register learns where to log and to write Events.
func (a *auditor) Register(mgr extension.Manager) error {
	config, err := mgr.GetKubeConnection()
	if err != nil {
		return err
	}
	clientset, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("audit: %w", err)
	}
	a.log = mgr.GetLogger().Desugar().Named("audit")
	a.events = &eventWriter{pods: clientset.CoreV1(), events: clientset.EventsV1()}
	return mgr.GetKubeManager().Add(recorder{a})
}

// Validate records the session that is about to begin. It denies it only if the
// record is required and cannot be made.
func (a *auditor) Validate(ctx context.Context, obj runtime.Object, req *extension.Request) error {
	r := record{
		time: a.options.Clock.Now(), uid: string(req.UID), user: req.User().Username, groups: req.User().Groups,
		namespace: req.Namespace, pod: req.Name, verb: req.SubResource,
	}
	switch options := obj.(type) {
	case *corev1.PodExecOptions:
		r.container, r.command, r.tty, r.stdin = options.Container, options.Command, options.TTY, options.Stdin
	case *corev1.PodAttachOptions:
		r.container, r.tty, r.stdin = options.Container, options.TTY, options.Stdin
	default:
		return fmt.Errorf("audit: %s %s/%s: unexpected options %T", req.Operation, req.Resource.Resource, req.SubResource, obj)
	}
	if req.Operation != admissionv1.Connect || req.DryRun() {
		return nil
	}
	a.log.Info("session", r.fields()...)
	if a.options.Required {
		if err := a.events.write(ctx, r); err != nil {
			a.log.Error("session denied: not recorded", append(r.fields(), zap.Error(err))...)
			return extension.Denyf("%s on Pod %s/%s is only allowed when it can be recorded, and recording failed: %w", r.verb, r.namespace, r.pod, err)
		}
		return nil
	}
	select {
	case a.queue <- r:
	default:
		a.log.Error("event dropped: the queue is full", append(r.fields(), zap.Int("queueLength", a.options.QueueLength))...)
	}
	return nil
}

func (r record) fields() []zap.Field {
	return []zap.Field{
		zap.String("verb", r.verb), zap.String("user", r.user), zap.Strings("groups", r.groups),
		zap.String("namespace", r.namespace), zap.String("pod", r.pod), zap.String("container", r.container),
		zap.Strings("command", r.command), zap.Bool("tty", r.tty), zap.Bool("stdin", r.stdin), zap.String("uid", r.uid),
	}
}

// String says what happened, for a person.
func (r record) String() string {
	var text strings.Builder
	fmt.Fprintf(&text, "%s: %s", r.user, r.verb)
	if r.container != "" {
		fmt.Fprintf(&text, " in container %s", r.container)
	}
	if len(r.command) > 0 {
		fmt.Fprintf(&text, ": %q", r.command)
	}
	fmt.Fprintf(&text, " (tty %t, stdin %t)", r.tty, r.stdin)
	return text.String()
}

// recorder writes the Events that wait, in every replica: each has its own
// queue.
type recorder struct{ *auditor }

var _ manager.LeaderElectionRunnable = recorder{}

// NeedLeaderElection is false: every replica answers admissions.
func (recorder) NeedLeaderElection() bool { return false }

// writeTimeout bounds the writing of one Event.
const writeTimeout = 10 * time.Second

// Start writes Events until ctx ends, and then those that still wait.
func (a recorder) Start(ctx context.Context) error {
	for {
		select {
		case r := <-a.queue:
			a.write(ctx, r)
		case <-ctx.Done():
			for len(a.queue) > 0 {
				a.write(ctx, <-a.queue)
			}
			return nil
		}
	}
}

func (a recorder) write(ctx context.Context, r record) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), writeTimeout)
	defer cancel()
	if err := a.events.write(ctx, r); err != nil {
		a.log.Error("event not written", append(r.fields(), zap.Error(err))...)
	}
}
