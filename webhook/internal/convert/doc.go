// Package convert converts one object of a custom resource to another version by its
// converter (extension.Between and the like), from JSON to JSON.
//
// Read convert.go first: [Object] decodes, converts and encodes an object, and keeps its
// metadata but for labels and annotations. unknown.go keeps the fields that the Go types do
// not know.
package convert
