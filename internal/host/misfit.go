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
	var errs [8]error
	m, has := all.MethodByName("Rights")
	errs[0] = fit[extension.Entitled](typ, m, has, "Rights() []rbacv1.PolicyRule")
	m, has = all.MethodByName("NamespaceRights")
	errs[1] = fit[extension.NamespaceEntitled](typ, m, has, "NamespaceRights() map[string][]rbacv1.PolicyRule")
	m, has = all.MethodByName("ClusterRights")
	errs[2] = fit[extension.ClusterEntitled](typ, m, has, "ClusterRights() []rbacv1.PolicyRule")
	m, has = all.MethodByName("AggregateLabel")
	errs[3] = fit[extension.AggregateEntitled](typ, m, has, "AggregateLabel() string")
	m, has = all.MethodByName("Reads")
	errs[4] = fit[extension.Reader](typ, m, has, "Reads() []client.Object")
	m, has = all.MethodByName("Scope")
	errs[5] = fit[extension.Scoped](typ, m, has, "Scope() extension.Scope")
	m, has = all.MethodByName("NeedLeaderElection")
	errs[6] = fit[extension.LeaderElected](typ, m, has, "NeedLeaderElection() bool")
	m, has = all.MethodByName("Unseen")
	errs[7] = fit[extension.Witness](typ, m, has, "Unseen(context.Context, *extension.Request, string)")
	return errors.Join(errs[:]...)
}

// fit returns an error if a type has a method of the name of an interface's, and not the interface. One with other
// parameters is meant for something else.
func fit[I any](typ reflect.Type, method reflect.Method, has bool, want string) error {
	wanted := reflect.TypeFor[I]()
	switch {
	case !has || typ.Implements(wanted) || method.Type.NumIn()-1 != wanted.Method(0).Type.NumIn():
		return nil
	case typ.Kind() != reflect.Pointer && reflect.PointerTo(typ).Implements(wanted):
		return fmt.Errorf("%s has the method %s by its pointer only, so that nobody would call it: pass a pointer", typ, method.Name)
	}
	return fmt.Errorf("%s has %s%s, which nobody would call: it must be %s, or have another name", typ, method.Name, signature(method.Type), want)
}
