package webhook

import (
	"bytes"
	"maps"
	"slices"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/internal/host"
)

// This file keeps apart what belongs to handlers and what belongs to the library.
// Handlers may change and keep what they get, also after they were cut off, and what
// they return may have methods that panic.

// requestFor returns the Request for a handler. It is the handler's own, in depth:
// the last handler gets the one that was read, all others a copy.
func (p *passage) requestFor(i int) *extension.Request {
	if i < len(p.handlers)-1 {
		return p.withMode(copyRequest(p.object.request))
	}
	request := p.withMode(p.request)
	request.Object, request.OldObject = p.object.request.Object, p.object.request.OldObject
	if p.object.applied.Len() > 0 { // else the library has a text of its own
		request.Object.Raw = bytes.Clone(request.Object.Raw)
	}
	return request
}

// withMode sets the mode of a request that is not enforced.
func (c *chain) withMode(request *extension.Request) *extension.Request {
	if c.observes() {
		host.SetMode(request, c.mode)
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
