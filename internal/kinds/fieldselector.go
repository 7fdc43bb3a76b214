package kinds

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// selectable lists the fields by which an API server selects objects of a kind, from the
// AddFieldLabelConversionFuncs of k8s.io/kubernetes/pkg/apis. The other kinds of Kubernetes
// have metadata.name and metadata.namespace.
var selectable = map[schema.GroupKind]string{
	{Kind: "Event"}: "metadata.name metadata.namespace involvedObject.kind involvedObject.namespace involvedObject.name involvedObject.uid " +
		"involvedObject.apiVersion involvedObject.resourceVersion involvedObject.fieldPath reason reportingComponent source type",
	{Kind: "Namespace"}: "metadata.name status.phase",
	{Kind: "Node"}:      "metadata.name spec.unschedulable",
	{Kind: "Pod"}: "metadata.name metadata.namespace spec.nodeName spec.host spec.restartPolicy spec.schedulerName spec.serviceAccountName " +
		"spec.hostNetwork status.phase status.podIP status.podIPs status.nominatedNodeName",
	{Kind: "ReplicationController"}: "metadata.name metadata.namespace status.replicas",
	{Kind: "Secret"}:                "metadata.name metadata.namespace type",
	{Kind: "Service"}:               "metadata.name metadata.namespace spec.clusterIP spec.type",
	{Group: "batch", Kind: "Job"}:   "metadata.name metadata.namespace status.successful",
	{Group: "certificates.k8s.io", Kind: "CertificateSigningRequest"}: "metadata.name spec.signerName",
	{Group: "certificates.k8s.io", Kind: "ClusterTrustBundle"}:        "metadata.name spec.signerName",
	{Group: "certificates.k8s.io", Kind: "PodCertificateRequest"}:     "metadata.name spec.signerName spec.podName spec.nodeName",
	{Group: "events.k8s.io", Kind: "Event"}: "metadata.name metadata.namespace regarding.kind regarding.namespace regarding.name regarding.uid " +
		"regarding.apiVersion regarding.resourceVersion regarding.fieldPath reason reportingController type",
	{Group: "resource.k8s.io", Kind: "ResourceSlice"}: "metadata.name spec.nodeName spec.driver spec.pool.name",
}

// Selectable returns the API server's error for a selector by a field by which it does not
// select objects of the kind.
func (t *Table) Selectable(kind schema.GroupVersionKind, selector fields.Selector) error {
	_, err := selector.Transform(func(field, value string) (string, string, error) {
		return field, value, t.selectableBy(kind, field)
	})
	return err
}

func (t *Table) selectableBy(kind schema.GroupVersionKind, field string) error {
	all, special := selectable[kind.GroupKind()]
	known := strings.Fields(all)
	if served, custom := t.Custom()[kind.GroupKind()]; custom {
		special, known = true, append(t.selectableOf(kind), metav1.ObjectNameField)
		if served.Namespaced {
			known = append(known, "metadata.namespace")
		}
	}
	switch {
	case !special:
		_, _, err := runtime.DefaultMetaV1FieldSelectorConversion(field, "")
		return err
	case slices.Contains(known, field):
		return nil
	case kind.Kind == "Job":
		return fmt.Errorf("field label %q not supported for Job", field)
	case kind.Kind == "ResourceSlice":
		return fmt.Errorf("field label not supported for %s: %s", kind, field)
	}
	return fmt.Errorf("field label not supported: %s", field)
}

// selectableOf returns the selectableFields of a CustomResourceDefinition.
func (t *Table) selectableOf(kind schema.GroupVersionKind) (all []string) {
	for _, crd := range t.Definitions() {
		var content struct {
			Spec struct {
				Group    string
				Names    struct{ Kind string }
				Versions []struct {
					Name             string
					SelectableFields []struct{ JSONPath string }
				}
			}
		}
		text, err := json.Marshal(crd.Object)
		if err != nil || json.Unmarshal(text, &content) != nil || content.Spec.Group != kind.Group || content.Spec.Names.Kind != kind.Kind {
			continue
		}
		all = nil // a later definition replaces this one
		for _, version := range content.Spec.Versions {
			if version.Name != kind.Version {
				continue
			}
			for _, field := range version.SelectableFields {
				all = append(all, strings.TrimPrefix(field.JSONPath, "."))
			}
		}
	}
	return all
}

// Fields returns the fields of an object by which an API server selects.
func Fields(object *unstructured.Unstructured) fields.Fields { return fieldsOf{object} }

type fieldsOf struct{ object *unstructured.Unstructured }

func (f fieldsOf) Has(field string) bool { return f.Get(field) != "" }

// Get returns a field as the ToSelectableFields of its kind in k8s.io/kubernetes/pkg/registry.
func (f fieldsOf) Get(field string) string {
	switch f.object.GroupVersionKind().GroupKind().String() + " " + field {
	case "Event source":
		return cmp.Or(f.at("source.component"), f.at("reportingComponent"))
	case "Job.batch status.successful":
		return cmp.Or(f.at("status.succeeded"), "0")
	case "Node spec.unschedulable", "Pod spec.hostNetwork":
		return cmp.Or(f.at(field), "false")
	case "Pod spec.host":
		return f.at("spec.nodeName")
	case "Pod status.podIP":
		if ips, _, _ := unstructured.NestedSlice(f.object.Object, "status", "podIPs"); len(ips) > 0 {
			first, _ := ips[0].(map[string]any)
			return fmt.Sprint(first["ip"])
		}
	case "Pod status.podIPs": // accepted, and always empty
		return ""
	case "ReplicationController status.replicas":
		return cmp.Or(f.at(field), "0")
	}
	return f.at(field)
}

func (f fieldsOf) at(path string) string {
	value, found, err := unstructured.NestedFieldNoCopy(f.object.Object, strings.Split(path, ".")...)
	if err != nil || !found {
		return ""
	}
	return fmt.Sprint(value)
}
