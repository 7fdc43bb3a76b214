package patch

import (
	"reflect"
	"unsafe"
)

// address is the place of a value in memory. All uses of unsafe are in this file,
// and they only read; see equality for the reason. Callers know from reflect the
// type of the value at an address. An address keeps its value alive, as any pointer
// does. It has the layout of a pointer, so that read[address] follows a pointer.
type address struct{ p unsafe.Pointer }

// addressOf returns the address of a value, or of a copy if it has none. It is
// faster than Value.Addr, which looks up the type of the pointer.
func addressOf(v reflect.Value) address {
	return address{unsafe.Pointer(addressable(v).UnsafeAddr())} //nolint:gosec // in one expression, as package unsafe asks
}

// plus returns the address of a field or item, whose offset is known from reflect.
func (a address) plus(offset uintptr) address {
	return address{unsafe.Add(a.p, offset)}
}

// bytes returns the memory of a value of the given size.
func (a address) bytes(size uintptr) []byte {
	return unsafe.Slice((*byte)(a.p), size) //nolint:gosec // the size is that of the type
}

// items returns the address of the first item of a slice, and the number of items.
// All slices have the same header, whatever their items are.
func (a address) items() (first address, n int, isNil bool) {
	header := read[[]byte](a)
	return address{unsafe.Pointer(unsafe.SliceData(header))}, len(header), header == nil //nolint:gosec // converts a *byte
}

// read returns the value at an address.
func read[T any](a address) T { return *(*T)(a.p) }

// valueAt returns the value at an address as reflect sees it.
func valueAt(t reflect.Type, a address) reflect.Value { return reflect.NewAt(t, a.p).Elem() }
