package session

import (
	"context"
	"fmt"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/operator/internal/session/protocol"
	"github.com/admitkit/admitkit/operator/session/internal/recorded"
)

// readTime is how long reading a Pod may take.
const readTime = 5 * time.Second

// wrapper puts the recorder before the commands of users.
type wrapper struct{ *shared }

var (
	_ extension.Mutator[*corev1.PodExecOptions] = (*wrapper)(nil)
	_ extension.Unwrapper                       = (*wrapper)(nil)
	_ extension.Hosted                          = (*wrapper)(nil)
)

func (w *wrapper) scope() extension.Scope {
	never := admissionregistrationv1.NeverReinvocationPolicy
	scope := w.options.scope("sessions", "pods/exec")
	scope.ReinvocationPolicy = &never
	return scope
}

func (o *Options) scope(name string, resources ...string) extension.Scope {
	failurePolicy := admissionregistrationv1.Fail
	if o.Unrecorded == Open {
		failurePolicy = admissionregistrationv1.Ignore
	}
	return extension.Scope{Name: name, Rules: extension.Connect(resources...), NamespaceSelector: o.NamespaceSelector, FailurePolicy: &failurePolicy, Modes: []extension.Mode{extension.Enforce}}
}

// Mutate wraps the command where the container has the recorder. What cannot be recorded is
// left to the guard.
func (w *wrapper) Mutate(ctx context.Context, options *corev1.PodExecOptions, req *extension.Request) error {
	if recorded.NamesRecorder(options.Command) {
		return extension.Denyf("%s records sessions: it is started by a webhook, and by nobody else", protocol.Program)
	}
	pod, err := w.pod(ctx, req)
	if err != nil || pod == nil {
		return err
	}
	container := recorded.ContainerOf(pod, options.Container)
	if !recorded.HasRecorder(pod, container) || len(options.Command) == 0 {
		return nil
	}
	ticket, text, err := w.sign(ctx, pod, container, options.Command, protocol.Life, req)
	if err != nil {
		return err
	}
	req.AddAuditAnnotation("session", ticket.ID)
	options.Container, options.Command = container, protocol.Wrap(text, options.Command)
	return nil
}

// sign makes the ticket for a command.
func (s *shared) sign(ctx context.Context, pod *corev1.Pod, container string, command []string, life time.Duration, req *extension.Request) (*protocol.Ticket, string, error) {
	key, err := s.options.key()
	if err != nil {
		return nil, "", err
	}
	terms, err := s.terms(ctx)
	if err != nil {
		return nil, "", err
	}
	terms.Public = req.SubResource == ephemeral
	ticket := &protocol.Ticket{
		ID: protocol.NewID(), Namespace: pod.Namespace, Pod: pod.Name, PodUID: string(pod.UID), Container: container,
		User: req.User().Username, Command: protocol.Sum(command), Shown: protocol.SumShown(command), Expires: s.clock.Now().Add(life).Unix(), Terms: terms,
	}
	if err := s.grants.bind(ctx, ticket, req.User()); err != nil {
		return nil, "", err
	}
	text, err := key.Sign(ticket)
	return ticket, text, err
}

// Unwrap implements [extension.Unwrapper].
func (w *wrapper) Unwrap(options *corev1.PodExecOptions, req *extension.Request) *extension.Unwrapped {
	ticket, command, wrapped, err := w.verify(options.Command, options.Container, req)
	if !wrapped || err != nil {
		return nil
	}
	return &extension.Unwrapped{Command: command, Session: ticket.ID}
}

// pod returns the Pod of a connection, or nil if there is none: the API server says so.
func (s *shared) pod(ctx context.Context, req *extension.Request) (*corev1.Pod, error) {
	ctx, cancel := context.WithTimeout(ctx, readTime)
	defer cancel()
	pod, err := s.core.Pods(req.Namespace).Get(ctx, req.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading Pod %s/%s: %w", req.Namespace, req.Name, err)
	}
	return pod, nil
}
