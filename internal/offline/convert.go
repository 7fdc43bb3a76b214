package offline

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Convert converts the JSON of an object to another version by a conversion webhook, with
// the ConversionReview that an API server sends.
func Convert(handler http.Handler, object json.RawMessage, to schema.GroupVersion) (json.RawMessage, error) {
	body, err := json.Marshal(map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview",
		"request": map[string]any{"uid": "offline", "desiredAPIVersion": to.String(), "objects": []json.RawMessage{object}},
	})
	if err != nil {
		return nil, err
	}
	request := httptest.NewRequest(http.MethodPost, "/", bytes.NewReader(body))
	request.Header.Set("Content-Type", "application/json")
	answer := httptest.NewRecorder()
	handler.ServeHTTP(answer, request)
	var got struct {
		Response struct {
			ConvertedObjects []json.RawMessage `json:"convertedObjects"`
			Result           metav1.Status     `json:"result"`
		} `json:"response"`
		Message string `json:"message"`
	}
	if err := json.Unmarshal(answer.Body.Bytes(), &got); err != nil {
		return nil, err
	}
	if len(got.Response.ConvertedObjects) != 1 {
		return nil, errors.New(got.Response.Result.Message + got.Message)
	}
	return got.Response.ConvertedObjects[0], nil
}

// seenBy returns the request with its current object as a webhook gets it, and whether an
// API server calls the webhook. It converts an object whose version the rules do not name,
// if one of [Options].Converters can.
func (e *Engine) seenBy(h *hook, req *Request, out *Outcome) (*Request, bool, error) {
	current := *req
	current.Object = out.Object
	matches, err := current.Matches(h.Scope)
	var unknown *Unknown
	if err != nil && !errors.As(err, &unknown) {
		return nil, false, fmt.Errorf("webhook %s: %w", h.Name, err)
	}
	handler := e.conversions[req.Resource.GroupResource().String()]
	if unknown == nil || unknown.Fact != TheVersion || handler == nil {
		return &current, matches, err
	}
	for _, rule := range h.Scope.Rules {
		for _, version := range rule.APIVersions {
			converted := current.asVersion(version)
			if converted.ruled(h.Scope) != yes {
				continue
			}
			if err := converted.convert(handler); err != nil {
				return nil, false, err
			}
			matches, err := converted.Matches(h.Scope)
			return converted, matches, err
		}
	}
	return &current, false, err
}

// asVersion returns the request for an object of another version, which is not yet converted.
func (r *Request) asVersion(version string) *Request {
	converted := *r
	converted.Kind.Version, converted.Resource.Version = version, version
	if converted.asked == nil {
		converted.asked = r
	}
	return &converted
}

// convert converts the objects of the request to its version.
func (r *Request) convert(handler http.Handler) (err error) {
	for _, object := range []*[]byte{&r.Object, &r.OldObject} {
		if len(*object) == 0 {
			continue
		}
		var converted json.RawMessage
		if converted, err = Convert(handler, *object, r.Kind.GroupVersion()); err != nil {
			return fmt.Errorf("converting %s %s to %s: %w", r.Kind.Kind, r.Name, r.Kind.Version, err)
		}
		*object = converted
	}
	return nil
}

// taken returns the object that a webhook has changed in the version of the request.
func (e *Engine) taken(req, seen *Request, object []byte) ([]byte, error) {
	if seen.Kind == req.Kind {
		return object, nil
	}
	back := seen.asVersion(req.Kind.Version)
	back.Object, back.OldObject = object, nil
	err := back.convert(e.conversions[req.Resource.GroupResource().String()])
	return back.Object, err
}
