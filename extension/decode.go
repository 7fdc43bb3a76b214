package extension

import (
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	jsonv1 "github.com/go-json-experiment/json/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kjson "sigs.k8s.io/json"
)

// Decode decodes the JSON of one object into a Go type, as the API machinery
// does: field names are case-sensitive, integers keep their 64 bits, unknown
// fields are passed over, of duplicate ones the last counts, invalid UTF-8 is
// replaced. Nothing in the object aliases raw afterwards.
//
// Into a *metav1.PartialObjectMetadata only the metadata is decoded, and the
// syntax of the rest is not checked.
func Decode(raw []byte, into runtime.Object) error {
	switch into := into.(type) {
	case runtime.Unstructured:
		var content map[string]any
		if err := kjson.UnmarshalCaseSensitivePreserveInts(raw, &content); err != nil {
			return err
		}
		into.SetUnstructuredContent(content)
		return nil
	case *metav1.PartialObjectMetadata:
		return decodeMetadata(raw, into)
	}
	return json.Unmarshal(raw, into, asAPIMachinery)
}

// asAPIMachinery makes the decoder do what sigs.k8s.io/json does, which is what
// the API machinery decodes with: encoding/json, but with case-sensitive names
// and with integers as int64 where the Go type is any.
var asAPIMachinery = json.JoinOptions(
	jsonv1.DefaultOptionsV1(),
	json.MatchCaseInsensitiveNames(false),
	json.WithUnmarshalers(json.UnmarshalFromFunc(decodeAny)),
)

// decodeAny decodes a value whose type is any. Only CRDs have such fields.
func decodeAny(decoder *jsontext.Decoder, into *any) error {
	value, err := decoder.ReadValue()
	if err != nil {
		return err
	}
	return kjson.UnmarshalCaseSensitivePreserveInts(value, into)
}
