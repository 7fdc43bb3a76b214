package extension

import (
	"reflect"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/conversion"
)

// Converter converts the objects of a CustomResourceDefinition between its versions. Make
// one with [Converting], and add it by a manager's AddExtension:
//
//	mgr.AddExtension(extension.Converting("alarms.example.com", "v2",
//		extension.Between("v1",
//			func(from *v1.Alarm, to *v2.Alarm) error { ...; return nil },
//			func(from *v2.Alarm, to *v1.Alarm) error { ...; return nil })))
//
// The manager serves the conversion, and writes its address and its CA into spec.conversion
// of the CustomResourceDefinition. Everything else in there is its author's.
//
// One version is the hub: each other version, a spoke, has a function to it and one from
// it. The best hub is the version that can express most; it need not be the stored one. A
// conversion between two spokes goes through the hub.
//
// # What a function finds and what it leaves
//
// A function gets the object as it is, and one with nothing but the same metadata, which it
// fills in. It may change labels and annotations. Everything else in the metadata stays as
// it is: an attempt to change it is an error. The library sets apiVersion and kind.
//
// The object need not be whole: for a server-side apply, an API server converts it without
// the fields that its manager has given up, required ones too. A field that is absent stays
// absent, and is no error: else each apply would fail by which a manager goes from one version to another.
//
// Objects are converted whenever somebody reads or writes them in another version than the
// stored one, so a function must lose nothing: what the other version cannot express can be
// kept in an annotation. RoundTrip of package testing/admit tests it. A function must depend
// on nothing but its object, neither on the time nor on the cluster, and should take less than
// a millisecond: the API server asks once for each object and version.
//
// A field that the Go types do not know is not lost: it appears in the same place of the
// other version. That happens when the CustomResourceDefinition is newer than the program. A
// field for which there is no such place is an error.
//
// # Errors
//
// With an error, or a panic, the request fails for which the object was to be converted;
// its text is for the user. A list in which one object fails is an error as a whole. So
// return an error only for a value that cannot be expressed at all.
type Converter struct {
	crd      string
	versions []version // the hub first
}

// version is a version of a Converter.
type version struct {
	name string
	typ  reflect.Type
	// toHub and fromHub are nil for the hub.
	toHub, fromHub func(from, to client.Object) error
}

// Spoke is a version with its conversion to the hub and from it. Make one with [Between] or
// [Convertible].
type Spoke[H client.Object] struct{ version }

// Converting makes a Converter for the CustomResourceDefinition of this name,
// PLURAL.GROUP. hub is the version of the type H. Both may be *unstructured.Unstructured.
func Converting[H client.Object](crd, hub string, spokes ...Spoke[H]) *Converter {
	c := &Converter{crd: crd, versions: []version{{name: hub, typ: reflect.TypeFor[H]()}}}
	for _, s := range spokes {
		c.versions = append(c.versions, s.version)
	}
	return c
}

// Between makes a Spoke of two functions; see [Converter].
func Between[S, H client.Object](name string, toHub func(from S, to H) error, fromHub func(from H, to S) error) Spoke[H] {
	s := Spoke[H]{version{name: name, typ: reflect.TypeFor[S]()}}
	if toHub != nil {
		s.toHub = func(from, to client.Object) error { return toHub(from.(S), to.(H)) }
	}
	if fromHub != nil {
		s.fromHub = func(from, to client.Object) error { return fromHub(from.(H), to.(S)) }
	}
	return s
}

// Convertible makes a Spoke of a type with the methods that controller-runtime asks for:
// ConvertTo and ConvertFrom.
func Convertible[S interface {
	client.Object
	conversion.Convertible
}, H interface {
	client.Object
	conversion.Hub
}](name string) Spoke[H] {
	return Between(name,
		func(from S, to H) error { return from.ConvertTo(to) },
		func(from H, to S) error { return to.ConvertFrom(from) })
}
