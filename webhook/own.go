package webhook

import (
	"bytes"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/admitkit/admitkit/extension"
)

// This file keeps apart what belongs to handlers and what belongs to the library.
// Handlers may change and keep what they get, also after they were cut off, and what
// they return may have methods that panic.

// requestFor returns the Request for a handler. It is the handler's own, in depth:
// the last handler gets the one that was read, all others a copy.
func (p *passage) requestFor(i int) *extension.Request {
	if i < len(p.handlers)-1 {
		return copyRequest(p.object.request)
	}
	request := p.request
	request.Object, request.OldObject = p.object.request.Object, p.object.request.OldObject
	if p.object.applied.Len() > 0 { // else the library has a text of its own
		request.Object.Raw = bytes.Clone(request.Object.Raw)
	}
	return request
}

// requestCopy has room for what a copy of a usual request needs, in one allocation.
type requestCopy struct {
	extension.Request
	requestKind     metav1.GroupVersionKind
	requestResource metav1.GroupVersionResource
	dryRun          bool
	groups          [4]string
}

// copyRequest returns a copy that shares nothing that can be changed.
func copyRequest(from *admissionv1.AdmissionRequest) *extension.Request {
	c := &requestCopy{}
	to := &c.AdmissionRequest
	*to = *from
	if from.RequestKind != nil {
		c.requestKind, to.RequestKind = *from.RequestKind, &c.requestKind
	}
	if from.RequestResource != nil {
		c.requestResource, to.RequestResource = *from.RequestResource, &c.requestResource
	}
	if from.DryRun != nil {
		c.dryRun, to.DryRun = *from.DryRun, &c.dryRun
	}
	if from.UserInfo.Groups != nil {
		to.UserInfo.Groups = append(c.groups[:0:len(c.groups)], from.UserInfo.Groups...)
	}
	to.UserInfo.Extra = maps.Clone(from.UserInfo.Extra)
	for key, values := range to.UserInfo.Extra {
		to.UserInfo.Extra[key] = slices.Clone(values)
	}
	copyRaw(&to.Object, &to.OldObject, &to.Options)
	return &c.Request
}

// copyRaw replaces the JSON of objects by copies, in one allocation.
func copyRaw(objects ...*runtime.RawExtension) {
	size := 0
	for _, object := range objects {
		size += len(object.Raw)
	}
	room := make([]byte, 0, size)
	for _, object := range objects {
		if object.Raw != nil {
			begin := len(room)
			room = append(room, object.Raw...)
			object.Raw = room[begin:len(room):len(room)]
		}
	}
}

// handlerError is the text of an error that a handler returned.
type handlerError struct {
	text  string
	cause error
}

func (e *handlerError) Error() string { return e.text }

// ownError returns the text of a handler's error as an error. It panics if the
// methods of err do.
func ownError(err error) error {
	if v := reflect.ValueOf(err); v.Kind() == reflect.Pointer && v.IsNil() {
		return fmt.Errorf("the error is a nil %T, which is not nil as an error; return nil itself", err)
	}
	return &handlerError{cut(err.Error()), err}
}

// authorsError is a handlerError for the authors of the handler, who can look for the
// error that it returned (errors.Is).
type authorsError struct{ *handlerError }

func (e authorsError) Unwrap() error { return e.cause }

// panicText returns the text of the reason for a panic, which may be of any type.
// Package fmt survives methods that panic; of a value without methods for its text it
// would print the content, which need not end.
func panicText(reason any) string {
	switch reason.(type) {
	case error, fmt.Stringer, string:
		return cut(fmt.Sprint(reason))
	}
	switch reflect.TypeOf(reason).Kind() {
	case reflect.Array, reflect.Chan, reflect.Func, reflect.Interface, reflect.Map, reflect.Pointer, reflect.Slice, reflect.Struct, reflect.UnsafePointer:
		return fmt.Sprintf("a value of type %T", reason)
	}
	return fmt.Sprint(reason)
}

// maxErrorText is the most of an error's text that goes into answers and logs.
const maxErrorText = 8 << 10

// cut returns at most maxErrorText of a text.
func cut(text string) string {
	if len(text) <= maxErrorText {
		return text
	}
	return fmt.Sprintf("%s... (%d bytes more)", strings.ToValidUTF8(text[:maxErrorText], ""), len(text)-maxErrorText)
}
