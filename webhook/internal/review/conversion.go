package review

import (
	"errors"
	"fmt"
	"net/http"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/admitkit/admitkit/internal/wire"
	"github.com/admitkit/admitkit/webhook/internal/failure"
)

// Conversion is what is read of a ConversionReview. The types of
// apiextensions-apiserver are not used: with them come packages of half a megabyte.
type Conversion struct {
	UID     string
	Desired string
	// Objects are parts of the body, not copies.
	Objects [][]byte
}

// MaxObjects is the most objects in one ConversionReview.
const MaxObjects = 10_000

const conversionVersion = "apiextensions.k8s.io/v1"

// The fields that are read of a ConversionReview.
var conversionFields = newFields("uid", "desiredAPIVersion", "objects")

// ParseConversion returns the request in a ConversionReview. Its objects are valid JSON.
func ParseConversion(body []byte) (*Conversion, error) {
	if !utf8.Valid(body) {
		return nil, failure.New(http.StatusBadRequest, "the body is not valid UTF-8")
	}
	var review metav1.TypeMeta
	var request *Conversion
	e := &envelope{Scanner: wire.NewScanner(body), into: &envelopeContent{}}
	err := e.object(reviewFields, func(field string) error {
		switch {
		case field == "kind":
			return readShort(e, &review.Kind)
		case field == "apiVersion":
			return readShort(e, &review.APIVersion)
		case e.Peek() == 'n':
			return e.Skip()
		}
		request = &Conversion{}
		return request.read(e)
	})
	if err == nil {
		err = e.End()
	}
	switch {
	case errors.Is(err, errTooManyObjects) || errors.Is(err, errTooLong) || errors.Is(err, wire.ErrTooDeep):
		return nil, failure.New(http.StatusRequestEntityTooLarge, "decoding the ConversionReview: %w", err)
	case err != nil:
		return nil, failure.New(http.StatusBadRequest, "decoding the ConversionReview: %w", err)
	case review.APIVersion != conversionVersion || review.Kind != "ConversionReview":
		return nil, failure.New(http.StatusBadRequest, "got apiVersion %q, kind %q; this webhook speaks %s ConversionReview only: list v1 alone in conversionReviewVersions",
			failure.Cut(review.APIVersion), failure.Cut(review.Kind), conversionVersion)
	case request == nil || request.UID == "":
		return nil, failure.New(http.StatusBadRequest, "the ConversionReview has no request with a uid")
	}
	return request, nil
}

var errTooManyObjects = fmt.Errorf("it has more than %d objects: read fewer at a time (limit)", MaxObjects)

func (r *Conversion) read(e *envelope) error {
	return e.object(conversionFields, func(field string) error {
		switch field {
		case "uid":
			return readShort(e, &r.UID)
		case "desiredAPIVersion":
			return readShort(e, &r.Desired)
		}
		item, err := e.Open(']')
		for ; item && err == nil; item, err = e.More(']') {
			if len(r.Objects) == MaxObjects {
				return errTooManyObjects
			}
			object, err := e.Value()
			if err != nil {
				return err
			}
			r.Objects = append(r.Objects, object)
		}
		return err
	})
}

// maxShort bounds the strings of a review besides its objects. They are copied before
// anything is known of what the review takes; API servers write less than 400 bytes.
const maxShort = 1 << 10

var errTooLong = fmt.Errorf("the string has more than %d bytes (limit)", maxShort)

// readShort is readString for what is short.
func readShort(e *envelope, into *string) error {
	if e.Peek() != '"' {
		return readString(e, into)
	}
	value, err := e.Quoted()
	if err != nil {
		return err
	}
	if value.Size() > maxShort {
		return errTooLong
	}
	content, err := e.Content(value)
	*into = e.keep(content)
	return err
}

// WriteConversion answers a ConversionReview with its objects, or with the failure that err
// says.
func WriteConversion(w http.ResponseWriter, uid string, objects [][]byte, err error) error {
	return write(w, http.StatusOK, func(dst []byte) ([]byte, error) { return appendConversion(dst, uid, objects, err) })
}

func appendConversion(dst []byte, uid string, objects [][]byte, failed error) ([]byte, error) {
	dst = append(dst, `{"kind":"ConversionReview","apiVersion":"`+conversionVersion+`","response":{"uid":`...)
	dst, err := jsontext.AppendQuote(dst, uid)
	if err != nil {
		return nil, err
	}
	dst = append(dst, `,"convertedObjects":[`...)
	result := metav1.Status{Status: metav1.StatusSuccess}
	if failed != nil {
		result = metav1.Status{Status: metav1.StatusFailure, Reason: metav1.StatusReasonInternalError, Code: http.StatusInternalServerError, Message: failed.Error()}
	} else {
		for i, object := range objects {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = append(dst, object...)
		}
	}
	if dst, err = appendJSON(append(dst, `],"result":`...), &result); err != nil {
		return nil, err
	}
	return append(dst, "}}"...), nil
}
