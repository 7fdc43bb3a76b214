package host

import (
	"errors"
	"fmt"
	"reflect"

	"github.com/admitkit/admitkit/extension"
)

// misfit returns an error for each optional method of a part that has another signature than the one that is
// called: nobody would call it, and nothing would say so. The names are constants; see nearest.
func misfit(part any) error {
	typ := reflect.TypeOf(part)
	all := typ // with the methods of pointers, which a value lacks
	if typ.Kind() != reflect.Pointer && typ.Kind() != reflect.Interface {
		all = reflect.PointerTo(typ)
	}
	return errors.Join(
		fit[extension.Entitled](typ, 0, "Rights() []rbacv1.PolicyRule")(all.MethodByName("Rights")),
		fit[extension.NamespaceEntitled](typ, 0, "NamespaceRights() map[string][]rbacv1.PolicyRule")(all.MethodByName("NamespaceRights")),
		fit[extension.ClusterEntitled](typ, 0, "ClusterRights() []rbacv1.PolicyRule")(all.MethodByName("ClusterRights")),
		fit[extension.AggregateEntitled](typ, 0, "AggregateLabel() string")(all.MethodByName("AggregateLabel")),
		fit[extension.Reader](typ, 0, "Reads() []client.Object")(all.MethodByName("Reads")),
		fit[extension.Scoped](typ, 0, "Scope() extension.Scope")(all.MethodByName("Scope")),
		fit[extension.LeaderElected](typ, 0, "NeedLeaderElection() bool")(all.MethodByName("NeedLeaderElection")),
		fit[extension.Witness](typ, 3, "Unseen(context.Context, *extension.Request, string)")(all.MethodByName("Unseen")),
	)
}

// scopedTwice returns an error for a Mutator or Validator whose method Scope nobody calls. That of an Extension is its own.
func scopedTwice(e any) error {
	h, ok := e.(*extension.Handler)
	if !ok {
		return nil
	}
	value := inside.Value(h)
	scoped, has := value.(extension.Scoped)
	if _, is := value.(extension.Extension); !has || is || reflect.DeepEqual(scoped.Scope(), inside.Scope(h)) {
		return nil
	}
	form := "Validating"
	if inside.Mutates(h) {
		form = "Mutating"
	}
	return fmt.Errorf("%T has a method Scope, and another scope is given for it: write extension.%s(x, x.Scope()), or remove the method", value, form)
}

// fit returns a function that returns an error if a method of a type has the name of an interface's, and the type has not the
// interface, whose method is want, with some parameters. A method with another number of them is meant for something else.
// They are not counted by [reflect.Type.Method]: the linker would keep every method of every type.
func fit[I any](typ reflect.Type, parameters int, want string) func(method reflect.Method, has bool) error {
	wanted := reflect.TypeFor[I]()
	return func(method reflect.Method, has bool) error {
		switch {
		case !has || typ.Implements(wanted) || method.Type.NumIn()-1 != parameters:
			return nil
		case typ.Kind() != reflect.Pointer && reflect.PointerTo(typ).Implements(wanted):
			return fmt.Errorf("%s has the method %s by its pointer only, so that nobody would call it: pass a pointer", typ, method.Name)
		}
		return fmt.Errorf("%s has %s%s, which nobody would call: it must be %s, or have another name", typ, method.Name, signature(method.Type), want)
	}
}
