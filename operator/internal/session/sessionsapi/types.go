package sessionsapi

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is that of the API.
var GroupVersion = schema.GroupVersion{Group: "sessions.admitkit.dev", Version: "v1alpha1"}

// groupResource names sessions in errors.
var groupResource = GroupVersion.WithResource(Resource).GroupResource()

const (
	// Resource is that of sessions.
	Resource = "sessions"
	// Log is the subresource with the recording. kube-apiserver lets a subresource of this
	// name take longer than its --request-timeout, a minute by default.
	Log = "log"
)

// State says whether a session goes on.
type State string

// The states.
const (
	// Live is a session whose recorder is connected, or was seconds ago.
	Live State = "Live"
	// Ending is a session that has ended, and whose recording is to be sealed: a short one waits
	// until nobody can contest its ticket any more.
	Ending State = "Ending"
	// Ended is a session whose recording is whole and sealed.
	Ended State = "Ended"
	// Lost is a session whose recorder left without an end.
	Lost State = "Lost"
)

// Session is a recorded session, in the namespace of its Pod. Its name is its ID.
type Session struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Spec   SessionSpec   `json:"spec"`
	Status SessionStatus `json:"status"`
}

// SessionSpec is what the ticket of a session says.
type SessionSpec struct {
	User      string `json:"user"`
	Pod       string `json:"pod"`
	PodUID    string `json:"podUID"`
	Container string `json:"container"`
	// Grant is the access request with which the session ends, if there is one.
	Grant *corev1.TypedLocalObjectReference `json:"grant,omitempty"`
}

// SessionStatus is what became of a session. The recording itself is not verified for it.
type SessionStatus struct {
	State     State       `json:"state"`
	StartTime metav1.Time `json:"startTime"`
	// LastActiveTime is when the user of a live session did something last.
	LastActiveTime *metav1.Time `json:"lastActiveTime,omitempty"`
	EndTime        *metav1.Time `json:"endTime,omitempty"`
	// Bytes are those of the recording.
	Bytes int64 `json:"bytes"`
	// ExitCode is that of a session that has ended.
	ExitCode *int32 `json:"exitCode,omitempty"`
	// Reason says why it ended, unless the command ended by itself.
	Reason string `json:"reason,omitempty"`
	// Notes are what the collectors noticed about its recorder.
	Notes []SessionNote `json:"notes,omitempty"`
}

// SessionNote is what a collector noticed.
type SessionNote struct {
	Kind string      `json:"kind"`
	Time metav1.Time `json:"time"`
	Text string      `json:"text"`
}

// SessionList is a list of sessions, the newest first.
type SessionList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`

	Items []Session `json:"items"`
}

// SessionSearch is what was found in what sessions printed.
type SessionSearch struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`

	Items []SessionHit `json:"items"`
	// Searched is how many recordings were searched whole.
	Searched int `json:"searched"`
	// Incomplete says what was not searched, and why.
	Incomplete string `json:"incomplete,omitempty"`
}

// SessionHit is a line that a session printed.
type SessionHit struct {
	Namespace string `json:"namespace"`
	Session   string `json:"session"`
	User      string `json:"user"`
	Pod       string `json:"pod"`
	// At is how long after its beginning the session had printed the line.
	At metav1.Duration `json:"at"`
	// Line is the line, without escape sequences.
	Line string `json:"line"`
}

// SessionSeal says whether a recording is as it was made.
type SessionSeal struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	// Valid says that it is whole and unchanged. Otherwise Reason says what is wrong.
	Valid  bool   `json:"valid"`
	Reason string `json:"reason,omitempty"`
	// Frames, Bytes and SHA256 are those of a valid recording, as the AuditEvent has them.
	Frames  int64        `json:"frames,omitempty"`
	Bytes   int64        `json:"bytes,omitempty"`
	SHA256  string       `json:"sha256,omitempty"`
	EndTime *metav1.Time `json:"endTime,omitempty"`
}
