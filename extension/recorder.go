package extension

import (
	"context"
	"errors"
	"fmt"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Record is something that an extension decided or did, and that somebody may have to
// prove later: that access was granted, or that it ended. It is not for what every
// object does all the time; that is what Events and metrics are for.
type Record struct {
	// ID tells the record from all others, in the whole cluster: a DNS subdomain, such as
	// the UID of the object and the action. A Record with the ID of an earlier one is that
	// one, made again: so make it before what it is about, and again after a failure.
	ID string
	// Action is what happened, in one word, such as granted or ended.
	Action string
	// User is who made it happen. Default: the manager itself.
	User authenticationv1.UserInfo
	// Object is what it happened to: Kind, Namespace, Name and UID.
	Object corev1.ObjectReference
	// Pod is the Pod that it is about, if it is about one: Name and UID.
	Pod corev1.ObjectReference
	// Denied says that it did not happen, because it was not allowed.
	Denied bool
	// Reason is for people: what happened and why, in a sentence.
	Reason string
}

// Validate returns an error that names the field that is wrong.
func (r *Record) Validate() error {
	switch problems := validation.IsDNS1123Subdomain(r.ID); {
	case len(problems) > 0:
		return fmt.Errorf("record: ID %q: %s", r.ID, strings.Join(problems, ", "))
	case len(validation.IsDNS1123Label(r.Action)) > 0:
		return fmt.Errorf("record %s: Action %q: must be a word in lower case, such as granted", r.ID, r.Action)
	case r.Object.Kind == "" || r.Object.Name == "":
		return errors.New("record " + r.ID + ": Object: needs a Kind and a Name")
	}
	return nil
}

// Recorder is implemented by an extension, or a part of one, that keeps the records of
// other extensions; operator/audit does. It runs in every process that answers
// admissions or reconciles, and its rights ([Entitled]) are granted to all of them.
type Recorder interface {
	// Record returns nil when the record is kept, or is sure to be tried. An error means
	// that what it is about must not happen, or not yet.
	Record(ctx context.Context, record Record) error
}
