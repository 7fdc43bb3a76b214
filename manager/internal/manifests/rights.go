package manifests

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/internal/host"
)

// addRights grants what extensions ask for and read to the ServiceAccount of a process,
// what its watchers watch, and what it waits for.
func (i *installer) addRights(account string, process host.Process, rights host.Rights, watchers []extension.Watcher) error {
	if err := i.addReads(process, &rights); err != nil {
		return err
	}
	for _, w := range watchers {
		if err := i.addWatch(w, &rights); err != nil {
			return err
		}
	}
	name, watched, cluster := account+"-extensions", rights.Watched, rights.Cluster
	if len(i.Converted) > 0 && (process == host.Reconciles || len(watchers) > 0) {
		// They wait for the conversions.
		cluster = append(cluster, rule("apiextensions.k8s.io", []string{"customresourcedefinitions"}, []string{"get"}, i.Converted...))
	}
	if len(i.Namespaces) == 0 {
		cluster = append(watched, cluster...)
	} else {
		i.warnOutside(rights.Outside)
	}
	for _, namespace := range i.Namespaces {
		rights.Namespaces[namespace] = slices.Concat(watched, rights.Namespaces[namespace])
	}
	for _, namespace := range slices.Sorted(maps.Keys(rights.Namespaces)) {
		i.addRole(name, account, namespace, rights.Namespaces[namespace]...)
	}
	i.addClusterRole(name, account, cluster...)
	i.addAggregate(account+"-aggregate", account, rights.Aggregates)
	i.addTokenGuard(account, &rights)
	return nil
}

// addWatch adds the right to watch what a watcher sees.
func (i *installer) addWatch(w extension.Watcher, rights *host.Rights) error {
	watched, ofKind, err := host.WatchedBy(w, i.Scheme)
	if err != nil {
		return err
	}
	kind := schema.GroupKind{Kind: "Pod"}
	if ofKind {
		kind = watched.Kind.GroupKind()
	}
	all, namespaced, known := i.kinds.ReadRule(kind)
	if !known {
		return fmt.Errorf("%s watches %s, whose plural, for the rights to do so, is not known without the cluster: give its CustomResourceDefinition (--with; InstallOptions.CRDs)", host.WatcherName(w), kind)
	}
	may := rule(kind.Group, all.Resources, []string{"list", "watch"})
	if namespaced {
		rights.Watched = host.AppendNew(rights.Watched, may)
	} else {
		rights.Cluster = host.AppendNew(rights.Cluster, may)
	}
	return nil
}

// warnOutside says whose rights do not follow its scope. To grant them everywhere would
// be more than the watched namespaces promise.
func (i *installer) warnOutside(outside []host.Outside) {
	for _, part := range outside {
		warning := fmt.Sprintf("extension %s gets admissions from the namespaces of its own NamespaceSelector (%s), but its Rights are granted only in %s: "+
			"elsewhere the API server forbids what it does; name the namespaces in the selector (extension.InNamespaces), or ask by NamespaceRights or, for every namespace, by ClusterRights",
			part.Name, metav1.FormatLabelSelector(part.Selector), i.watched())
		i.warn(warning)
	}
}

// addKinds makes the kinds of CustomResourceDefinitions known.
func (i *installer) addKinds(crds []client.Object) error {
	for _, crd := range crds {
		content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(crd)
		if err == nil {
			err = i.kinds.Add(&unstructured.Unstructured{Object: content})
		}
		if err != nil {
			return fmt.Errorf("install options: Objects, CRDs: %w", err)
		}
	}
	return nil
}

// warnUnconverted says which versions of a CustomResourceDefinition its converter lacks.
func (i *installer) warnUnconverted() {
	for _, c := range i.Parts.Converters {
		kind, known := i.kinds.Of(schema.ParseGroupResource(c.CRD))
		if !known {
			continue
		}
		served, _ := i.kinds.Find(kind.GroupKind())
		for _, version := range served.GroupVersions {
			if c.Version(version.Version) == nil {
				i.warn(fmt.Sprintf("CustomResourceDefinition %s serves version %s, and its Converter has only %s: requests for that version fail; add an extension.Between for it, or do not serve it",
					c.CRD, version.Version, strings.Join(c.Names(), ", ")))
			}
		}
	}
}

// addReads adds the rights to read what extensions read in a process.
func (i *installer) addReads(process host.Process, rights *host.Rights) error {
	reads, err := i.Parts.Reads(i.Scheme, process)
	if err != nil {
		return err
	}
	for _, read := range reads {
		rule, namespaced, known := i.kinds.ReadRule(read.Kind.GroupKind())
		switch {
		case !known:
			return fmt.Errorf("Reads of %s: the plural of %s, for the rights to read it, is not known without the cluster: give its CustomResourceDefinition: manifests --with, InstallOptions.Objects, or InstallOptions.CRDs if others install it",
				read.Part, read.Kind.GroupKind())
		case namespaced:
			rights.Watched = host.AppendNew(rights.Watched, rule)
			i.warnOfReads(read)
		default:
			rights.Cluster = host.AppendNew(rights.Cluster, rule)
		}
	}
	return nil
}

// warnOfReads says whose admissions come from namespaces that the cache does not hold.
func (i *installer) warnOfReads(read host.Read) {
	if len(i.Namespaces) == 0 {
		return
	}
	for _, selector := range host.Beyond(i.Namespaces, read.Selectors) {
		i.warn(fmt.Sprintf("extension %s gets admissions from the namespaces of its own NamespaceSelector (%s), but reads %s from a cache that holds only %s: "+
			"watch these namespaces, too, or every namespace, or read by GetAPIReader, with Rights", read.Part, metav1.FormatLabelSelector(selector), read.Kind.Kind, i.watched()))
	}
}

// watched names the watched namespaces, of which there are some.
func (i *installer) watched() string {
	if len(i.Namespaces) == 1 {
		return fmt.Sprintf("%q, the watched namespace", i.Namespaces[0])
	}
	return fmt.Sprintf("%q, the watched namespaces", i.Namespaces)
}

func (i *installer) addServiceAccount(name string) {
	i.add(&corev1.ServiceAccount{TypeMeta: kind(corev1.SchemeGroupVersion, "ServiceAccount"), ObjectMeta: i.meta(name, i.WebhookNamespace)})
	if i.MetricsSecure { // each process serves its own
		i.addClusterRole(name+"-metrics", name, metricsRights()...)
	}
}

// addRole adds a Role and its binding to a ServiceAccount.
func (i *installer) addRole(name, account, namespace string, rules ...rbacv1.PolicyRule) {
	if len(rules) == 0 {
		return
	}
	i.add(&rbacv1.Role{TypeMeta: kind(rbacv1.SchemeGroupVersion, "Role"), ObjectMeta: i.meta(name, namespace), Rules: rules},
		&rbacv1.RoleBinding{
			TypeMeta: kind(rbacv1.SchemeGroupVersion, "RoleBinding"), ObjectMeta: i.meta(name, namespace),
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name}, Subjects: i.subjects(account),
		})
}

// addClusterRole adds a ClusterRole and its binding to a ServiceAccount.
func (i *installer) addClusterRole(name, account string, rules ...rbacv1.PolicyRule) {
	if len(rules) == 0 {
		return
	}
	i.bindClusterRole(name, account, &rbacv1.ClusterRole{Rules: rules})
}

// addAggregate adds a ClusterRole that kube-controller-manager fills with the rules of
// ClusterRoles with one of the labels, and its binding to a ServiceAccount.
func (i *installer) addAggregate(name, account string, labels []string) {
	if len(labels) == 0 {
		return
	}
	rule := &rbacv1.AggregationRule{}
	for _, label := range labels {
		rule.ClusterRoleSelectors = append(rule.ClusterRoleSelectors, metav1.LabelSelector{MatchLabels: map[string]string{label: "true"}})
	}
	i.bindClusterRole(name, account, &rbacv1.ClusterRole{AggregationRule: rule})
}

// bindClusterRole adds a ClusterRole and its binding to a ServiceAccount.
func (i *installer) bindClusterRole(name, account string, role *rbacv1.ClusterRole) {
	// There may be an installation of the same name in another namespace.
	name = i.WebhookNamespace + "-" + name
	role.TypeMeta, role.ObjectMeta = kind(rbacv1.SchemeGroupVersion, "ClusterRole"), i.meta(name, "")
	i.add(role, &rbacv1.ClusterRoleBinding{
		TypeMeta: kind(rbacv1.SchemeGroupVersion, "ClusterRoleBinding"), ObjectMeta: i.meta(name, ""),
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name}, Subjects: i.subjects(account),
	})
}

func (i *installer) subjects(account string) []rbacv1.Subject {
	return []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: account, Namespace: i.WebhookNamespace}}
}

func rule(group string, resources, verbs []string, names ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: resources, ResourceNames: names, Verbs: verbs}
}

// metricsRights are what the guard needs.
func metricsRights() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{
		rule("authentication.k8s.io", []string{"tokenreviews"}, []string{"create"}),
		rule("authorization.k8s.io", []string{"subjectaccessreviews"}, []string{"create"}),
	}
}
