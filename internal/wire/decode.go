package wire

import (
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	jsonv1 "github.com/go-json-experiment/json/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kjson "sigs.k8s.io/json"
)

// Decode decodes the JSON of one object into a Go type, as the API machinery
// does: field names are case-sensitive, integers keep their 64 bits, unknown
// fields are passed over, of duplicate ones the last counts, invalid UTF-8 is
// replaced. Nothing in the object aliases raw afterwards.
func Decode(raw []byte, into runtime.Object) error {
	if into, isTree := into.(runtime.Unstructured); isTree {
		// All of it is any, for which unmarshalAny would be a detour.
		var content map[string]any
		if err := kjson.UnmarshalCaseSensitivePreserveInts(raw, &content); err != nil {
			return err
		}
		into.SetUnstructuredContent(content)
		return nil
	}
	if fill(raw, into) {
		return nil
	}
	return json.Unmarshal(raw, into, asAPIMachinery)
}

// asAPIMachinery makes the library's decoder do what sigs.k8s.io/json does, which
// is what the API machinery decodes with: encoding/json, but with case-sensitive
// names and with integers as int64 where the Go type is any.
//
// # Why these decoders
//
// What API servers write is decoded by fill, which knows no rule that it does not
// need and uses no unsafe code. The rest, errors included, is decoded by
// the fastest library of those that agree with the API machinery, the mirror of
// encoding/json/v2. Measured on a recorded Pod (the best of five runs, on a noisy
// machine; repeat by BenchmarkDecode), where json.Valid alone takes 22 and 309 µs:
//
//	                              4.4 KB            62 KB
//	sigs.k8s.io/json              82 µs 174 allocs  1153 µs  exact by definition
//	encoding/json                 93 µs 163 allocs   984 µs  ignores case; integers in any are floats
//	go-json-experiment, v2        40 µs  95 allocs   823 µs  refuses duplicates, null and UTF-8 differ
//	  with v1 semantics           47 µs  95 allocs   643 µs  integers in any are floats
//	  and unmarshalAny               51 µs  95 allocs   688 µs  exact
//	goccy/go-json 0.12            29 µs 135 allocs   351 µs  ignores case; integers in any are floats
//	  its v2 with these options   40 µs 142 allocs   576 µs  exact; unsafe in 104 files
//	json-iterator                 39 µs 303 allocs   430 µs  UTF-8 and large numbers differ; no release since 2021
//	bytedance/sonic 1.15          24 µs 131 allocs   293 µs  UTF-8 and nesting differ; 200 ms for a type's first object
//	fill                          24 µs  64 allocs   361 µs  exact, or leaves it to the library
//
// Exact means that the property tests and FuzzDecode find no difference. An
// unsafe decoder is no choice for what anyone who may create a Pod can write.
var asAPIMachinery = json.JoinOptions(
	jsonv1.DefaultOptionsV1(),
	json.MatchCaseInsensitiveNames(false),
	json.WithUnmarshalers(json.UnmarshalFromFunc(unmarshalAny)),
)

// unmarshalAny decodes a value whose type is any. Only CRDs have such fields, so
// that its speed does not count.
func unmarshalAny(decoder *jsontext.Decoder, into *any) error {
	value, err := decoder.ReadValue()
	if err != nil {
		return err
	}
	return kjson.UnmarshalCaseSensitivePreserveInts(value, into)
}
