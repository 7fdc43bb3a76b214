package session

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/internal/session/collector"
	"github.com/admitkit/admitkit/operator/internal/session/protocol"
	"github.com/admitkit/admitkit/operator/internal/truncate"
)

// report writes into the AuditEvent of an exec where its recording is. The session's ID is
// the name of the AuditEvent.
func (s *shared) report(ctx context.Context, ticket *protocol.Ticket, seal *collector.Seal, location string) error {
	if !s.options.AuditObjects {
		return nil
	}
	return s.patch(ctx, ticket, v1alpha1.AuditSession{
		Location: location, EndTime: metav1.NewMicroTime(seal.At), Duration: metav1.Duration{Duration: seal.Length},
		Frames: int64(seal.Frames), Bytes: seal.Bytes, SHA256: seal.SHA256, //nolint:gosec // frames are numbered one by one
		ExitCode: int32(seal.End.Code), Reason: truncate.Text(seal.End.Reason, maxText), //nolint:gosec // a byte, or a signal
		KilledProcesses: int32(seal.End.Killed), LeftProcesses: int32(seal.End.Left), //nolint:gosec // processes of one session
		Contested: seal.Contested(),
	})
}

// reportContested puts on record that two have presented the ticket of a session: as a record of its
// own, and in the AuditEvent of the exec if that says already where the recording is.
func (s *shared) reportContested(ctx context.Context, ticket *protocol.Ticket, note *collector.Note) error {
	pod := podOf(ticket)
	err := s.mgr.GetRecorder().Record(ctx, extension.Record{
		ID: ticket.ID + "." + note.Kind, Action: note.Kind, User: authenticationv1.UserInfo{Username: ticket.User}, Object: pod, Pod: pod, Reason: note.Text,
	})
	if s.options.AuditObjects {
		patched := s.patch(ctx, ticket, map[string]any{"contested": true})
		if !apierrors.IsInvalid(patched) { // else the seal is still to come, and has it
			err = errors.Join(err, patched)
		}
	}
	return err
}

// notBegun is the exit code of a recorder whose session may not begin.
const notBegun = 125

// neverBegan says what is known of a session whose ticket nobody has redeemed.
const neverBegan = "no recorder came for it. Either the command never started, because the exec was refused or has failed after it was allowed here, or the container did not run; or something ran in the recorder's place"

// reportNeverBegan writes into the AuditEvent of an exec that there is no recording.
func (s *shared) reportNeverBegan(ctx context.Context, ticket *protocol.Ticket) error {
	if !s.options.AuditObjects {
		return nil
	}
	return s.patch(ctx, ticket, v1alpha1.AuditSession{EndTime: metav1.NewMicroTime(s.clock.Now()), ExitCode: notBegun, Reason: v1alpha1.ReasonNeverBegan + ": " + neverBegan})
}

// patch writes the status of an AuditEvent.
func (s *shared) patch(ctx context.Context, ticket *protocol.Ticket, to any) error {
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"session": to}})
	if err != nil {
		return err
	}
	event := &v1alpha1.AuditEvent{ObjectMeta: metav1.ObjectMeta{Name: ticket.ID}}
	if err := s.client.Status().Patch(ctx, event, client.RawPatch(types.MergePatchType, patch)); err != nil {
		return fmt.Errorf("AuditEvent %s: %w", ticket.ID, err)
	}
	return nil
}

// recordUnrecorded has extensions that keep records, such as audit, keep one that says that a
// session is not recorded. An Event does not last.
func (s *shared) recordUnrecorded(ctx context.Context, req *extension.Request, of corev1.ObjectReference, why string) error {
	record := extension.Record{ID: string(req.UID) + ".unrecorded", Action: "unrecorded", User: req.User(), Object: of, Reason: way(req) + " is not recorded: " + why}
	if of.Kind == "Pod" {
		record.Pod = of
	}
	return s.mgr.GetRecorder().Record(ctx, record)
}

// way returns the resource of a connection, such as pods/exec.
func way(req *extension.Request) string { return req.Resource.Resource + "/" + req.SubResource }

// reportUnrecorded says by an Event that a session is not recorded. Events about what has no
// namespace would be in the namespace default, which is not the extension's to write to.
func (s *shared) reportUnrecorded(ctx context.Context, req *extension.Request, of corev1.ObjectReference, why string) error {
	if of.Namespace == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, readTime)
	defer cancel()
	return s.warn(ctx, of, string(req.UID), "SessionUnrecorded", fmt.Sprintf("A session of %s is not recorded: %s", req.User().Username, why))
}

// warnOf says something about a session by an Event on its Pod, once for each kind: whoever
// stops and continues a recorder makes many notes. With Closed there is no right to create
// Events.
func (s *shared) warnOf(ctx context.Context, ticket *protocol.Ticket, kind, reason, text string) error {
	if s.options.Unrecorded != Open {
		return nil
	}
	err := s.warn(ctx, podOf(ticket), ticket.ID+"."+kind, reason, fmt.Sprintf("Session %s of %s: %s", ticket.ID, ticket.User, text))
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// podOf is where a session is.
func podOf(ticket *protocol.Ticket) corev1.ObjectReference {
	return corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: ticket.Namespace, Name: ticket.Pod, UID: types.UID(ticket.PodUID)}
}

// maxText is how long the note of an Event, and the reason of an end, may be.
const maxText = 1024

// warn creates an Event about a Pod, or what leads to one.
func (s *shared) warn(ctx context.Context, about corev1.ObjectReference, name, reason, note string) error {
	event := &eventsv1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: about.Namespace, Name: "session." + name}, EventTime: metav1.NewMicroTime(s.clock.Now()),
		ReportingController: "admitkit.dev/session", ReportingInstance: s.instance, Action: "Connect", Reason: reason,
		Regarding: about, Note: truncate.Text(note, maxText), Type: corev1.EventTypeWarning,
	}
	_, err := s.events.Events(about.Namespace).Create(ctx, event, metav1.CreateOptions{})
	return err
}
