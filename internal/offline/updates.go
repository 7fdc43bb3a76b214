package offline

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	admissionv1 "k8s.io/api/admission/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/json"
)

// fate is what the API server does with a changed field.
type fate int

const (
	taken   fate = iota // it stores the change
	refused             // it refuses the update
	ignored             // it takes the field from the old object
)

// change is a field that an update changes.
type change struct {
	was, is any
	// old and object are the objects before and after the update.
	old, object map[string]any
}

// law says what becomes of changes at and below some paths, which may have * for an index
// or a key. Of several laws for a field, the one with the longest path holds.
type law struct {
	paths string
	fate  func(change) fate
}

func always(f fate) func(change) fate { return func(change) fate { return f } }

var take, refuse, ignore = always(taken), always(refused), always(ignored)

// takeIf takes the changes for which a condition holds, and refuses the others.
func takeIf(holds func(change) bool) func(change) fate {
	return func(c change) fate {
		if holds(c) {
			return taken
		}
		return refused
	}
}

// identity has the fields that identify an object and those that only the API server sets.
const identity = "apiVersion kind metadata.name metadata.generateName metadata.namespace metadata.uid " +
	"metadata.resourceVersion metadata.creationTimestamp metadata.deletionTimestamp metadata.generation"

// updates has the laws for the UPDATE of each kind, and of subresources. They follow the
// strategies of k8s.io/kubernetes/pkg/registry and what these validate. A test compares
// them with what a real API server of 1.37 says; older ones refuse some more.
var updates = map[string][]law{
	"Pod": {
		{"spec", refuse},
		{"spec.containers.*.image spec.initContainers.*.image", take},
		{"spec.activeDeadlineSeconds", takeIf(lowered)},
		{"spec.tolerations", takeIf(func(c change) bool { return contains(timeless(c.is), timeless(c.was)) })},
		{"spec.schedulingGates", takeIf(func(c change) bool { return contains(c.was, c.is) })},
		{"spec.terminationGracePeriodSeconds", takeIf(func(c change) bool { return number(c.was) < 0 && number(c.is) == 1 })},
		{"spec.nodeSelector", takeIf(func(c change) bool { return gated(c) && contains(c.is, c.was) })},
		{"spec.affinity.nodeAffinity", takeIf(gated)},
		{"spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution", takeIf(func(c change) bool { return gated(c) && narrowed(c) })},
	},
	"Pod/status":              {{"metadata.ownerReferences", ignore}},
	"Pod/ephemeralcontainers": {{"metadata spec status", ignore}, {"spec.ephemeralContainers", takeIf(added)}},
	"Pod/resize": {
		{"metadata spec status spec.containers.* spec.initContainers.*", ignore},
		{"spec.containers spec.initContainers", refuse},
		{"spec.containers.*.resources spec.initContainers.*.resources", take},
		{"spec.containers.*.resources.limits.* spec.initContainers.*.resources.limits.*", takeIf(func(c change) bool { return c.is != nil })},
	},
	"Service":   {{"spec.clusterIP spec.clusterIPs", takeIf(func(c change) bool { return empty(c.is) || external(c.old) || external(c.object) })}},
	"Secret":    {{"type", refuse}, {"data stringData immutable", takeIf(thawed)}},
	"ConfigMap": {{"data binaryData immutable", takeIf(thawed)}},
	"PersistentVolumeClaim": {
		{"spec", refuse},
		{"spec.resources.requests.storage", takeIf(func(c change) bool { return bound(c) && fits(c) })},
		{"spec.volumeAttributesClassName", takeIf(bound)},
		{"spec.volumeName spec.storageClassName", takeIf(unset)},
	},
	"PersistentVolume": {
		{"spec", refuse},
		{"spec.capacity spec.accessModes spec.claimRef spec.mountOptions spec.persistentVolumeReclaimPolicy spec.storageClassName spec.volumeAttributesClassName", take},
		{"spec.nodeAffinity spec.csi.controllerExpandSecretRef", takeIf(unset)},
	},
	"Node":               {{"spec.podCIDR spec.podCIDRs spec.providerID", takeIf(unset)}},
	"Namespace":          {{"spec", ignore}},
	"Namespace/status":   {{"status.phase", takeIf(func(c change) bool { return at(c.old, "metadata", "deletionTimestamp") != nil })}},
	"Namespace/finalize": {{"spec status", ignore}, {"spec.finalizers", take}},
	"ResourceQuota":      {{"spec.scopes", refuse}},

	"ControllerRevision.apps": {{"data", refuse}},
	"DaemonSet.apps":          {{"spec.selector", refuse}},
	"Deployment.apps":         {{"spec.selector", refuse}},
	"Deployment.apps/status":  {{"metadata.labels", ignore}},
	"ReplicaSet.apps":         {{"spec.selector", refuse}},
	"StatefulSet.apps": {
		{"spec", refuse},
		{"spec.replicas spec.template spec.updateStrategy spec.minReadySeconds spec.revisionHistoryLimit spec.ordinals spec.persistentVolumeClaimRetentionPolicy", take},
	},
	"Scale.autoscaling/scale": {{"*", ignore}, {"spec.replicas", take}},
	"Job.batch": {
		{"spec.selector spec.template spec.completionMode spec.podFailurePolicy spec.backoffLimitPerIndex spec.managedBy spec.successPolicy", refuse},
		{"spec.completions", takeIf(elastic)},
		{"spec.template.metadata.labels spec.template.metadata.annotations spec.template.spec.nodeSelector spec.template.spec.tolerations " +
			"spec.template.spec.schedulingGates spec.template.spec.affinity.nodeAffinity spec.template.spec.containers.*.resources " +
			"spec.template.spec.initContainers.*.resources", takeIf(waits)},
	},

	"CertificateSigningRequest.certificates.k8s.io":          {{"spec", ignore}},
	"CertificateSigningRequest.certificates.k8s.io/approval": {{"spec status", ignore}, {"status.conditions", take}},
	"ClusterRoleBinding.rbac.authorization.k8s.io":           {{"roleRef", refuse}},
	"CSIDriver.storage.k8s.io":                               {{"spec.attachRequired spec.volumeLifecycleModes", refuse}},
	"CSINode.storage.k8s.io":                                 {{"spec.drivers", takeIf(driversKept)}},
	"CSIStorageCapacity.storage.k8s.io":                      {{"nodeTopology storageClassName", refuse}},
	"CustomResourceDefinition.apiextensions.k8s.io":          {{"spec.group spec.scope spec.names.plural", refuse}},
	"EndpointSlice.discovery.k8s.io":                         {{"addressType", refuse}},
	"Event.events.k8s.io":                                    {{"action eventTime note reason regarding related reportingController reportingInstance type", refuse}},
	"IngressClass.networking.k8s.io":                         {{"spec.controller", refuse}},
	"IPAddress.networking.k8s.io":                            {{"spec", refuse}},
	"PriorityClass.scheduling.k8s.io":                        {{"value preemptionPolicy", refuse}},
	"ResourceClaim.resource.k8s.io":                          {{"spec", refuse}},
	"ResourceClaim.resource.k8s.io/status":                   {{"metadata", ignore}},
	"ResourceClaimTemplate.resource.k8s.io":                  {{"spec", refuse}},
	"ResourceSlice.resource.k8s.io":                          {{"spec.driver spec.nodeName spec.pool.name", refuse}},
	"RoleBinding.rbac.authorization.k8s.io":                  {{"roleRef", refuse}},
	"RuntimeClass.node.k8s.io":                               {{"handler", refuse}},
	"ServiceCIDR.networking.k8s.io":                          {{"spec.cidrs", refuse}},
	"StorageClass.storage.k8s.io":                            {{"provisioner parameters reclaimPolicy volumeBindingMode", refuse}},
	"VolumeAttachment.storage.k8s.io":                        {{"spec", refuse}},
	"VolumeAttributesClass.storage.k8s.io":                   {{"driverName parameters", refuse}},
}

// status reports whether a kind has the subresource status, and whether a
// CustomResourceDefinition defines it.
func (k *Kinds) status(kind schema.GroupKind) (has, custom bool) {
	_, custom = k.Custom()[kind]
	return slices.Contains(k.Subresources(kind), "status"), custom
}

// laws returns the laws for an update of the object or of its subresource.
func (r *Request) laws() []law {
	kind := r.Kind.GroupKind().String()
	switch {
	case r.SubResource == "status" && r.custom:
		return []law{{"*", ignore}, {"status", take}}
	case r.SubResource == "status":
		return append([]law{{"*", ignore}, {"metadata status", take}}, updates[kind+"/status"]...)
	case r.SubResource != "":
		return updates[kind+"/"+r.SubResource]
	case r.hasStatus:
		return append([]law{{"status", ignore}}, updates[kind]...)
	}
	return updates[kind]
}

// inVain says that an ignored change is one.
func (r *Request) inVain() string {
	of := r.Resource.Resource
	if r.Operation == admissionv1.Create {
		return "sets the status, which the API server drops when it creates " + of + "; set it by the subresource status"
	}
	if r.SubResource != "" {
		of += "/" + r.SubResource
	}
	return "changes a field that an update of " + of + " does not change"
}

// Lost returns the changes of an object that the API server refuses, and those that it
// ignores, if a webhook makes them.
func (r *Request) Lost(before, after []byte) (refusals, vain []string, err error) {
	if r.Operation == admissionv1.Connect || r.Operation == admissionv1.Delete {
		return nil, nil, nil // nothing is stored
	}
	var from, to, old map[string]any
	for into, text := range map[*map[string]any][]byte{&from: before, &to: after, &old: r.OldObject} {
		if len(text) == 0 {
			continue
		}
		if err := json.Unmarshal(text, into); err != nil {
			return nil, nil, fmt.Errorf("decoding the object: %w", err)
		}
	}
	laws := r.laws()
	differ(nil, from, to, func(path []string, was, is any) {
		fate := taken
		switch {
		case matched(identity, path) > 0:
			fate = refused
		case r.Operation == admissionv1.Create && r.hasStatus && r.custom && path[0] == "status":
			fate = ignored
		case r.Operation == admissionv1.Update && !same(at(old, path...), is): // else it was so before the update
			fate = fateOf(laws, path, old, to)
		}
		switch fate {
		case refused:
			refusals = append(refusals, changed(path, was, is))
		case ignored:
			vain = append(vain, changed(path, was, is))
		}
	})
	return refusals, vain, nil
}

// dropsStatus reports whether the status of an object was left out of the patch, because
// the API server drops it when it creates the object.
func (r *Request) dropsStatus(before, after []byte) bool {
	if r.Operation != admissionv1.Create || r.SubResource != "" || r.custom {
		return false
	}
	var from, to struct {
		Status any `json:"status"`
	}
	return json.Unmarshal(before, &from) == nil && json.Unmarshal(after, &to) == nil && same(from.Status, to.Status)
}

// statusChanges returns how the status of an object differs.
func statusChanges(before, after runtime.Object) (changes []string) {
	var status [2]any
	for i, object := range []runtime.Object{before, after} {
		fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
		if err != nil {
			return nil // it has no JSON, so it has no changes that count
		}
		status[i] = fields["status"]
	}
	differ([]string{"status"}, status[0], status[1], func(path []string, was, is any) { changes = append(changes, changed(path, was, is)) })
	return changes
}

// changed describes the change of a field.
func changed(path []string, was, is any) string {
	return fmt.Sprintf("%s: %s -> %s", strings.Join(path, "."), short(was), short(is))
}

// fateOf returns what becomes of a changed field.
func fateOf(laws []law, path []string, old, object map[string]any) fate {
	longest, decides := 0, law{fate: take}
	for _, l := range laws {
		if n := matched(l.paths, path); n > 0 && n >= longest {
			longest, decides = n, l
		}
	}
	return decides.fate(change{at(old, path[:longest]...), at(object, path[:longest]...), old, object})
}

// matched returns the number of steps of the longest of some paths that a path is at or below.
func matched(paths string, path []string) int {
	longest := 0
	for pattern := range strings.FieldsSeq(paths) {
		steps := strings.Split(pattern, ".")
		if len(steps) > longest && len(steps) <= len(path) && matches(steps, path) {
			longest = len(steps)
		}
	}
	return longest
}

func matches(steps, path []string) bool {
	for i, step := range steps {
		if step != "*" && step != path[i] {
			return false
		}
	}
	return true
}

// at returns the value at a path, or nil.
func at(object any, path ...string) any {
	for _, step := range path {
		switch o := object.(type) {
		case map[string]any:
			object = o[step]
		case []any:
			i, err := strconv.Atoi(step)
			if err != nil || i >= len(o) {
				return nil
			}
			object = o[i]
		default:
			return nil
		}
	}
	return object
}

// same reports whether two values are the same to an API server.
func same(a, b any) bool { return empty(a) && empty(b) || reflect.DeepEqual(a, b) }

func empty(value any) bool {
	v := reflect.ValueOf(value)
	switch v.Kind() {
	case reflect.Map, reflect.Slice, reflect.String:
		return v.Len() == 0
	}
	return value == nil
}

// differ calls found for each field that differs, and for each list of another length.
func differ(path []string, before, after any, found func(path []string, before, after any)) {
	if same(before, after) {
		return
	}
	below := func(step string) []string { return append(slices.Clip(path), step) }
	from, isMap := before.(map[string]any)
	to, becomesMap := after.(map[string]any)
	if isMap && (becomesMap || after == nil) || becomesMap && before == nil {
		keys := slices.AppendSeq(slices.Collect(maps.Keys(from)), maps.Keys(to))
		slices.Sort(keys)
		for _, key := range slices.Compact(keys) {
			differ(below(key), from[key], to[key], found)
		}
		return
	}
	list, isList := before.([]any)
	other, staysList := after.([]any)
	if isList && staysList && len(list) == len(other) {
		for i := range list {
			differ(below(strconv.Itoa(i)), list[i], other[i], found)
		}
		return
	}
	found(path, before, after)
}

// The conditions of laws.

func number(value any) int64 { n, _ := value.(int64); return n }

// lowered allows what an activeDeadlineSeconds may become.
func lowered(c change) bool { return c.was == nil || c.is != nil && number(c.is) <= number(c.was) }

// contains reports whether a list or map has all that another has.
func contains(all, part any) bool {
	switch part := part.(type) {
	case []any:
		list, _ := all.([]any)
		return !slices.ContainsFunc(part, func(item any) bool {
			return !slices.ContainsFunc(list, func(other any) bool { return reflect.DeepEqual(item, other) })
		})
	case map[string]any:
		fields, _ := all.(map[string]any)
		for key, value := range part {
			if !reflect.DeepEqual(fields[key], value) {
				return false
			}
		}
	}
	return true
}

func added(c change) bool { return contains(c.is, c.was) }

// timeless returns tolerations without their seconds, which may change.
func timeless(tolerations any) any {
	list, _ := runtime.DeepCopyJSONValue(tolerations).([]any)
	for _, toleration := range list {
		if fields, ok := toleration.(map[string]any); ok {
			delete(fields, "tolerationSeconds")
		}
	}
	return list
}

// gated reports whether a Pod waits for a scheduling gate.
func gated(c change) bool { return !empty(at(c.old, "spec", "schedulingGates")) }

// narrowed allows that the terms of a node selector select less.
func narrowed(c change) bool {
	was, _ := at(c.was, "nodeSelectorTerms").([]any)
	is, _ := at(c.is, "nodeSelectorTerms").([]any)
	if was == nil {
		return true
	}
	if len(was) != len(is) {
		return false
	}
	for i := range was {
		for _, list := range []string{"matchExpressions", "matchFields"} {
			if !contains(at(is[i], list), at(was[i], list)) {
				return false
			}
		}
	}
	return true
}

func external(service map[string]any) bool { return at(service, "spec", "type") == "ExternalName" }

func bound(c change) bool { return at(c.old, "status", "phase") == "Bound" }

func thawed(c change) bool { return c.old["immutable"] != true }

func unset(c change) bool { return empty(c.was) }

// fits reports whether a claim asks for no less than before, or for more than it has.
func fits(c change) bool {
	return quantity(c.is).Cmp(*quantity(c.was)) >= 0 || quantity(c.is).Cmp(*quantity(at(c.old, "status", "capacity", "storage"))) > 0
}

// quantity returns a quantity, or zero for what is none.
func quantity(value any) *resource.Quantity {
	text, _ := value.(string)
	q, err := resource.ParseQuantity(text)
	if err != nil {
		return &resource.Quantity{}
	}
	return &q
}

// elastic reports whether an indexed Job gets as many completions as Pods at a time.
func elastic(c change) bool {
	return at(c.old, "spec", "completionMode") == "Indexed" && c.is == at(c.object, "spec", "parallelism")
}

// waits reports whether a Job is suspended and has not started.
func waits(c change) bool {
	return at(c.old, "spec", "suspend") == true && at(c.old, "status", "startTime") == nil
}

// driversKept reports whether each driver that remains has the ID and the keys that it had.
func driversKept(c change) bool {
	was, _ := c.was.([]any)
	is, _ := c.is.([]any)
	return !slices.ContainsFunc(was, func(driver any) bool {
		return slices.ContainsFunc(is, func(other any) bool {
			differs := func(field string) bool { return !same(at(driver, field), at(other, field)) }
			return !differs("name") && (differs("nodeID") || differs("topologyKeys"))
		})
	})
}
