package review

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"unicode/utf8"

	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/internal/wire"
	"github.com/admitkit/admitkit/webhook/internal/failure"
)

// envelope reads an AdmissionReview in one pass. Each field of its request gets the
// value that encoding/json gives it, with these differences:
//
//   - names are case-sensitive, as for the API machinery;
//   - object, oldObject and options are parts of the body, not copies;
//   - a duplicate field is an error. Parsers differ in which of the two they use,
//     and the object that is judged must be the one that any other reader of the
//     review, such as an auditing proxy, sees. In the three objects the last
//     duplicate counts, as for the API server;
//   - a response is skipped, whatever it is.
//
// docs/adr/0004-decoder.md says what reading it apart from package wire's Decode
// saves.
type envelope struct {
	wire.Scanner
	// strings holds the contents of all strings in one allocation: a handler that
	// keeps a user's name does not keep the whole body.
	strings strings.Builder
	// lists holds the items of all lists of strings.
	lists []string
	into  *envelopeContent
	// subject is the object that the request is about.
	subject wire.Text
	// beginning is set to read what comes before the objects.
	beginning bool
}

// envelopeContent has room for the usual content of an envelope, in one allocation.
type envelopeContent struct {
	request         extension.Request
	requestKind     metav1.GroupVersionKind
	requestResource metav1.GroupVersionResource
	dryRun          bool
	lists           [6]string
}

// sizeOfStrings is enough for most requests. Others take another allocation.
const sizeOfStrings = 352

// parseEnvelope returns the type of a review, its request, nil if it has none, and
// the object that the request is about.
func parseEnvelope(body []byte) (metav1.TypeMeta, *extension.Request, wire.Text, error) {
	into := &envelopeContent{}
	e := envelope{Scanner: wire.NewScanner(body), lists: into.lists[:0], into: into}
	e.strings.Grow(min(len(body), sizeOfStrings))
	review, request, err := e.review()
	if err != nil {
		return review, nil, wire.Text{}, err
	}
	return review, request, e.subject, e.End()
}

// The fields that are read. Duplicates of other fields go unnoticed.
var (
	reviewFields  = newFields("kind", "apiVersion", "request")
	requestFields = newFields(
		"uid", "kind", "resource", "subResource", "requestKind", "requestResource", "requestSubResource",
		"name", "namespace", "operation", "userInfo", "object", "oldObject", "dryRun", "options",
	)
	kindFields     = newFields("group", "version", "kind")
	resourceFields = newFields("group", "version", "resource")
	userFields     = newFields("username", "uid", "groups", "extra")
)

// fields are the fields of an object, in the order in which API servers write
// them.
type fields struct {
	list  []string
	names *wire.Names
}

func newFields(list ...string) fields { return fields{list, wire.NewNames(list...)} }

func (e *envelope) review() (review metav1.TypeMeta, request *extension.Request, err error) {
	err = e.object(reviewFields, func(field string) error {
		switch field {
		case "kind":
			return readString(e, &review.Kind)
		case "apiVersion":
			return readString(e, &review.APIVersion)
		default:
			if e.Peek() == 'n' {
				return e.Skip()
			}
			request = &e.into.request
			return e.request(&request.AdmissionRequest)
		}
	})
	return review, request, err
}

func (e *envelope) request(into *admissionv1.AdmissionRequest) error {
	// The requested kind and resource are usually those of the object.
	var kind, resource []byte
	return e.object(requestFields, func(field string) (err error) {
		switch field {
		case "uid":
			return readString(e, &into.UID)
		case "kind":
			kind, err = e.Text(func() error { return e.kind(&into.Kind) })
			return err
		case "resource":
			resource, err = e.Text(func() error { return e.resource(&into.Resource) })
			return err
		case "subResource":
			return readString(e, &into.SubResource)
		case "requestKind":
			if e.Again(kind) {
				e.into.requestKind, into.RequestKind = into.Kind, &e.into.requestKind
				return nil
			}
			return readPointer(e, &into.RequestKind, &e.into.requestKind, e.kind)
		case "requestResource":
			if e.Again(resource) {
				e.into.requestResource, into.RequestResource = into.Resource, &e.into.requestResource
				return nil
			}
			return readPointer(e, &into.RequestResource, &e.into.requestResource, e.resource)
		case "requestSubResource":
			return readString(e, &into.RequestSubResource)
		case "name":
			return readString(e, &into.Name)
		case "namespace":
			return readString(e, &into.Namespace)
		case "operation":
			return readString(e, &into.Operation)
		case "userInfo":
			return e.user(&into.UserInfo)
		case "object":
			return e.about(&into.Object)
		case "oldObject":
			if into.Object.Raw == nil { // it is being deleted
				return e.about(&into.OldObject)
			}
			return e.raw(&into.OldObject)
		case "dryRun":
			return readPointer(e, &into.DryRun, &e.into.dryRun, e.boolean)
		default:
			return e.raw(&into.Options)
		}
	})
}

func (e *envelope) kind(into *metav1.GroupVersionKind) error {
	return e.object(kindFields, func(field string) error {
		switch field {
		case "group":
			return readString(e, &into.Group)
		case "version":
			return readString(e, &into.Version)
		default:
			return readString(e, &into.Kind)
		}
	})
}

func (e *envelope) resource(into *metav1.GroupVersionResource) error {
	return e.object(resourceFields, func(field string) error {
		switch field {
		case "group":
			return readString(e, &into.Group)
		case "version":
			return readString(e, &into.Version)
		default:
			return readString(e, &into.Resource)
		}
	})
}

func (e *envelope) user(into *authenticationv1.UserInfo) error {
	return e.object(userFields, func(field string) error {
		switch field {
		case "username":
			return readString(e, &into.Username)
		case "uid":
			return readString(e, &into.UID)
		case "groups":
			return readStrings(e, &into.Groups)
		default:
			return e.extra(&into.Extra)
		}
	})
}

func (e *envelope) extra(into *map[string]authenticationv1.ExtraValue) error {
	if e.Peek() == 'n' {
		return e.Skip()
	}
	extra := map[string]authenticationv1.ExtraValue{}
	*into = extra
	if e.Peek() != '{' {
		return e.Unexpected("an object")
	}
	for member, err := e.Open('}'); ; member, err = e.More('}') {
		if err != nil || !member {
			return err
		}
		name, err := e.Key()
		if err != nil {
			return err
		}
		content, err := e.Content(name)
		if err != nil {
			return err
		}
		if len(extra) == maxListed {
			return errTooMany
		}
		key := e.keep(content)
		if _, found := extra[key]; found {
			return duplicate(key)
		}
		var value authenticationv1.ExtraValue
		if err := readStrings(e, &value); err != nil {
			return err
		}
		extra[key] = value
	}
}

// ParseBeginning returns the request of a review whose body was cut off, without
// objects. API servers write them behind everything that says what the request is about.
// If the beginning ends within the user, who may be large too, the rest of the user is
// missing.
func ParseBeginning(body []byte) (*extension.Request, error) {
	into := &envelopeContent{}
	e := envelope{Scanner: wire.NewScanner(body), lists: into.lists[:0], into: into, beginning: true}
	review, request, err := e.review()
	switch {
	case request == nil || request.UID == "" || request.Operation == "":
		return nil, failure.New(http.StatusBadRequest, "its beginning is not that of an AdmissionReview: %w", err)
	case review.APIVersion != apiVersion || review.Kind != "AdmissionReview" || !utf8.ValidString(e.strings.String()):
		return nil, failure.New(http.StatusBadRequest, "its beginning is not that of an AdmissionReview of %s", apiVersion)
	}
	return request, nil
}

// errBeginning ends the reading of a beginning.
var errBeginning = errors.New("an object begins")

// raw takes the next value unchanged. It checks that the value is JSON, once for all
// handlers.
func (e *envelope) raw(into *runtime.RawExtension) error {
	if e.Peek() == 'n' {
		return e.Skip()
	}
	if e.beginning {
		return errBeginning
	}
	value, err := e.Value()
	into.Raw = value
	return err
}

// about is raw for the object that the request is about.
func (e *envelope) about(into *runtime.RawExtension) error {
	if e.Peek() == 'n' {
		return e.Skip()
	}
	if e.beginning {
		return errBeginning
	}
	value, err := e.Checked()
	e.subject, into.Raw = value, value.Raw
	return err
}

func (e *envelope) boolean(into *bool) error {
	*into = e.Peek() == 't'
	if c := e.Peek(); c != 't' && c != 'f' {
		return e.Unexpected("true or false")
	}
	return e.Skip()
}

// object reads the members of an object that are among the fields, each at most
// once, and skips others. null counts as an object without members.
func (e *envelope) object(fields fields, read func(field string) error) error {
	if e.Peek() == 'n' {
		return e.Skip()
	}
	if e.Peek() != '{' {
		return e.Unexpected("an object")
	}
	var seen uint
	next := 0
	for member, err := e.Open('}'); ; member, err = e.More('}') {
		if err != nil || !member {
			return err
		}
		i, err := e.Name(fields.names, next)
		if err != nil {
			return err
		}
		if i < 0 {
			if err := e.Skip(); err != nil {
				return err
			}
			continue
		}
		if seen&(1<<i) != 0 {
			return duplicate(fields.list[i])
		}
		seen |= 1 << i
		next = i + 1
		if err := read(fields.list[i]); err != nil {
			return fmt.Errorf("%s: %w", fields.list[i], err)
		}
	}
}

// keep copies a string out of the body. Strings from the builder stay valid when it
// grows.
func (e *envelope) keep(content []byte) string {
	start := e.strings.Len()
	e.strings.Write(content)
	return e.strings.String()[start:]
}

// readString reads a string; null leaves it unchanged.
func readString[T ~string](e *envelope, into *T) error {
	switch e.Peek() {
	case 'n':
		return e.Skip()
	case '"':
		value, err := e.Quoted()
		if err != nil {
			return err
		}
		content, err := e.Content(value)
		*into = T(e.keep(content))
		return err
	default:
		return e.Unexpected("a string")
	}
}

// readStrings reads a list of strings. An empty list is not nil.
func readStrings[T ~[]string](e *envelope, into *T) error {
	switch e.Peek() {
	case 'n':
		return e.Skip()
	case '[':
		start := len(e.lists)
		for item, err := e.Open(']'); ; item, err = e.More(']') {
			if err != nil || !item {
				*into = T(e.lists[start:len(e.lists):len(e.lists)])
				return err
			}
			var content string
			if err := readString(e, &content); err != nil {
				return err
			}
			if len(e.lists) == maxListed {
				return errTooMany
			}
			e.lists = append(e.lists, content)
		}
	default:
		return e.Unexpected("a list of strings")
	}
}

// readPointer reads a value into at, unless it is null.
func readPointer[T any](e *envelope, into **T, at *T, read func(*T) error) error {
	if e.Peek() == 'n' {
		return e.Skip()
	}
	*into = at
	return read(at)
}

// maxListed is the most groups and extra fields of a user that are read. Unlike the
// objects they are read before anything is known of what a request takes.
const maxListed = 10_000

var errTooMany = fmt.Errorf("more than %d entries", maxListed)

// duplicate returns the error of a duplicate field.
func duplicate(field string) error {
	return errors.New("duplicate field " + field)
}
