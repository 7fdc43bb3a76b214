package hook_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/openapi"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/operator/internal/hook/apply"
	"github.com/admitkit/admitkit/operator/internal/hook/compose"
)

// kindCase is a kind of children: an object that is valid, where its Pods are, and a field
// that can be changed.
type kindCase struct {
	resource   schema.GroupVersionResource
	kind       string
	cluster    bool
	object     object
	pod        []string
	field      []string
	value      any
	variations map[string]object // merged into the object, as a patch
}

func resource(group, version, plural string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: group, Version: version, Resource: plural}
}

// podSpec is that of all kinds with Pods.
func podSpec(with ...object) object {
	container := object{"name": "main", "image": "main:1"}
	for _, each := range with {
		maps.Copy(container, each)
	}
	return object{"containers": []any{container}}
}

// podVariations are what users write in Pods, and what an apply refuses, or the API server
// keeps in another form than it was sent.
var podVariations = map[string]object{
	"plain":                         podSpec(),
	"two ports of one number":       podSpec(object{"ports": []any{object{"name": "http", "containerPort": int64(8080)}, object{"name": "metrics", "containerPort": int64(8080)}}}),
	"a port of two protocols":       podSpec(object{"ports": []any{object{"containerPort": int64(53), "protocol": "TCP"}, object{"containerPort": int64(53), "protocol": "UDP"}}}),
	"an env name twice":             podSpec(object{"env": []any{object{"name": "A", "value": "1"}, object{"name": "A", "value": "2"}}}),
	"an env that is null":           podSpec(object{"env": nil, "args": nil}),
	"a null in a list":              podSpec(object{"env": []any{object{"name": "A", "value": nil}}}),
	"empty lists and objects":       podSpec(object{"env": []any{}, "args": []any{}, "resources": object{}, "securityContext": object{}}),
	"empty values":                  podSpec(object{"env": []any{object{"name": "A", "value": ""}}, "workingDir": ""}),
	"quantities":                    podSpec(object{"resources": object{"limits": object{"cpu": "1000m", "memory": "1024Mi"}, "requests": object{"cpu": 0.5, "memory": int64(1048576)}}}),
	"ports by number and by name":   podSpec(object{"ports": []any{object{"name": "http", "containerPort": int64(80)}}, "livenessProbe": object{"httpGet": object{"port": "http"}}, "readinessProbe": object{"tcpSocket": object{"port": int64(80)}}}),
	"a header twice":                podSpec(object{"livenessProbe": object{"httpGet": object{"port": int64(80), "httpHeaders": []any{object{"name": "A", "value": "1"}, object{"name": "A", "value": "2"}}}}}),
	"references with defaults":      podSpec(object{"env": []any{object{"name": "A", "valueFrom": object{"fieldRef": object{"fieldPath": "metadata.name"}}}}}),
	"envFrom twice":                 podSpec(object{"envFrom": []any{object{"configMapRef": object{"name": "a", "optional": true}}, object{"configMapRef": object{"name": "a", "optional": true}}}}),
	"a pull secret twice":           with(podSpec(), object{"imagePullSecrets": []any{object{"name": "a"}, object{"name": "a"}}}),
	"a toleration twice":            with(podSpec(), object{"tolerations": []any{object{"key": "a", "operator": "Exists"}, object{"key": "a", "operator": "Exists"}}}),
	"a host alias twice":            with(podSpec(), object{"hostAliases": []any{object{"ip": "10.0.0.1", "hostnames": []any{"a"}}, object{"ip": "10.0.0.1", "hostnames": []any{"b"}}}}),
	"a volume mounted twice":        with(podSpec(object{"volumeMounts": []any{object{"name": "v", "mountPath": "/a"}, object{"name": "v", "mountPath": "/b"}}}), object{"volumes": []any{object{"name": "v", "emptyDir": object{}}}}),
	"a projected volume":            with(podSpec(), object{"volumes": []any{object{"name": "v", "projected": object{"sources": []any{object{"configMap": object{"name": "a", "items": []any{object{"key": "a", "path": "x"}, object{"key": "a", "path": "y"}}}}, object{"downwardAPI": object{"items": []any{object{"path": "t", "fieldRef": object{"fieldPath": "metadata.name"}}}}}}}}}}),
	"a spread of one key, twice":    with(podSpec(), object{"topologySpreadConstraints": []any{object{"maxSkew": int64(1), "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": object{"matchLabels": object{"app": "a"}}}, object{"maxSkew": int64(1), "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": object{"matchLabels": object{"app": "a"}}}}}),
	"a seconds field as a float":    with(podSpec(), object{"terminationGracePeriodSeconds": 5.0}),
	"an empty affinity":             with(podSpec(), object{"affinity": object{}, "nodeSelector": object{}}),
	"two containers and their init": with(podSpec(), object{"initContainers": []any{object{"name": "b", "image": "b"}, object{"name": "a", "image": "a"}}}),
}

func template(spec object) object {
	return object{"metadata": object{"labels": object{"app": "a"}}, "spec": spec}
}

// kindCases are the kinds that hooks make. Those with Pods have all variations of them.
func kindCases() []kindCase {
	selector := object{"matchLabels": object{"app": "a"}}
	image := []string{"spec", "template", "spec", "containers", "0", "image"}
	batch := with(podSpec(), object{"restartPolicy": "Never"})
	data := []string{"data", "a"}
	return []kindCase{
		{resource: resource("", "v1", "pods"), kind: "Pod", pod: []string{"spec"}, field: []string{"spec", "containers", "0", "image"}, value: "main:2", object: object{"spec": podSpec()}},
		{resource: resource("apps", "v1", "deployments"), kind: "Deployment", field: image, value: "main:2", object: object{"spec": object{"selector": selector, "template": template(podSpec())}}, variations: map[string]object{
			"a strategy of percents": {"spec": object{"strategy": object{"rollingUpdate": object{"maxSurge": "30%", "maxUnavailable": int64(1)}}, "replicas": int64(0)}},
		}},
		{resource: resource("apps", "v1", "statefulsets"), kind: "StatefulSet", field: image, value: "main:2", object: object{"spec": object{"serviceName": "a", "selector": selector, "template": template(podSpec())}}, variations: map[string]object{
			"claims": {"spec": object{"volumeClaimTemplates": []any{object{"metadata": object{"name": "c"}, "spec": object{"accessModes": []any{"ReadWriteOnce"}, "resources": object{"requests": object{"storage": "1024Mi"}}}}}}},
		}},
		{resource: resource("apps", "v1", "daemonsets"), kind: "DaemonSet", field: image, value: "main:2", object: object{"spec": object{"selector": selector, "template": template(podSpec())}}},
		{resource: resource("apps", "v1", "deployments"), kind: "Deployment", field: []string{"spec", "strategy", "type"}, value: "Recreate", object: object{"spec": object{"strategy": object{"type": "RollingUpdate"}, "selector": selector, "template": template(podSpec())}}},
		{resource: resource("apps", "v1", "daemonsets"), kind: "DaemonSet", field: []string{"spec", "updateStrategy", "type"}, value: "OnDelete", object: object{"spec": object{"updateStrategy": object{"type": "RollingUpdate"}, "selector": selector, "template": template(podSpec())}}},
		{resource: resource("apps", "v1", "statefulsets"), kind: "StatefulSet", field: []string{"spec", "updateStrategy", "type"}, value: "OnDelete", object: object{"spec": object{"updateStrategy": object{"type": "RollingUpdate"}, "serviceName": "a", "selector": selector, "template": template(podSpec())}}},
		{resource: resource("", "v1", "services"), kind: "Service", field: []string{"spec", "type"}, value: "ClusterIP", object: object{"spec": object{"type": "LoadBalancer", "ports": []any{object{"port": int64(80)}}}}},
		{resource: resource("apps", "v1", "replicasets"), kind: "ReplicaSet", field: []string{"spec", "replicas"}, value: int64(0), object: object{"spec": object{"selector": selector, "template": template(podSpec())}}},
		{resource: resource("batch", "v1", "jobs"), kind: "Job", field: []string{"spec", "suspend"}, value: true, object: object{"spec": object{"template": object{"spec": batch}}}},
		{resource: resource("batch", "v1", "cronjobs"), kind: "CronJob", field: []string{"spec", "schedule"}, value: "1 0 * * *", object: object{"spec": object{"schedule": "0 0 * * *", "jobTemplate": object{"spec": object{"template": object{"spec": batch}}}}}},
		{resource: resource("", "v1", "podtemplates"), kind: "PodTemplate", field: []string{"template", "spec", "containers", "0", "image"}, value: "main:2", pod: []string{"template", "spec"}, object: object{"template": template(podSpec())}},
		{resource: resource("", "v1", "configmaps"), kind: "ConfigMap", field: data, value: "2", object: object{"data": object{"a": "1"}}, variations: map[string]object{
			"nothing":                {"data": nil},
			"a null":                 {"data": object{"b": nil}},
			"empty":                  {"data": object{"b": ""}, "binaryData": object{}},
			"binary":                 {"binaryData": object{"b": "AAEC"}},
			"null labels":            {"metadata": object{"labels": nil, "annotations": nil}},
			"empty labels":           {"metadata": object{"labels": object{}, "annotations": object{}, "finalizers": []any{}}},
			"300 KiB":                {"data": object{"much": string(slices.Repeat([]byte("x"), 300<<10))}},
			"20,000 keys":            {"data": many(20_000)},
			"finalizers":             {"metadata": object{"finalizers": []any{"example.com/a", "example.com/b"}}},
			"annotations of 256 KiB": {"metadata": object{"annotations": object{"much": string(slices.Repeat([]byte("x"), 256<<10-200))}}},
		}},
		{resource: resource("", "v1", "secrets"), kind: "Secret", field: []string{"stringData", "a"}, value: "2", object: object{"stringData": object{"a": "1"}}, variations: map[string]object{
			"both": {"data": object{"a": "MA==", "b": "MQ=="}}, "with a type": {"type": "Opaque"}, "immutable or not": {"immutable": false},
		}},
		{resource: resource("", "v1", "services"), kind: "Service", field: []string{"spec", "selector", "app"}, value: "b", object: object{"spec": object{"selector": object{"app": "a"}, "ports": []any{object{"port": int64(80)}}}}, variations: map[string]object{
			"a port of two protocols": {"spec": object{"ports": []any{object{"name": "a", "port": int64(53), "protocol": "TCP"}, object{"name": "b", "port": int64(53), "protocol": "UDP"}}}},
			"target ports":            {"spec": object{"ports": []any{object{"name": "a", "port": int64(80), "targetPort": "http"}, object{"name": "b", "port": int64(81), "targetPort": int64(8081)}}}},
			"headless":                {"spec": object{"clusterIP": "None"}},
			"external IPs twice":      {"spec": object{"externalIPs": []any{"192.0.2.1", "192.0.2.1"}}},
			"a node port":             {"spec": object{"type": "NodePort"}},
			"ranges":                  {"spec": object{"type": "LoadBalancer", "loadBalancerSourceRanges": []any{"10.0.0.0/8", "10.0.0.0/8"}}},
		}},
		{resource: resource("", "v1", "serviceaccounts"), kind: "ServiceAccount", field: []string{"automountServiceAccountToken"}, value: false, object: object{"automountServiceAccountToken": true}, variations: map[string]object{
			"secrets twice": {"secrets": []any{object{"name": "a"}, object{"name": "a"}}, "imagePullSecrets": []any{object{"name": "a"}, object{"name": "a"}}},
		}},
		{resource: resource("", "v1", "persistentvolumeclaims"), kind: "PersistentVolumeClaim", field: []string{"metadata", "labels", "x"}, value: "2", object: object{"spec": object{"accessModes": []any{"ReadWriteOnce"}, "resources": object{"requests": object{"storage": "1024Mi"}}}}},
		{resource: resource("", "v1", "resourcequotas"), kind: "ResourceQuota", field: []string{"spec", "hard", "pods"}, value: "2k", object: object{"spec": object{"hard": object{"pods": int64(1000), "requests.cpu": "1000"}}}},
		{resource: resource("", "v1", "limitranges"), kind: "LimitRange", field: []string{"spec", "limits", "0", "max", "cpu"}, value: "2", object: object{"spec": object{"limits": []any{object{"type": "Container", "max": object{"cpu": "1000m"}}}}}},
		{resource: resource("networking.k8s.io", "v1", "networkpolicies"), kind: "NetworkPolicy", field: []string{"spec", "podSelector", "matchLabels", "app"}, value: "b", object: object{"spec": object{"podSelector": selector, "ingress": []any{object{"ports": []any{object{"port": int64(80)}, object{"port": "http"}}}}}}, variations: map[string]object{
			"one of all":           {"spec": object{"ingress": []any{object{}}, "egress": []any{}}},
			"a port twice":         {"spec": object{"ingress": []any{object{"ports": []any{object{"port": int64(80)}, object{"port": int64(80)}}}}}},
			"empty selectors":      {"spec": object{"ingress": []any{object{"from": []any{object{"podSelector": object{}}, object{"namespaceSelector": object{}}}}}}},
			"a policy type, twice": {"spec": object{"policyTypes": []any{"Ingress", "Ingress"}}},
		}},
		{resource: resource("networking.k8s.io", "v1", "ingresses"), kind: "Ingress", field: []string{"spec", "rules", "0", "host"}, value: "b.example.com", object: object{"spec": object{"rules": []any{object{"host": "a.example.com", "http": object{"paths": []any{
			object{"path": "/", "pathType": "Prefix", "backend": object{"service": object{"name": "a", "port": object{"number": int64(80)}}}},
			object{"path": "/", "pathType": "Exact", "backend": object{"service": object{"name": "b", "port": object{"name": "http"}}}},
		}}}}}}},
		{resource: resource("rbac.authorization.k8s.io", "v1", "roles"), kind: "Role", field: []string{"rules", "0", "verbs", "0"}, value: "list", object: object{"rules": []any{object{"apiGroups": []any{""}, "resources": []any{"pods", "pods"}, "verbs": []any{"get"}}}}, variations: map[string]object{
			"no rules": {"rules": []any{object{"apiGroups": []any{""}, "resources": []any{"pods"}, "resourceNames": []any{}, "verbs": []any{"get"}}}},
		}},
		{resource: resource("rbac.authorization.k8s.io", "v1", "rolebindings"), kind: "RoleBinding", field: []string{"subjects", "0", "name"}, value: "other", object: roleBinding("x", "view"), variations: map[string]object{
			"a subject twice": {"subjects": []any{object{"kind": "User", "name": "jane"}, object{"kind": "User", "name": "jane"}}},
		}},
		{resource: resource("rbac.authorization.k8s.io", "v1", "clusterroles"), kind: "ClusterRole", cluster: true, field: []string{"rules", "0", "verbs", "0"}, value: "list", object: object{"rules": []any{object{"nonResourceURLs": []any{"/a"}, "verbs": []any{"get"}}}}},
		{resource: resource("policy", "v1", "poddisruptionbudgets"), kind: "PodDisruptionBudget", field: []string{"spec", "maxUnavailable"}, value: "20%", object: object{"spec": object{"maxUnavailable": int64(1), "selector": selector}}},
		{resource: resource("autoscaling", "v2", "horizontalpodautoscalers"), kind: "HorizontalPodAutoscaler", field: []string{"spec", "maxReplicas"}, value: int64(4), object: object{"spec": object{"maxReplicas": int64(3), "scaleTargetRef": object{"apiVersion": "apps/v1", "kind": "Deployment", "name": "a"}, "metrics": []any{
			object{"type": "Resource", "resource": object{"name": "cpu", "target": object{"type": "AverageValue", "averageValue": "1000m"}}},
			object{"type": "Resource", "resource": object{"name": "cpu", "target": object{"type": "Utilization", "averageUtilization": int64(50)}}},
		}}}},
		{resource: resource("coordination.k8s.io", "v1", "leases"), kind: "Lease", field: []string{"spec", "holderIdentity"}, value: "b", object: object{"spec": object{"holderIdentity": "a", "leaseDurationSeconds": int64(10), "renewTime": "2030-01-01T00:00:00.000000Z"}}},
		{resource: resource("discovery.k8s.io", "v1", "endpointslices"), kind: "EndpointSlice", field: []string{"endpoints", "0", "nodeName"}, value: "b", object: object{"addressType": "IPv4", "endpoints": []any{object{"addresses": []any{"10.0.0.1"}, "nodeName": "a"}}, "ports": []any{object{"name": "a", "port": int64(80)}, object{"name": "b", "port": int64(80)}}}},
		{resource: resource("scheduling.k8s.io", "v1", "priorityclasses"), kind: "PriorityClass", cluster: true, field: []string{"description"}, value: "b", object: object{"value": int64(-5), "description": "a"}},
		{resource: resource("example.com", "v1", "things"), kind: "Thing", field: []string{"spec", "a"}, value: "2", object: object{"spec": object{"a": "1", "list": []any{object{"name": "a"}, object{"name": "a"}}}}, variations: map[string]object{
			"nulls":   {"spec": object{"b": nil, "list": []any{nil, object{"name": nil}, int64(1)}}},
			"empties": {"spec": object{"b": object{}, "list": []any{}, "c": "", "d": false, "e": int64(0)}},
			"numbers": {"spec": object{"b": 1.0, "c": 0.1, "d": 1e3, "e": int64(1) << 62}},
			"nested":  {"spec": object{"list": []any{[]any{int64(1)}, []any{object{}}}}},
		}},
		{resource: resource("example.com", "v1", "schemas"), kind: "Schema", field: []string{"spec", "field"}, value: "2", object: object{"spec": object{"field": "1"}}, variations: map[string]object{
			"a null that is allowed":      {"spec": object{"nullable": nil}},
			"a null with a default":       {"spec": object{"defaulted": nil}},
			"a null in place of one":      {"spec": object{"nullableDefaulted": nil}},
			"fields that are pruned":      {"spec": object{"unknown": "a"}},
			"int or string":               {"spec": object{"port": "http"}},
			"a map list with a default":   {"spec": object{"ports": []any{object{"port": int64(53)}, object{"port": int64(53), "protocol": "UDP"}}}},
			"a set":                       {"spec": object{"set": []any{"a", "b"}}},
			"a list of names":             {"spec": object{"names": []any{object{"name": "a"}, object{"name": "b"}}}},
			"a list of names, twice each": {"spec": object{"names": []any{object{"name": "a"}, object{"name": "a"}}}},
		}},
	}
}

func many(n int) object {
	all := object{}
	for i := range n {
		all[fmt.Sprintf("%x", i*2654435761)] = ""
	}
	return all
}

// patched returns an object with a patch merged into it, without that nulls remove.
func patched(o, patch object) object {
	o = maps.Clone(o)
	for key, value := range patch {
		inner, ok := value.(object)
		if into, has := o[key].(object); ok && has {
			o[key] = patched(into, inner)
		} else {
			o[key] = value
		}
	}
	return o
}

func set(t *testing.T, of any, value any, path ...string) any {
	t.Helper()
	if len(path) == 0 {
		return value
	}
	switch of := of.(type) {
	case object:
		of[path[0]] = set(t, of[path[0]], value, path[1:]...)
		return of
	case []any:
		of[0] = set(t, of[0], value, path[1:]...) // all are of the first
		return of
	case nil:
		return object{path[0]: set(t, nil, value, path[1:]...)}
	}
	t.Fatalf("%v is not in %v", path, of)
	return nil
}

type childCase struct {
	name   string
	kind   kindCase
	object object
}

func childCases(t *testing.T) (cases []childCase) {
	for _, k := range kindCases() {
		add := func(name string, o object) {
			o = runtime.DeepCopyJSON(o)
			o["apiVersion"], o["kind"] = k.resource.GroupVersion().String(), k.kind
			meta, _ := o["metadata"].(object)
			o["metadata"] = patched(object{"labels": object{"x": "1"}, "annotations": object{"dropped": "1"}}, meta)
			o["metadata"].(object)["name"] = fmt.Sprintf("c-%d", len(cases))
			cases = append(cases, childCase{k.kind + ": " + name, k, o})
		}
		add("plain", k.object)
		for _, name := range slices.Sorted(maps.Keys(k.variations)) {
			add(name, patched(k.object, k.variations[name]))
		}
		if k.pod != nil {
			for _, name := range slices.Sorted(maps.Keys(podVariations)) {
				add(name, set(t, runtime.DeepCopyJSON(k.object), runtime.DeepCopyJSON(podVariations[name]), k.pod...).(object))
			}
		}
	}
	return cases
}

// Each object that a POST makes is made as a child, is then at rest, follows a change of a
// field and the removal of another, and is at rest again.
func TestEachObjectThatAPOSTMakesIsMadeAsAChild(t *testing.T) {
	t.Parallel()
	c, err := dynamic.NewForConfig(cluster.Admin().Config)
	if err != nil {
		t.Fatal(err)
	}
	discovered, err := discovery.NewDiscoveryClientForConfig(cluster.Admin().Config)
	if err != nil {
		t.Fatal(err)
	}
	schemas := &apply.Schemas{Client: openapi.ToClientWithContext(discovered.OpenAPIV3())}
	namespace := testkit.Namespace(t, admin)
	parent := create(t, thing(namespace, "parent"))
	owner := parent
	cases := childCases(t)
	for _, each := range cases {
		t.Run(each.name, func(t *testing.T) {
			children := dynamic.ResourceInterface(c.Resource(each.kind.resource))
			if !each.kind.cluster {
				children = c.Resource(each.kind.resource).Namespace(namespace)
			}
			posted := &unstructured.Unstructured{Object: runtime.DeepCopyJSON(each.object)}
			if _, err := children.Create(t.Context(), posted, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}); err != nil {
				t.Fatalf("no POST makes it: %v", err)
			}
			if each.kind.cluster {
				owner = create(t, named("example.com/v1", "ClusterThing", "", fmt.Sprint(namespace, "-", each.object["metadata"].(object)["name"])))
			} else {
				owner = parent
			}
			kind := compose.Kind{GroupVersionKind: each.kind.resource.GroupVersion().WithKind(each.kind.kind), Namespaced: !each.kind.cluster}
			schema, err := schemas.Of(t.Context(), kind.GroupVersionKind)
			if err != nil || schema == nil {
				t.Fatalf("the schema is %v, %v", schema, err)
			}
			w := writer{t, children, kind, owner, schema}
			wanted := w.prepare(each.object)
			made, err := apply.Create(t.Context(), children, w.schema, wanted)
			if err != nil {
				t.Fatalf("it is not made: %v", err)
			}
			t.Cleanup(func() {
				_ = children.Delete(context.WithoutCancel(t.Context()), made.GetName(), metav1.DeleteOptions{})
			})
			if _, err := apply.Create(t.Context(), children, w.schema, wanted); err == nil || errors.Is(err, apply.ErrForeign) {
				t.Errorf("what is there already, and its own, is: %v", err)
			}
			w.rests(made, wanted)
			changed := set(t, runtime.DeepCopyJSON(each.object), each.kind.value, each.kind.field...).(object)
			delete(changed["metadata"].(object), "annotations")
			wanted = w.prepare(changed)
			_, after, err := apply.InPlace(t.Context(), children, w.schema, made, wanted)
			if err != nil {
				t.Fatalf("it is not changed: %v", err)
			}
			if _, there := after.GetAnnotations()["dropped"]; there {
				t.Error("the annotation that nobody wants is still there")
			}
			if each.kind.kind != "Secret" && fmt.Sprint(valueAt(after.Object, each.kind.field...)) != fmt.Sprint(each.kind.value) {
				t.Errorf("%v is %v", each.kind.field, valueAt(after.Object, each.kind.field...))
			}
			w.rests(after, wanted)
		})
	}
	testkit.Figure("hook.child_cases", float64(len(cases)), "cases")
}

func valueAt(of any, path ...string) any {
	for _, key := range path {
		switch o := of.(type) {
		case object:
			of = o[key]
		case []any:
			of = o[0]
		}
	}
	return of
}

type writer struct {
	*testing.T
	client dynamic.ResourceInterface
	kind   compose.Kind
	parent *unstructured.Unstructured
	schema *compose.Schema
}

func (w writer) prepare(o object) *unstructured.Unstructured {
	w.Helper()
	prepared, err := compose.Prepare(w.parent, compose.Rules{Kinds: []compose.Kind{w.kind}}, []*unstructured.Unstructured{{Object: runtime.DeepCopyJSON(o)}})
	if err != nil {
		w.Fatal(err)
	}
	return prepared[0]
}

// rests checks that a child that is as it should be is not written.
func (w writer) rests(made, wanted *unstructured.Unstructured) {
	w.Helper()
	if field, err := apply.WouldChange(w.Context(), w.client, w.schema, made, wanted); err != nil || field != "" {
		w.Errorf("it would be written again: %s, %v", field, err)
	}
}

func TestAChildThatAnApplyRefusesIsMadeAndUpdated(t *testing.T) {
	t.Parallel()
	running(t)
	namespace := testkit.Namespace(t, admin)
	deployment := func(_ http.ResponseWriter, r *request) any {
		spec := podSpec(object{"image": r.Parent["spec"], "ports": podVariations["two ports of one number"]["containers"].([]any)[0].(object)["ports"]})
		return object{"children": []any{named("apps/v1", "Deployment", "", "x", object{"spec": object{"replicas": 0, "selector": object{"matchLabels": object{"app": "a"}}, "template": template(spec)}})}}
	}
	h := serve(t, deployment)
	create(t, composite(namespace, object{"sync": at(h.URL)}, "", object{
		"childResources": []any{object{"apiVersion": "apps/v1", "resource": "deployments", "updateStrategy": object{"method": "InPlace"}}},
	}))
	create(t, thing(namespace, "a", object{"spec": "main:1"}))
	has := func(image string) func(context.Context) bool {
		return func(context.Context) bool {
			d := get(t, "apps/v1", "Deployment", namespace, "x")
			return d != nil && valueAt(d.Object, "spec", "template", "spec", "containers", "0", "image") == image
		}
	}
	testkit.Eventually(t, "it is made", has("main:1"))
	patchThing(t, namespace, "a", `{"spec":"main:2"}`)
	testkit.Eventually(t, "it is updated", has("main:2"))
	condition(t, "CompositeController", namespace, "Converged", metav1.ConditionTrue, "")
}

// lists are what a hook returns first, what somebody else adds, and what is there after the
// hook has dropped b and added d.
var lists = map[string]struct {
	first, other, second any
	want, after          string
}{
	"names": {
		first:  []any{object{"name": "a", "value": "1"}, object{"name": "b", "value": "1"}},
		other:  object{"name": "x", "value": "others"},
		second: []any{object{"name": "a", "value": "2"}, object{"name": "d", "value": "2"}},
		want:   "a1 b1 xothers", after: "a2 xothers d2",
	},
	"ports": {
		first:  []any{object{"port": 1, "value": "1"}, object{"port": 1, "protocol": "UDP", "value": "1"}},
		other:  object{"port": 2, "value": "others"},
		second: []any{object{"port": 1, "value": "2"}, object{"port": 3, "value": "2"}},
		want:   "1TCP1 1UDP1 2TCPothers", after: "1TCP2 2TCPothers 3TCP2",
	},
	"set": {first: []any{"a", "b"}, other: "x", second: []any{"a", "d"}, want: "a b x", after: "a x d"},
	"atomic": {
		first: []any{object{"name": "a"}, object{"name": "b"}}, other: object{"name": "x"}, second: []any{object{"name": "a"}, object{"name": "d"}},
		want: "a b", after: "a d",
	},
}

func items(t *testing.T, namespace, field string) string {
	t.Helper()
	u := get(t, "example.com/v1", "Schema", namespace, "x")
	if u == nil {
		return ""
	}
	list, _, _ := unstructured.NestedSlice(u.Object, "spec", field)
	var all []string
	for _, item := range list {
		text := fmt.Sprint(item)
		if fields, ok := item.(object); ok {
			text = ""
			for _, key := range []string{"name", "port", "protocol", "value"} {
				if fields[key] != nil {
					text += fmt.Sprint(fields[key])
				}
			}
		}
		all = append(all, text)
	}
	return strings.Join(all, " ")
}

func TestInPlaceKeepsWhatOthersAddToListsAsTheirKindSays(t *testing.T) {
	t.Parallel()
	running(t)
	covers(t, "updateStrategy.method InPlace: lists")
	namespace := testkit.Namespace(t, admin)
	h := serve(t, func(_ http.ResponseWriter, r *request) any {
		spec := object{"field": r.Parent["spec"]}
		for field, list := range lists {
			spec[field] = list.first
			if spec["field"] == "3" {
				spec[field] = list.second
			}
		}
		return object{"children": []any{named("example.com/v1", "Schema", "", "x", object{"spec": spec}), roleBinding("x", "view")}}
	})
	create(t, composite(namespace, object{"sync": at(h.URL)}, "", object{"childResources": []any{
		object{"apiVersion": "example.com/v1", "resource": "schemas", "updateStrategy": object{"method": "InPlace"}},
		object{"apiVersion": "rbac.authorization.k8s.io/v1", "resource": "rolebindings", "updateStrategy": object{"method": "InPlace"}},
	}}))
	create(t, thing(namespace, "a", object{"spec": "1"}))
	follows := func(field string) {
		t.Helper()
		testkit.Eventually(t, "the child follows to "+field, func(context.Context) bool {
			u := get(t, "example.com/v1", "Schema", namespace, "x")
			return u != nil && valueAt(u.Object, "spec", "field") == field
		})
	}
	follows("1")
	var operations []object
	for field, list := range lists {
		operations = append(operations, object{"op": "add", "path": "/spec/" + field + "/-", "value": list.other})
	}
	body, err := json.Marshal(operations)
	if err != nil {
		t.Fatal(err)
	}
	if err := admin.Patch(t.Context(), &unstructured.Unstructured{Object: named("example.com/v1", "Schema", namespace, "x")}, client.RawPatch(types.JSONPatchType, body)); err != nil {
		t.Fatal(err)
	}
	subjects := func() (all []any) {
		if u := get(t, "rbac.authorization.k8s.io/v1", "RoleBinding", namespace, "x"); u != nil {
			all, _, _ = unstructured.NestedSlice(u.Object, "subjects")
		}
		return all
	}
	testkit.Eventually(t, "the binding is there", func(context.Context) bool { return len(subjects()) == 4 })
	body = []byte(`[{"op": "add", "path": "/subjects/-", "value": {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "mallory"}}]`)
	if err := admin.Patch(t.Context(), get(t, "rbac.authorization.k8s.io/v1", "RoleBinding", namespace, "x"), client.RawPatch(types.JSONPatchType, body)); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "a subject that somebody else has added is gone", func(context.Context) bool { return len(subjects()) == 4 })
	patchThing(t, namespace, "a", `{"spec":"2"}`)
	follows("2")
	for field, list := range lists {
		if got := items(t, namespace, field); got != list.want {
			t.Errorf("%s: after somebody else has added an item it is %s, want %s", field, got, list.want)
		}
	}
	patchThing(t, namespace, "a", `{"spec":"3"}`)
	follows("3")
	for field, list := range lists {
		if got := items(t, namespace, field); got != list.after {
			t.Errorf("%s: after the hook has changed it it is %s, want %s", field, got, list.after)
		}
	}
}

func TestAControllerThatBeginsAnewWritesNoChildThatIsAsItShouldBe(t *testing.T) {
	t.Parallel()
	running(t)
	covers(t, "restart")
	namespace := testkit.Namespace(t, admin)
	const parents = 5
	var less atomic.Bool
	answer := func(_ http.ResponseWriter, r *request) any {
		data := object{"kept": "1", "dropped": "1"}
		if less.Load() {
			delete(data, "dropped")
		}
		name := r.Parent["metadata"].(object)["name"].(string)
		spec := podSpec(object{
			"ports": []any{object{"containerPort": 80}}, "resources": object{"limits": object{"cpu": "1000m"}},
			"env": []any{object{"name": "A", "valueFrom": object{"fieldRef": object{"fieldPath": "metadata.name"}}}},
		})
		binding := roleBinding(name, "view")
		return object{"children": []any{
			configMap(name, data), binding,
			named("apps/v1", "Deployment", "", name, object{"spec": object{"replicas": 0, "selector": object{"matchLabels": object{"app": name}}, "template": object{"metadata": object{"labels": object{"app": name}}, "spec": spec}}}),
			named("example.com/v1", "Schema", "", name, object{"spec": object{"unknown": "pruned", "ports": []any{object{"port": 1}}, "names": []any{object{"name": "a"}}}}),
		}, "status": object{"children": len(r.Children["ConfigMap.v1"]) + len(r.Children["Deployment.apps/v1"])}}
	}
	h := serve(t, answer)
	var resources []any
	for resource, version := range map[string]string{"configmaps": "v1", "rolebindings": "rbac.authorization.k8s.io/v1", "deployments": "apps/v1", "schemas": "example.com/v1"} {
		method := "InPlace"
		if resource == "rolebindings" {
			method = "Recreate"
		}
		resources = append(resources, object{"apiVersion": version, "resource": resource, "updateStrategy": object{"method": method}})
	}
	controller := create(t, composite(namespace, object{"sync": at(h.URL)}, "", object{"childResources": resources}))
	for i := range parents {
		create(t, thing(namespace, fmt.Sprint("a", i)))
	}
	rests := func() {
		t.Helper()
		last, since := -1, time.Now()
		testkit.Eventually(t, "all is at rest", func(context.Context) bool {
			if now := len(h.asked("")); now != last {
				last, since = now, time.Now()
			}
			return time.Since(since) > time.Second && data(t, namespace, "a4") != nil
		})
		condition(t, "CompositeController", namespace, "Converged", metav1.ConditionTrue, "")
	}
	anew := func(annotation string) {
		t.Helper()
		calls := len(h.asked(""))
		patch := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"annotations":{"anew":%q}}}`, annotation))
		if err := admin.Patch(t.Context(), controller.DeepCopy(), patch); err != nil {
			t.Fatal(err)
		}
		testkit.Eventually(t, "all parents are asked about again", func(context.Context) bool { return len(h.asked("")) >= calls+parents })
		rests()
	}
	rests()
	before := written.of(namespace)
	anew("1")
	writes := written.of(namespace) - before
	testkit.Figure("hook.restart_writes", float64(writes), "writes")
	if writes != 0 {
		t.Errorf("there were %d writes of children that are as they should be", writes)
	}
	less.Store(true) // while nobody runs
	anew("2")
	if got := data(t, namespace, "a0"); len(got) != 1 || written.of(namespace)-before != parents {
		t.Errorf("a field that the hook wants no more is still there, or more was written: %v, %d writes", got, written.of(namespace)-before)
	}
}
