package auditevent

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"

	"github.com/admitkit/admitkit/extension"
)

// crdName is the name of AuditEvent's CustomResourceDefinition.
const crdName = "auditevents.admitkit.dev"

var (
	// ofAuditEvents asks the object for its name: the request for a whole collection
	// has none.
	ofAuditEvents = admissionregistrationv1.MatchCondition{Name: "of-audit-events", Expression: "oldObject.metadata.name == '" + crdName + "'"}
	// changesSpec leaves out what changes nothing, and the API server's own status.
	changesSpec = admissionregistrationv1.MatchCondition{Name: "changes-spec", Expression: "request.operation == 'DELETE' || (has(request.subResource) ? " +
		"request.userInfo.username != 'system:apiserver' && object.status != oldObject.status : object.spec != oldObject.spec)"}
)

// crdGuard protects the CRD: with it all records go, and with a field of it that field of
// all records, without an admission.
type crdGuard struct{ events *events }

var _ extension.Validator[*apiextensionsv1.CustomResourceDefinition] = (*crdGuard)(nil)

// Validate refuses to delete the CRD, and changes by which records lose something or
// can no longer be written. An upgrade that adds fields or versions passes.
func (g *crdGuard) Validate(_ context.Context, crd *apiextensionsv1.CustomResourceDefinition, req *extension.Request) error {
	if slices.Contains(g.events.options.DeletableBy, req.User().Username) {
		return nil
	}
	if req.Operation == admissionv1.Delete {
		return tampered(req, crdName, "this would delete every audit record; unregister the audit webhooks first, which the API server's own audit log records")
	}
	var old apiextensionsv1.CustomResourceDefinition
	if err := req.Old(&old); err != nil {
		return err
	}
	if req.SubResource == "status" {
		if what := harmInStatus(&old.Status, &crd.Status); what != "" {
			return tampered(req, crdName, what+": only the API server may say so, or audit records cannot be written")
		}
		return nil
	}
	if what := harm(&old.Spec, &crd.Spec); what != "" {
		return tampered(req, crdName, fmt.Sprintf("%s: a change of the CRD may only add versions and optional fields, or audit records lose something, or cannot be written; "+
			"a user in DeletableBy may do it, or unregister the audit webhooks first, which the API server's own audit log records", what))
	}
	return nil
}

// harm names what a change does to the records, if it does something.
func harm(old, now *apiextensionsv1.CustomResourceDefinitionSpec) string {
	switch {
	case !apiequality.Semantic.DeepEqual(old.Conversion, now.Conversion):
		return "spec.conversion differs"
	case old.PreserveUnknownFields != now.PreserveUnknownFields:
		return "spec.preserveUnknownFields differs"
	}
	for i := range old.Versions {
		was := &old.Versions[i]
		at := slices.IndexFunc(now.Versions, func(v apiextensionsv1.CustomResourceDefinitionVersion) bool { return v.Name == was.Name })
		switch {
		case at < 0:
			return "version " + was.Name + " is missing"
		case was.Served && !now.Versions[at].Served:
			return "version " + was.Name + " is no longer served"
		case !apiequality.Semantic.DeepEqual(was.Subresources, now.Versions[at].Subresources):
			return "the subresources of version " + was.Name + " differ"
		}
		// Each version may store the records, or be the one that the manager writes.
		for j := range now.Versions {
			if what := harmInSchema("", schemaOf(was), schemaOf(&now.Versions[j])); what != "" {
				return "version " + now.Versions[j].Name + ": " + what
			}
		}
	}
	return ""
}

// harmInStatus names what the status says newly by which the API server serves no
// records, or takes no new ones.
func harmInStatus(old, now *apiextensionsv1.CustomResourceDefinitionStatus) string {
	is := func(s *apiextensionsv1.CustomResourceDefinitionStatus, condition apiextensionsv1.CustomResourceDefinitionConditionType) bool {
		return slices.ContainsFunc(s.Conditions, func(c apiextensionsv1.CustomResourceDefinitionCondition) bool {
			return c.Type == condition && c.Status == apiextensionsv1.ConditionTrue
		})
	}
	for _, condition := range []apiextensionsv1.CustomResourceDefinitionConditionType{apiextensionsv1.Established, apiextensionsv1.NamesAccepted} {
		if is(old, condition) && !is(now, condition) {
			return "the condition " + string(condition) + " no longer holds"
		}
	}
	switch {
	case is(now, apiextensionsv1.Terminating) && !is(old, apiextensionsv1.Terminating):
		return "the condition Terminating holds"
	case !apiequality.Semantic.DeepEqual(old.AcceptedNames, now.AcceptedNames):
		return "status.acceptedNames differ"
	}
	return ""
}

func schemaOf(v *apiextensionsv1.CustomResourceDefinitionVersion) *apiextensionsv1.JSONSchemaProps {
	if v.Schema == nil || v.Schema.OpenAPIV3Schema == nil {
		return &apiextensionsv1.JSONSchemaProps{}
	}
	return v.Schema.OpenAPIV3Schema
}

// harmInSchema names the first field at or below a path that is missing or accepts other
// values.
func harmInSchema(path string, old, now *apiextensionsv1.JSONSchemaProps) string {
	if what := harmInFields(path, old.Properties, now.Properties); what != "" {
		return what
	}
	if elements(old) != nil && elements(now) != nil {
		if what := harmInSchema(path+"[]", elements(old), elements(now)); what != "" {
			return what
		}
	}
	if !apiequality.Semantic.DeepEqual(itself(old), itself(now)) || (elements(old) == nil) != (elements(now) == nil) {
		return "the type or the rules of " + cmp.Or(path, "the object") + " differ"
	}
	for _, name := range now.Required {
		if !slices.Contains(old.Required, name) {
			return "field " + path + "." + name + " becomes required"
		}
	}
	return ""
}

func harmInFields(path string, old, now map[string]apiextensionsv1.JSONSchemaProps) string {
	for _, name := range slices.Sorted(maps.Keys(old)) {
		was, field := old[name], now[name]
		if _, found := now[name]; !found {
			return "field " + path + "." + name + " is missing"
		}
		if what := harmInSchema(path+"."+name, &was, &field); what != "" {
			return what
		}
	}
	for _, name := range slices.Sorted(maps.Keys(now)) {
		if _, found := old[name]; !found && (path == ".metadata" || now[name].Default != nil) {
			return "field " + path + "." + name + " is new, and would be in every record"
		}
	}
	return ""
}

// elements is the schema of a list's elements, or nil.
func elements(s *apiextensionsv1.JSONSchemaProps) *apiextensionsv1.JSONSchemaProps {
	if s.Items == nil {
		return nil
	}
	return s.Items.Schema
}

// itself is a schema without what is below it and what may change.
func itself(s *apiextensionsv1.JSONSchemaProps) *apiextensionsv1.JSONSchemaProps {
	short := *s
	short.Description, short.Properties, short.Items, short.Required = "", nil, nil, nil
	return &short
}
