package patch

import (
	"reflect"
	"unsafe"
)

// address is where a value lies in memory. All that this package does without
// the safety of types is in this file; see equality for what it is good for. It
// only reads. Whoever reads at an address knows the type of what lies there from
// reflect, and an address keeps what lies there alive, as any pointer does.
type address struct{ p unsafe.Pointer } // and nothing else, so that one can be read where a pointer lies

// addressOf returns where a value is, or a copy of it if it has no address. It
// is faster than Value.Addr, which looks for the type of the pointer.
func addressOf(v reflect.Value) address {
	return address{unsafe.Pointer(addressable(v).UnsafeAddr())} //nolint:gosec // in one expression, as package unsafe asks
}

// plus returns the address of a field or item, at an offset that reflect gave.
func (a address) plus(offset uintptr) address {
	return address{unsafe.Add(a.p, offset)}
}

// bytes returns the memory of a value of a size.
func (a address) bytes(size uintptr) []byte {
	return unsafe.Slice((*byte)(a.p), size)
}

// items returns the address of the first item of the slice that lies here, and
// how many there are. The header of a slice is the same whatever its items are.
func (a address) items() (first address, n int, isNil bool) {
	header := read[[]byte](a)
	return address{unsafe.Pointer(unsafe.SliceData(header))}, len(header), header == nil //nolint:gosec // converts a *byte
}

// read returns the value that lies at an address.
func read[T any](a address) T { return *(*T)(a.p) }

// valueAt returns the value of a type that lies at an address.
func valueAt(t reflect.Type, a address) reflect.Value { return reflect.NewAt(t, a.p).Elem() }
