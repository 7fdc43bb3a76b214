package admit

import (
	"reflect"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// emptyFields returns the fields that are empty in all objects of one Go type, by their names in
// JSON. It descends into the types of the object's own package: an author can fill those, but not
// every field of a type of Kubernetes.
func emptyFields(objects []client.Object) []string {
	filled := map[string]bool{}
	var order []string
	for _, object := range objects {
		value := reflect.Indirect(reflect.ValueOf(object))
		visitFields(value, value.Type().PkgPath(), "", func(path string, empty bool) {
			if _, known := filled[path]; !known {
				order = append(order, path)
			}
			filled[path] = filled[path] || !empty
		})
	}
	return slices.DeleteFunc(order, func(path string) bool { return filled[path] })
}

func visitFields(value reflect.Value, pkg, path string, visit func(path string, empty bool)) {
	switch value.Kind() {
	case reflect.Pointer:
		if !value.IsNil() {
			visitFields(value.Elem(), pkg, path, visit)
		}
	case reflect.Slice, reflect.Array:
		for i := range value.Len() {
			visitFields(value.Index(i), pkg, path, visit)
		}
	case reflect.Map:
		for _, key := range value.MapKeys() {
			visitFields(value.MapIndex(key), pkg, path, visit)
		}
	case reflect.Struct:
		if value.Type().PkgPath() != pkg {
			return
		}
		for i := range value.NumField() {
			visitField(value.Type().Field(i), value.Field(i), pkg, path, visit)
		}
	}
}

func visitField(field reflect.StructField, value reflect.Value, pkg, path string, visit func(path string, empty bool)) {
	name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
	switch {
	case !field.IsExported(), name == "-", field.Type == reflect.TypeFor[metav1.TypeMeta](), field.Type == reflect.TypeFor[metav1.ObjectMeta]():
		return
	case name == "": // inlined
		name = path
	default:
		name = strings.TrimPrefix(path+"."+name, ".")
		if visit(name, value.IsZero()); value.IsZero() {
			return
		}
	}
	visitFields(value, pkg, name, visit)
}
