package sessionsapi

import (
	"cmp"
	"fmt"
	"net/http"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/duration"
)

// object returns a session as an object.
func (s *Server) object(e *entry) *Session {
	state, active := s.index.state(e)
	session := &Session{
		TypeMeta: metav1.TypeMeta{APIVersion: GroupVersion.String(), Kind: "Session"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: e.ticket.Namespace, Name: e.id(), UID: uidOf(e.id()), CreationTimestamp: metav1.NewTime(e.began.Truncate(time.Second)),
		},
		Spec:   SessionSpec{User: e.ticket.User, Pod: e.ticket.Pod, PodUID: e.ticket.PodUID, Container: e.ticket.Container},
		Status: SessionStatus{State: state, StartTime: metav1.NewTime(e.began), Bytes: e.summary.Stored},
	}
	if grant := e.ticket.Grant; grant != nil {
		session.Spec.Grant = &corev1.TypedLocalObjectReference{APIGroup: new("admitkit.dev"), Kind: grant.Kind, Name: grant.Name}
	}
	status := &session.Status
	if !active.IsZero() {
		status.LastActiveTime = new(metav1.NewTime(active))
	}
	if seal := e.summary.Seal; seal != nil {
		status.EndTime, status.Bytes = new(metav1.NewTime(seal.At)), seal.Bytes
		status.ExitCode, status.Reason = new(int32(seal.End.Code)), seal.End.Reason //nolint:gosec // a byte, or a signal
	}
	for _, note := range e.summary.Notes {
		status.Notes = append(status.Notes, SessionNote{note.Kind, metav1.NewTime(note.At), note.Text})
	}
	return session
}

// uidOf returns the ID of a session in the form of a UID.
func uidOf(id string) types.UID {
	return types.UID(strings.Join([]string{id[:8], id[8:12], id[12:16], id[16:20], id[20:]}, "-"))
}

// fieldsOf are those by which sessions are selected.
func fieldsOf(session *Session) fields.Set {
	return fields.Set{
		"metadata.name": session.Name, "metadata.namespace": session.Namespace,
		"spec.user": session.Spec.User, "spec.pod": session.Spec.Pod, "spec.podUID": session.Spec.PodUID, "status.state": string(session.Status.State),
	}
}

// form is how a client wants objects.
type form int

const (
	asObject form = iota
	asTable
)

// formOf returns the first form of an Accept header that there is. ok is false if there is
// none.
func formOf(accept string) (wanted form, ok bool) {
	if strings.TrimSpace(accept) == "" {
		return asObject, true
	}
	for media := range strings.SplitSeq(accept, ",") {
		kind, parameters, _ := strings.Cut(strings.TrimSpace(media), ";")
		if kind != "application/json" && kind != "application/*" && kind != "*/*" {
			continue
		}
		is := map[string]string{}
		for parameter := range strings.SplitSeq(parameters, ";") {
			name, value, _ := strings.Cut(strings.TrimSpace(parameter), "=")
			is[name] = value
		}
		switch {
		case is["as"] == "":
			return asObject, true
		case is["as"] == "Table" && is["g"] == metav1.GroupName && is["v"] == "v1":
			return asTable, true
		}
	}
	return asObject, false
}

var columns = []metav1.TableColumnDefinition{
	{Name: "Name", Type: "string", Format: "name", Description: "ID of the session"},
	{Name: "User", Type: "string", Description: "Who it is or was"},
	{Name: "Pod", Type: "string", Description: "Where"},
	{Name: "Container", Type: "string", Priority: 1, Description: "Where in the Pod"},
	{Name: "State", Type: "string", Description: "Live, Ended or Lost"},
	{Name: "Size", Type: "string", Description: "Bytes of the recording"},
	{Name: "Age", Type: "string", Description: "How long ago it began"},
	{Name: "Exit", Type: "string", Priority: 1, Description: "Exit code"},
	{Name: "Reason", Type: "string", Priority: 1, Description: "Why it ended"},
}

// table returns sessions as `kubectl get` prints them.
func table(meta metav1.ListMeta, sessions []Session, now time.Time) *metav1.Table {
	t := &metav1.Table{
		TypeMeta: metav1.TypeMeta{APIVersion: metav1.SchemeGroupVersion.String(), Kind: "Table"}, ListMeta: meta, ColumnDefinitions: columns,
		Rows: make([]metav1.TableRow, 0, len(sessions)),
	}
	for _, session := range sessions {
		exit := ""
		if code := session.Status.ExitCode; code != nil {
			exit = fmt.Sprint(*code)
		}
		t.Rows = append(t.Rows, metav1.TableRow{
			Cells: []any{
				session.Name, session.Spec.User, session.Spec.Pod, session.Spec.Container, string(session.Status.State), sizeOf(session.Status.Bytes),
				duration.HumanDuration(now.Sub(session.CreationTimestamp.Time)), cmp.Or(exit, "<none>"), cmp.Or(session.Status.Reason, "<none>"),
			},
			Object: runtime.RawExtension{Object: &metav1.PartialObjectMetadata{
				TypeMeta: metav1.TypeMeta{APIVersion: metav1.SchemeGroupVersion.String(), Kind: "PartialObjectMetadata"}, ObjectMeta: session.ObjectMeta,
			}},
		})
	}
	return t
}

// sizeOf writes a number of bytes for people.
func sizeOf(bytes int64) string {
	switch {
	case bytes < 1<<10:
		return fmt.Sprintf("%d B", bytes)
	case bytes < 1<<20:
		return fmt.Sprintf("%.1f KiB", float64(bytes)/(1<<10))
	}
	return fmt.Sprintf("%.1f MiB", float64(bytes)/(1<<20))
}

// discovery returns what the API server asks of a group, nil if there is nothing at the path.
// Sessions can be deleted and watched, and that is not said here: who is told so deletes all
// objects of a namespace with it (kube-controller-manager), ending the sessions, and waits
// for ever until they are gone.
func discovery(r *http.Request) any {
	version := metav1.GroupVersionForDiscovery{GroupVersion: GroupVersion.String(), Version: GroupVersion.Version}
	group := metav1.APIGroup{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "APIGroup"}, Name: GroupVersion.Group,
		Versions: []metav1.GroupVersionForDiscovery{version}, PreferredVersion: version,
	}
	switch strings.TrimSuffix(r.URL.Path, "/") {
	case "/apis":
		return &metav1.APIGroupList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "APIGroupList"}, Groups: []metav1.APIGroup{group}}
	case "/apis/" + GroupVersion.Group:
		return &group
	case "/apis/" + GroupVersion.String():
		return &metav1.APIResourceList{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "APIResourceList"}, GroupVersion: GroupVersion.String(),
			APIResources: []metav1.APIResource{
				{Name: Resource, SingularName: "session", Namespaced: true, Kind: "Session", Verbs: metav1.Verbs{"get", "list"}},
				{Name: Resource + "/" + Log, Namespaced: true, Kind: "Session", Verbs: metav1.Verbs{"get"}},
			},
		}
	}
	return nil
}
