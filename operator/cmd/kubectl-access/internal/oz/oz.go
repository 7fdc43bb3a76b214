package oz

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	kjson "sigs.k8s.io/json"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/cmd/kubectl-access/internal/cli"
)

// ozObject is an object of the Oz RBAC Controller that becomes one of admitkit.
type ozObject struct {
	unstructured.Unstructured
	subjects string
	// notes say what is changed, dropped, and cannot be carried over.
	notes   []string
	dropped int
	lost    bool
}

// ozGroup matches the API groups of Oz. Its documentation and its first versions have
// others than crds.wizardofoz.co.
var ozGroup = regexp.MustCompile(`^((crds|templates)\.)?wizard(of)?oz\.(co|io)/`)

// isOz reports whether an API version is one of Oz's.
func isOz(apiVersion string) bool { return ozGroup.MatchString(apiVersion) }

// typed are the types of the kinds.
var typed = map[string]func() any{
	"PodAccessTemplate":  func() any { return &v1alpha1.PodAccessTemplate{} },
	"ExecAccessTemplate": func() any { return &v1alpha1.ExecAccessTemplate{} },
	"PodAccessRequest":   func() any { return &v1alpha1.PodAccessRequest{} },
	"ExecAccessRequest":  func() any { return &v1alpha1.ExecAccessRequest{} },
}

func (o *ozObject) changed(field, format string, args ...any) {
	o.notes = append(o.notes, "changed: "+field+": "+fmt.Sprintf(format, args...))
}

// drop removes a field, and says why.
func (o *ozObject) drop(field []string, format string, args ...any) {
	unstructured.RemoveNestedField(o.Object, field...)
	o.dropping(strings.Join(field, "."), format, args...)
}

func (o *ozObject) dropping(field, format string, args ...any) {
	o.dropped++
	o.notes = append(o.notes, "dropped: "+field+": "+fmt.Sprintf(format, args...))
}

// lose says that the object cannot be carried over.
func (o *ozObject) lose(field, format string, args ...any) {
	o.lost = true
	o.notes = append(o.notes, "cannot be carried over: "+field+": "+fmt.Sprintf(format, args...))
}

func (o *ozObject) has(field ...string) bool {
	_, found, _ := unstructured.NestedFieldNoCopy(o.Object, field...)
	return found
}

func (o *ozObject) text(field ...string) string {
	value, _, _ := unstructured.NestedFieldNoCopy(o.Object, field...)
	if value == nil {
		return ""
	}
	return fmt.Sprint(value)
}

// set writes a value where there is an object to write it into.
func (o *ozObject) set(value any, field ...string) {
	if err := unstructured.SetNestedField(o.Object, value, field...); err != nil {
		o.lose(strings.Join(field, "."), "%v", err)
	}
}

func (o *ozObject) migrate() {
	for before, now := range map[string]string{"AccessTemplate": "PodAccessTemplate", "AccessRequest": "PodAccessRequest"} {
		if o.GetKind() == before {
			o.SetKind(now)
			o.changed("kind", "%s is called %s", before, now)
		}
	}
	if typed[o.GetKind()] == nil {
		o.lose("kind", "admitkit has no %s", o.GetKind())
		return
	}
	if deeper(o.Object, maxDepth) {
		o.lose("spec", "it is nested more than %d deep", maxDepth)
		return
	}
	o.SetAPIVersion(v1alpha1.GroupVersion.String())
	o.metadata()
	if _, isMap := o.Object["spec"].(map[string]any); !isMap {
		o.lose("spec", "there is none")
		return
	}
	switch o.GetKind() {
	case "PodAccessTemplate":
		// The first, because it would take hours to compute with some quantities.
		if err := v1alpha1.CheckQuantities(o.Object, &v1alpha1.PodAccessTemplate{}); err != nil {
			o.lose("spec", "%v", err)
			return
		}
		o.template()
		o.podTemplate()
	case "ExecAccessTemplate":
		o.template()
		if !o.has("spec", "controllerTargetRef") {
			o.lose("spec.controllerTargetRef", "there is none")
		}
	default:
		o.request()
	}
	o.unknown()
}

// requestedBy is the annotation in which Oz says who made a request.
const requestedBy = "crds.wizardofoz.co/requested-by"

// metadata removes what belongs to the object in the cluster, which the result is not.
func (o *ozObject) metadata() {
	for _, field := range []string{"uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "selfLink", "managedFields"} {
		unstructured.RemoveNestedField(o.Object, "metadata", field)
	}
	unstructured.RemoveNestedField(o.Object, "metadata", "annotations", "kubectl.kubernetes.io/last-applied-configuration")
	if asked := o.text("metadata", "annotations", requestedBy); asked != "" {
		unstructured.RemoveNestedField(o.Object, "metadata", "annotations", requestedBy)
		o.changed("metadata.annotations", "without %s: it names %q, who asked Oz", requestedBy, asked)
	}
	delete(o.Object, "status")
	for _, field := range []string{"finalizers", "ownerReferences"} {
		if o.has("metadata", field) {
			o.drop([]string{"metadata", field}, "it belongs to Oz's object")
		}
	}
}

// template rewrites what both kinds of template have.
func (o *ozObject) template() {
	moved := map[string][]string{
		"targetRef":       {"spec", "controllerTargetRef"},
		"allowedGroups":   {"spec", "accessConfig", "allowedGroups"},
		"defaultDuration": {"spec", "accessConfig", "defaultDuration"},
		"maxDuration":     {"spec", "accessConfig", "maxDuration"},
	}
	if o.GetKind() == "PodAccessTemplate" {
		moved["command"] = []string{"spec", "controllerTargetMutationConfig", "command"}
		moved["resources"] = []string{"spec", "controllerTargetMutationConfig", "resources"}
	}
	for before, now := range moved {
		value, found, _ := unstructured.NestedFieldCopy(o.Object, "spec", before)
		if !found {
			continue
		}
		unstructured.RemoveNestedField(o.Object, "spec", before)
		o.set(value, now...)
		o.changed("spec."+before, "is now %s", strings.Join(now, "."))
	}
	o.foreign([]string{"spec", "accessConfig"}, "allowedGroups", "defaultDuration", "maxDuration", "accessCommand")
	o.groups()
	o.durations()
	o.accessCommand()
	o.target()
	if o.subjects == "Groups" {
		o.set("Groups", "spec", "accessConfig", "subjects")
		o.changed("spec.accessConfig.subjects", "Groups: one asks, and all who may ask get in, as in Oz")
	} else {
		o.changed("spec.accessConfig.subjects", "only the engineer who asks gets in; for all who may ask, as in Oz, use --subjects Groups")
	}
}

// foreign drops the fields that Oz does not have. It ignored them, such as allowedUsers and
// onBehalfOf, and admitkit would give access by them.
func (o *ozObject) foreign(in []string, known ...string) {
	fields, _, _ := unstructured.NestedMap(o.Object, in...)
	for name := range fields {
		if !slices.Contains(known, name) {
			o.drop(append(slices.Clone(in), name), "Oz has no such field, and ignored it")
		}
	}
}

// groups removes names that allow nobody, or are there twice.
func (o *ozObject) groups() {
	const field = "spec.accessConfig.allowedGroups"
	groups, _, err := unstructured.NestedStringSlice(o.Object, "spec", "accessConfig", "allowedGroups")
	if err != nil {
		o.lose(field, "%v", err)
		return
	}
	var kept []string
	for i, group := range groups {
		switch {
		case group == "":
			o.dropping(fmt.Sprintf("%s[%d]", field, i), "an empty name allows nobody")
		case slices.Contains(kept, group):
			o.dropping(fmt.Sprintf("%s[%d]", field, i), "%q is there twice", group)
		default:
			kept = append(kept, group)
		}
	}
	switch {
	case len(kept) == 0:
		o.lose(field, "it names nobody, and the template would allow nobody")
	case len(kept) > 64:
		o.lose(field, "it has %d groups, at most 64 are allowed; make two templates", len(kept))
	default:
		values := make([]any, len(kept))
		for i := range kept {
			values[i] = kept[i]
		}
		o.set(values, "spec", "accessConfig", "allowedGroups")
	}
}

// durations makes the default fit the maximum.
func (o *ozObject) durations() {
	lengths := map[string]time.Duration{"defaultDuration": time.Hour, "maxDuration": 24 * time.Hour} // of both, if left out
	for field := range lengths {
		text := o.text("spec", "accessConfig", field)
		if text == "" {
			continue
		}
		length, err := time.ParseDuration(text)
		if err != nil || length <= 0 {
			o.lose("spec.accessConfig."+field, "%q is not a duration such as 90m, more than 0", text)
			return
		}
		lengths[field] = length
	}
	if longest := lengths["maxDuration"]; lengths["defaultDuration"] > longest {
		o.set(cli.Short(longest), "spec", "accessConfig", "defaultDuration")
		o.changed("spec.accessConfig.defaultDuration", "%s exceeds maxDuration, and is now %s", cli.Short(lengths["defaultDuration"]), cli.Short(longest))
	}
}

// understood are the actions of Go's templates that an accessCommand may have.
var (
	actions    = regexp.MustCompile(`\{\{.*?\}\}|\{\{`)
	understood = regexp.MustCompile(`^\{\{-?\s*(\.Metadata\.(Name|Namespace|GenerateName|UID)|\.Metadata\.(Labels|Annotations)\.[A-Za-z0-9_]+|index \.Metadata\.(Labels|Annotations) "[^"]*")\s*-?\}\}$`)
)

func (o *ozObject) accessCommand() {
	command := o.text("spec", "accessConfig", "accessCommand")
	for _, action := range actions.FindAllString(command, -1) {
		if !understood.MatchString(action) {
			o.drop([]string{"spec", "accessConfig", "accessCommand"}, "admitkit does not understand %s, and uses kubectl exec with /bin/sh; see operator/docs/from-oz.md", action)
			return
		}
	}
	if len(command) > 4096 {
		o.drop([]string{"spec", "accessConfig", "accessCommand"}, "it has %d bytes, at most 4096 are allowed", len(command))
	}
}

// versions are the API versions of the workloads.
var versions = map[string]string{
	"Deployment": "apps/v1", "DaemonSet": "apps/v1", "StatefulSet": "apps/v1", "ReplicaSet": "apps/v1",
	"Job": "batch/v1", "CronJob": "batch/v1", "Pod": "v1", "Rollout": "argoproj.io/v1alpha1",
}

func (o *ozObject) target() {
	if !o.has("spec", "controllerTargetRef") {
		return
	}
	kind, version := o.text("spec", "controllerTargetRef", "kind"), o.text("spec", "controllerTargetRef", "apiVersion")
	switch want := versions[kind]; {
	case want == "":
		o.lose("spec.controllerTargetRef.kind", "admitkit gives no access to a %q", kind)
	case version != want:
		o.set(want, "spec", "controllerTargetRef", "apiVersion")
		o.changed("spec.controllerTargetRef.apiVersion", "%q is now %s", version, want)
	}
}

// podTemplate rewrites what only a PodAccessTemplate has.
func (o *ozObject) podTemplate() {
	target, own := o.has("spec", "controllerTargetRef"), o.has("spec", "podSpec")
	if target == own {
		o.lose("spec", "one of controllerTargetRef and podSpec must be set, and only one")
		return
	}
	if own && o.has("spec", "controllerTargetMutationConfig") {
		o.drop([]string{"spec", "controllerTargetMutationConfig"}, "Oz does not apply it to a podSpec, and admitkit would; change podSpec instead")
	}
	for _, field := range []string{"maxCpu", "maxMemory", "maxStorage"} {
		text := o.text("spec", field)
		if text == "" {
			continue
		}
		limit, err := resource.ParseQuantity(text)
		switch {
		case err != nil:
			o.lose("spec."+field, "%q is not a quantity", text)
		case limit.Sign() <= 0:
			o.drop([]string{"spec", field}, "%s allows nothing; admitkit holds to it", text)
		default:
			o.changed("spec."+field, "admitkit holds to it: the containers of an access Pod have no more than %s together", text)
		}
	}
	o.patches()
}

// patches removes the operations that admitkit refuses.
func (o *ozObject) patches() {
	field := []string{"spec", "controllerTargetMutationConfig", "patchSpecOperations"}
	operations, found, err := unstructured.NestedSlice(o.Object, field...)
	if err != nil || !found {
		return // unknown finds what is no list
	}
	var kept []any
	for i, operation := range operations {
		operation, _ := operation.(map[string]any)
		path := fmt.Sprint(operation["path"])
		from, _ := operation["from"].(string)
		needsFrom := operation["op"] == "move" || operation["op"] == "copy"
		name := fmt.Sprintf("%s[%d]", strings.Join(field, "."), i)
		switch {
		case needsFrom && from == "":
			o.dropping(name, "%s needs from, which Oz did not have", operation["op"])
		case !strings.HasPrefix(path, "/spec/") && !strings.HasPrefix(path, "/metadata/labels") && !strings.HasPrefix(path, "/metadata/annotations"):
			o.dropping(name, "%q: of an access Pod only spec, labels and annotations can be patched", path)
		default:
			kept = append(kept, operation)
		}
	}
	if o.set(kept, field...); len(kept) == 0 {
		unstructured.RemoveNestedField(o.Object, field...)
	}
}

// request rewrites a request.
func (o *ozObject) request() {
	const longest = 52
	if name := o.GetName(); len(name) > longest {
		o.SetName(strings.TrimRight(name[:longest], "-."))
		o.changed("metadata.name", "it has %d characters, at most %d are allowed, and is now %s", len(name), longest, o.GetName())
	}
	if prefix := o.GetGenerateName(); len(prefix) > longest-5 {
		o.SetGenerateName(prefix[:longest-5])
		o.changed("metadata.generateName", "it has %d characters, at most %d are allowed, and is now %s", len(prefix), longest-5, o.GetGenerateName())
	}
	if text := o.text("spec", "duration"); text != "" {
		if length, err := time.ParseDuration(text); err != nil || length <= 0 {
			o.drop([]string{"spec", "duration"}, "%q is not a duration such as 90m, more than 0; the template's default counts", text)
		}
	}
	if o.text("spec", "templateName") == "" {
		o.lose("spec.templateName", "there is none")
	}
	o.foreign([]string{"spec"}, "templateName", "duration", "targetPod", "image")
	o.changed("spec.requester", "the requester is who applies it, and time counts from then")
}

// unknown removes the fields that admitkit does not have.
func (o *ozObject) unknown() {
	raw, err := json.Marshal(o.Object)
	if err != nil {
		o.lose("spec", "%v", err)
		return
	}
	if o.GetKind() == "PodAccessTemplate" && len(raw) > v1alpha1.MaxTemplateBytes {
		o.lose("spec", "the template has %d bytes, at most %d are allowed", len(raw), v1alpha1.MaxTemplateBytes)
		return
	}
	into := typed[o.GetKind()]()
	if pat, ok := into.(*v1alpha1.PodAccessTemplate); ok {
		into = &struct { // the type itself reads what it can, and reports no unknown field
			APIVersion string                          `json:"apiVersion"`
			Kind       string                          `json:"kind"`
			Metadata   metav1.ObjectMeta               `json:"metadata"`
			Spec       *v1alpha1.PodAccessTemplateSpec `json:"spec"`
		}{Spec: &pat.Spec}
	}
	strict, err := kjson.UnmarshalStrict(raw, into)
	if err != nil {
		o.lose("spec", "%v", err)
		return
	}
	for _, err := range strict {
		if match := unknownField.FindStringSubmatch(err.Error()); match != nil {
			remove(o.Object, match[1])
			o.dropping(match[1], "admitkit has no such field")
		} else {
			o.lose("spec", "%v", err)
		}
	}
	if len(strict) > 0 {
		o.known(into)
	}
}

// known makes sure that the fields that admitkit does not have are gone: not all may have
// been reported, and a name with a dot looks like a path.
func (o *ozObject) known(into any) {
	raw, err := json.Marshal(o.Object)
	if err != nil {
		o.lose("spec", "%v", err)
		return
	}
	strict, err := kjson.UnmarshalStrict(raw, into)
	if err = errors.Join(append(strict, err)...); err != nil {
		first, _, _ := strings.Cut(err.Error(), "\n")
		o.lose("spec", "%s", first)
	}
}

// maxDepth is how deep an object may be nested. Deeper ones would be indented to many times
// their size.
const maxDepth = 100

// deeper reports whether a value is nested more than limit deep.
func deeper(in any, limit int) bool {
	if limit < 0 {
		return true
	}
	switch in := in.(type) {
	case map[string]any:
		for _, value := range in {
			if deeper(value, limit-1) {
				return true
			}
		}
	case []any:
		return slices.ContainsFunc(in, func(value any) bool { return deeper(value, limit-1) })
	}
	return false
}

var (
	unknownField = regexp.MustCompile(`unknown field "(.*)"`)
	pathStep     = regexp.MustCompile(`[^.\[\]]+`)
)

// remove removes the field at a path such as spec.containers[0].image.
func remove(in any, path string) {
	steps := pathStep.FindAllString(path, -1)
	for i, step := range steps {
		switch value := in.(type) {
		case map[string]any:
			if i == len(steps)-1 {
				delete(value, step)
			}
			in = value[step]
		case []any:
			n := 0
			if _, err := fmt.Sscan(step, &n); err != nil || n < 0 || n >= len(value) {
				return
			}
			in = value[n]
		}
	}
}
