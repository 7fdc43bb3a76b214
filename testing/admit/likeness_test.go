package admit_test

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/manager"
	"github.com/admitkit/admitkit/testing/admit"
	"github.com/admitkit/admitkit/testing/controlplane"
	"github.com/admitkit/admitkit/testing/managertest"
)

// server is an API server: a real one, or that in memory.
type server struct {
	client.WithWatch
	ctx context.Context
}

// shop is the namespace of the objects.
const shop = "shop"

// likeness has what is asked of both API servers. Each function returns the answer.
var likeness = map[string]map[string]func(*server) string{
	"a field selector": fieldSelectors(),
	"a deletion":       deletions,
	"a review":         reviews(),
	"a creation":       creations,
	"an update":        updates,
	"a watch":          watches,
	"a list":           {"in pages": pages},
}

func TestTheClusterInMemoryAnswersAsAnAPIServer(t *testing.T) {
	memory := admit.New(t, owner).With(gadgets()).Authorize(func(spec authorizationv1.SubjectAccessReviewSpec) bool {
		return slices.Contains(spec.Groups, "system:masters")
	}).Manager()
	memoryConfig, err := memory.GetKubeConnection()
	if err != nil {
		t.Fatal(err)
	}
	cluster := controlplane.Run(t, controlplane.Options{})
	apiServer := newServer(t, cluster.Config())
	inMemory := newServer(t, memoryConfig)
	if err := apiServer.Create(t.Context(), gadgets()); err != nil {
		t.Fatal(err)
	}
	for _, s := range []*server{apiServer, inMemory} {
		for _, object := range shopObjects() {
			if err := testkit.Poll(t.Context(), 30*time.Second, "the object is there", func(ctx context.Context) error { return s.Create(ctx, object) }); err != nil {
				t.Fatal(err)
			}
		}
	}
	for subject, all := range likeness {
		t.Run(subject, func(t *testing.T) {
			for sentence, ask := range all {
				t.Run(sentence, func(t *testing.T) {
					if want, got := ask(apiServer), ask(inMemory); got != want {
						t.Errorf("the API server says\n%s\nthe cluster in memory says\n%s", want, got)
					} else {
						t.Log(got)
					}
				})
			}
		})
	}
	t.Run("the manager's client", func(t *testing.T) { testFinder(t, cluster) })
}

func newServer(t *testing.T, config *rest.Config) *server {
	t.Helper()
	c, err := client.NewWithWatch(config, client.Options{Scheme: scheme.Scheme})
	if err != nil {
		t.Fatal(err)
	}
	return &server{c, t.Context()}
}

// gadgets is a kind with a status and with a field to select by.
func gadgets() *unstructured.Unstructured {
	text := map[string]any{"type": "string"}
	part := map[string]any{"type": "object", "properties": map[string]any{"color": text, "size": text}}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": map[string]any{"name": "gadgets.example.com"},
		"spec": map[string]any{
			"group": "example.com", "scope": "Namespaced", "names": map[string]any{"kind": "Gadget", "listKind": "GadgetList", "plural": "gadgets", "singular": "gadget"},
			"versions": []any{map[string]any{
				"name": "v1", "served": true, "storage": true, "subresources": map[string]any{"status": map[string]any{}},
				"selectableFields": []any{map[string]any{"jsonPath": ".spec.color"}},
				"schema":           map[string]any{"openAPIV3Schema": map[string]any{"type": "object", "properties": map[string]any{"spec": part, "status": part}}},
			}},
		},
	}}
}

func gadget(name string) *unstructured.Unstructured {
	g := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "example.com/v1", "kind": "Gadget", "spec": map[string]any{"color": "red"}}}
	g.SetNamespace(shop)
	g.SetName(name)
	return g
}

// shopObjects are on both servers from the start.
func shopObjects() []client.Object {
	a, b := shopPod("a"), shopPod("b")
	a.Spec.NodeName, a.Spec.RestartPolicy, a.Spec.SchedulerName, a.Spec.Hostname = "node", corev1.RestartPolicyNever, "mine", "h"
	b.Spec.HostNetwork = true
	return []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: shop}}, a, b, gadget("red"),
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: shop, Name: "basic"}, Type: corev1.SecretTypeBasicAuth, Data: map[string][]byte{"password": []byte("x")}},
	}
}

func shopPod(name string) *corev1.Pod {
	p := pod(name)
	p.Namespace = shop
	return p
}

// configMap is an object in a namespace that fieldSelectors does not list.
func configMap(name string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
}

// made creates an object.
func made[T client.Object](s *server, object T) T {
	if err := s.Create(s.ctx, object); err != nil {
		panic(err)
	}
	return object
}

// state says what is there of an object.
func (s *server) state(object client.Object) string {
	if err := s.Get(s.ctx, client.ObjectKeyFromObject(object), object); err != nil {
		return said(err)
	}
	return fmt.Sprintf("there, deleted %t %v, finalizers %v", object.GetDeletionTimestamp() != nil, object.GetDeletionGracePeriodSeconds() != nil, object.GetFinalizers())
}

// said returns an error as it reads on both servers.
func said(err error) string {
	if err == nil {
		return "ok"
	}
	return fmt.Sprintf("%s: %s", apierrors.ReasonForError(err), ofOneServer.ReplaceAllString(err.Error(), ""))
}

// ofOneServer are UIDs, and what etcd adds.
var ofOneServer = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f-]{27}|StorageError: .* AdditionalErrorMsg: `)

// listed returns the names of the objects in the shop.
func (s *server) listed(list client.ObjectList, options ...client.ListOption) string {
	if err := s.List(s.ctx, list, append(options, client.InNamespace(shop))...); err != nil {
		return said(err)
	}
	items, err := meta.ExtractList(list)
	names := []string{}
	for _, item := range items {
		names = append(names, item.(client.Object).GetName())
	}
	slices.Sort(names)
	return fmt.Sprint(names, err)
}

func listOf(kind string) client.ObjectList {
	apiVersion, name, _ := strings.Cut(kind, " ")
	list := &unstructured.UnstructuredList{}
	list.SetAPIVersion(apiVersion)
	list.SetKind(name + "List")
	return list
}

func fieldSelectors() map[string]func(*server) string {
	all := map[string]func(*server) string{}
	for kind, selectors := range map[string][]string{
		"v1 Pod": {
			"metadata.name=a", "metadata.name!=a", "metadata.namespace=shop", "spec.nodeName=node", "spec.nodeName=", "spec.host=node", "spec.restartPolicy=Never",
			"spec.schedulerName=mine", "spec.serviceAccountName=x", "spec.hostNetwork=false", "spec.hostNetwork=true", "status.podIP=", "status.podIPs=",
			"status.podIPs=1.2.3.4", "status.nominatedNodeName=", "metadata.name=a,spec.nodeName=node", "metadata.name=a,spec.hostname=h",
			"spec.hostname=h", "spec.priorityClassName=x", "metadata.uid=x", "nothing!=x", "metadata.labels=x", "status.hostIP=1.2.3.4",
		},
		"v1 Secret":                {"type=kubernetes.io/basic-auth", "type!=kubernetes.io/basic-auth", "immutable=true"},
		"v1 ConfigMap":             {"metadata.name=none", "data.a=b"},
		"v1 Namespace":             {"name=shop", "metadata.namespace=", "metadata.name=none"},
		"v1 Node":                  {"spec.unschedulable=true", "metadata.namespace=", "spec.podCIDR=x"},
		"v1 Service":               {"spec.type=ClusterIP", "spec.clusterIP=None", "spec.externalName=x"},
		"v1 Event":                 {"involvedObject.uid=x", "reason=x", "source=x", "reportingComponent=x", "regarding.uid=x", "reportingController=x", "action=x"},
		"events.k8s.io/v1 Event":   {"regarding.uid=x", "reportingController=x", "involvedObject.uid=x", "source=x"},
		"v1 ReplicationController": {"status.replicas=0", "spec.replicas=0"},
		"apps/v1 Deployment":       {"metadata.name=x", "spec.replicas=1"},
		"apps/v1 ReplicaSet":       {"status.replicas=1"},
		"batch/v1 Job":             {"status.successful=1", "status.failed=1"},
		"batch/v1 CronJob":         {"spec.suspend=true"},
		"certificates.k8s.io/v1 CertificateSigningRequest": {"spec.signerName=x", "metadata.namespace=x"},
		"resource.k8s.io/v1 ResourceSlice":                 {"spec.nodeName=x", "spec.driver=x", "spec.pool.name=x", "spec.allNodes=true"},
		"storage.k8s.io/v1 StorageClass":                   {"metadata.namespace=x", "provisioner=x"},
		"example.com/v1 Gadget":                            {"metadata.name=red", "metadata.namespace=shop", "spec.color=red", "spec.color!=red", "spec.size=x"},
	} {
		for _, selector := range selectors {
			all[fmt.Sprintf("of a %s by %s", kind, selector)] = func(s *server) string {
				by := client.MatchingFieldsSelector{Selector: fields.ParseSelectorOrDie(selector)}
				return s.listed(listOf(kind), by)
			}
		}
	}
	all["of a watch"] = func(s *server) string {
		_, err := s.Watch(s.ctx, &corev1.PodList{}, client.MatchingFields{"spec.hostname": "h"})
		return said(err)
	}
	all["of a Job that counts what succeeded"] = func(s *server) string {
		job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: shop, Name: "counts"}, Spec: batchv1.JobSpec{Template: corev1.PodTemplateSpec{Spec: shopPod("x").Spec}}}
		job.Spec.Template.Spec.RestartPolicy = corev1.RestartPolicyNever
		return said(s.Create(s.ctx, job)) + s.listed(&batchv1.JobList{}, client.MatchingFields{"status.successful": "0"})
	}
	return all
}

// finder denies each ConfigMap with the Pods that the manager's client finds.
type finder struct{ kube client.Client }

func (*finder) Reads() []client.Object { return []client.Object{&corev1.Pod{}} }

func (f *finder) Register(mgr extension.Manager) error {
	f.kube = mgr.GetKubeManager().GetClient()
	return mgr.GetKubeManager().GetFieldIndexer().IndexField(mgr.GetContext(), &corev1.Pod{}, "image", func(object client.Object) []string {
		return []string{object.(*corev1.Pod).Spec.Containers[0].Image}
	})
}

// finds has what is found, by the name of the ConfigMap.
var finds = map[string]client.MatchingFields{
	"by-a-field-without-an-index": {"spec.nodeName": "node"}, "by-an-index": {"image": "example.com/main:1"}, "by-the-name": {"metadata.name": "a"}, "by-nothing": nil,
}

func (f *finder) Validate(ctx context.Context, object *corev1.ConfigMap, _ *extension.Request) error {
	by, ours := finds[object.Name]
	if !ours {
		return nil // kube-root-ca.crt
	}
	var found corev1.PodList
	if err := f.kube.List(ctx, &found, client.InNamespace(shop), by); err != nil {
		return extension.Denyf("it fails: %v", err)
	}
	return extension.Denyf("it finds %d", len(found.Items))
}

func testFinder(t *testing.T, cluster *controlplane.ControlPlane) {
	add := func() *extension.Handler {
		return extension.Validating(&finder{}, extension.Scope{Name: "finder", Rules: extension.Resources("", "v1", []string{"configmaps"}, "CREATE")})
	}
	memory := admit.New(t, add()).In(shop, nil)
	for _, object := range shopObjects() {
		memory.With(object)
	}
	installed := managertest.Run(t, cluster, managertest.Options{Manager: manager.Options{Namespaces: []string{shop}}}, func(mgr *manager.Manager) error {
		return mgr.AddExtension(add())
	})
	for name := range finds {
		t.Run(name, func(t *testing.T) {
			err := installed.Admin.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: shop, Name: name}})
			_, want, _ := strings.Cut(fmt.Sprint(err), "denied the request: ")
			if got := memory.Create(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}).Reason; got != want || want == "" {
				t.Errorf("in a cluster %q (%v), in memory %q", want, err, got)
			} else {
				t.Log(got)
			}
		})
	}
}

var deletions = map[string]func(*server) string{
	"of an object": func(s *server) string {
		o := made(s, configMap("plain"))
		return said(s.Delete(s.ctx, o)) + s.state(o) + said(s.Delete(s.ctx, o))
	},
	"that is a dry run": func(s *server) string {
		o := made(s, configMap("dry"))
		return said(s.Delete(s.ctx, o, client.DryRunAll)) + s.state(o)
	},
	"of another UID": func(s *server) string {
		o := made(s, configMap("uid"))
		return said(s.Delete(s.ctx, o, client.Preconditions{UID: new(types.UID("x"))})) + s.state(o)
	},
	"of its own UID": func(s *server) string {
		o := made(s, configMap("own-uid"))
		return said(s.Delete(s.ctx, o, client.Preconditions{UID: new(o.UID)})) + s.state(o)
	},
	"of another resource version": func(s *server) string {
		o := made(s, configMap("version"))
		err := s.Delete(s.ctx, o, client.Preconditions{ResourceVersion: new("1")})
		return string(apierrors.ReasonForError(err)) + s.state(o)
	},
	"of its own resource version": func(s *server) string {
		o := made(s, configMap("own-version"))
		return said(s.Delete(s.ctx, o, client.Preconditions{ResourceVersion: new(o.ResourceVersion)})) + s.state(o)
	},
	"of an object with finalizers": func(s *server) string {
		o := configMap("finalizers")
		o.Finalizers = []string{"example.com/a", "example.com/b"}
		made(s, o)
		steps := []string{said(s.Delete(s.ctx, o)), s.state(o), said(s.Delete(s.ctx, o)), s.state(o)}
		o.Finalizers = []string{"example.com/b"}
		steps = append(steps, said(s.Update(s.ctx, o)), s.state(o))
		o.Finalizers, o.DeletionTimestamp = nil, nil
		return strings.Join(append(steps, said(s.Update(s.ctx, o)), s.state(o)), "\n")
	},
	"with finalizers that a dry run takes away": func(s *server) string {
		o := configMap("dry-finalizers")
		o.Finalizers = []string{"example.com/a"}
		made(s, o)
		steps := []string{said(s.Delete(s.ctx, o)), s.state(o)}
		o.Finalizers = nil
		return strings.Join(append(steps, said(s.Update(s.ctx, o, client.DryRunAll)), s.state(o)), "\n")
	},
	"with a finalizer that a patch takes away": func(s *server) string {
		o := configMap("patched")
		o.Finalizers = []string{"example.com/a"}
		made(s, o)
		err := s.Delete(s.ctx, o)
		patch := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))
		return said(err) + said(s.Patch(s.ctx, o, patch)) + s.state(o)
	},
	"of a collection by labels": func(s *server) string {
		return s.deleteAll("labels", client.MatchingLabels{"of": "labels-a"})
	},
	"of a collection by a field": func(s *server) string {
		return s.deleteAll("field", client.MatchingFields{"metadata.name": "field-b"})
	},
	"of a collection by another field": func(s *server) string {
		return s.deleteAll("other", client.MatchingFields{"data.a": "b"})
	},
	"of a collection as a dry run": func(s *server) string {
		return s.deleteAll("run", client.MatchingLabels{"all": "run"}, client.DryRunAll)
	},
	"of a collection in every namespace": func(s *server) string {
		return said(s.DeleteAllOf(s.ctx, &corev1.ConfigMap{}, client.MatchingLabels{"a": "b"}))
	},
	"of a collection of Namespaces": func(s *server) string {
		return said(s.DeleteAllOf(s.ctx, &corev1.Namespace{}, client.MatchingLabels{"a": "b"}))
	},
	"of a collection of Gadgets": func(s *server) string {
		made(s, gadget("blue"))
		return said(s.DeleteAllOf(s.ctx, gadget(""), client.InNamespace(shop), client.MatchingFields{"metadata.name": "blue"})) + s.state(gadget("blue"))
	},
	"of a Pod that is not scheduled": func(s *server) string {
		p := pod("pending")
		p.Namespace = "default"
		made(s, p)
		return said(s.Delete(s.ctx, p)) + s.state(p)
	},
}

// deleteAll deletes of two ConfigMaps, NAME-a and NAME-b, and returns what is left.
func (s *server) deleteAll(name string, options ...client.DeleteAllOfOption) string {
	for _, suffix := range []string{"-a", "-b"} {
		o := configMap(name + suffix)
		o.Labels = map[string]string{"of": o.Name, "all": name}
		made(s, o)
	}
	err := s.DeleteAllOf(s.ctx, &corev1.ConfigMap{}, append(options, client.InNamespace("default"))...)
	return said(err) + s.state(configMap(name+"-a")) + s.state(configMap(name+"-b"))
}

// reviews are asked about masters, who may do everything, and about others, who may do nothing.
func reviews() map[string]func(*server) string {
	pods := &authorizationv1.ResourceAttributes{Namespace: "default", Verb: "get", Resource: "pods"}
	path := &authorizationv1.NonResourceAttributes{Path: "/x", Verb: "get"}
	all := map[string]func(*server) string{
		"of the rights of the client": func(s *server) string {
			r := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: pods}}
			return said(s.Create(s.ctx, r)) + fmt.Sprint(r.Status.Allowed)
		},
		"of the rights of the client, of nothing": func(s *server) string {
			return said(s.Create(s.ctx, &authorizationv1.SelfSubjectAccessReview{}))
		},
		"of the rules of the client": func(s *server) string {
			r := &authorizationv1.SelfSubjectRulesReview{Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: "default"}}
			err := s.Create(s.ctx, r)
			everything := slices.ContainsFunc(r.Status.ResourceRules, func(r authorizationv1.ResourceRule) bool { return slices.Equal(r.Resources, []string{"*"}) })
			return said(err) + fmt.Sprint(everything, r.Status.Incomplete)
		},
		"of the rules of the client, in no namespace": func(s *server) string {
			return said(s.Create(s.ctx, &authorizationv1.SelfSubjectRulesReview{}))
		},
		"with a name": func(s *server) string {
			r := &authorizationv1.SubjectAccessReview{ObjectMeta: metav1.ObjectMeta{Name: "x"}, Spec: authorizationv1.SubjectAccessReviewSpec{User: "ada", ResourceAttributes: pods}}
			err := s.Create(s.ctx, r)
			return string(apierrors.ReasonForError(err)) + fmt.Sprint(strings.Contains(fmt.Sprint(err), "must be empty"))
		},
	}
	for sentence, spec := range map[string]authorizationv1.SubjectAccessReviewSpec{
		"of masters":          {User: "root", Groups: []string{"system:masters"}, ResourceAttributes: pods},
		"of a group":          {Groups: []string{"system:masters"}, ResourceAttributes: pods},
		"of somebody else":    {User: "ada", ResourceAttributes: pods},
		"of a path":           {User: "root", Groups: []string{"system:masters"}, NonResourceAttributes: path},
		"of nobody":           {ResourceAttributes: pods},
		"of nothing":          {User: "ada"},
		"of both":             {User: "ada", ResourceAttributes: pods, NonResourceAttributes: path},
		"of neither":          {},
		"of every namespace":  {User: "ada", ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: "get", Resource: "pods"}},
		"of a namespace else": {User: "root", Groups: []string{"system:masters"}, ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: shop, Verb: "get", Resource: "pods"}},
	} {
		all[sentence] = func(s *server) string {
			r := &authorizationv1.SubjectAccessReview{Spec: spec}
			return said(s.Create(s.ctx, r)) + fmt.Sprint(r.Status.Allowed)
		}
		all[sentence+", in a namespace"] = func(s *server) string {
			r := &authorizationv1.LocalSubjectAccessReview{ObjectMeta: metav1.ObjectMeta{Namespace: "default"}, Spec: spec}
			return said(s.Create(s.ctx, r)) + fmt.Sprint(r.Status.Allowed)
		}
		all[sentence+", as a dry run"] = func(s *server) string {
			r := &authorizationv1.SubjectAccessReview{Spec: spec}
			return said(s.Create(s.ctx, r, client.DryRunAll)) + fmt.Sprint(r.Status.Allowed)
		}
	}
	return all
}

// added says what the API server adds to an object.
func added(o client.Object) string {
	return fmt.Sprintf("uid %t version %t generation %d created %t", o.GetUID() != "" && o.GetUID() != "x", o.GetResourceVersion() != "", o.GetGeneration(), time.Since(o.GetCreationTimestamp().Time) < time.Hour)
}

func deployment(name string) *appsv1.Deployment {
	labels := map[string]string{"app": name}
	return &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: appsv1.DeploymentSpec{
		Replicas: new(int32(1)), Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: pod("x").Spec},
	}}
}

func lease(name string) *coordinationv1.Lease {
	return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
}

func defaultPod(name string) *corev1.Pod {
	p := pod(name)
	p.Namespace = "default"
	return p
}

var creations = map[string]func(*server) string{
	"of a Pod": func(s *server) string {
		p := defaultPod("created")
		return said(s.Create(s.ctx, p)) + added(p) + string(p.Status.Phase)
	},
	"of a Deployment": func(s *server) string {
		d := deployment("created")
		return said(s.Create(s.ctx, d)) + added(d)
	},
	"of a ConfigMap": func(s *server) string {
		o := configMap("created")
		return said(s.Create(s.ctx, o)) + added(o)
	},
	"of a Gadget": func(s *server) string {
		g := gadget("created")
		return said(s.Create(s.ctx, g)) + added(g)
	},
	"of a kind that counts changes": func(s *server) string {
		all := []client.Object{
			&networkingv1.NetworkPolicy{}, &policyv1.PodDisruptionBudget{Spec: policyv1.PodDisruptionBudgetSpec{MinAvailable: new(intstr.FromInt32(1))}},
			&schedulingv1.PriorityClass{Value: 1}, &discoveryv1.EndpointSlice{AddressType: discoveryv1.AddressTypeIPv4},
			&autoscalingv2.HorizontalPodAutoscaler{Spec: autoscalingv2.HorizontalPodAutoscalerSpec{ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "x"}, MaxReplicas: 2}},
			&corev1.ServiceAccount{}, &corev1.Secret{}, &corev1.Service{Spec: corev1.ServiceSpec{ClusterIP: "None"}}, &corev1.LimitRange{}, &corev1.ResourceQuota{},
			&rbacv1.Role{}, &corev1.PodTemplate{Template: corev1.PodTemplateSpec{Spec: pod("x").Spec}}, &corev1.Node{}, lease(""),
		}
		var got []string
		for _, o := range all {
			o.SetNamespace("default")
			o.SetName("counts")
			got = append(got, fmt.Sprintf("%T %s %d", o, said(s.Create(s.ctx, o)), o.GetGeneration()))
		}
		return strings.Join(got, "\n")
	},
	"with a resource version": func(s *server) string {
		o := configMap("with-version")
		o.ResourceVersion = "5"
		return said(s.Create(s.ctx, o))
	},
	"with a UID, a deletion and an age": func(s *server) string {
		o := configMap("with-uid")
		o.UID, o.Generation, o.DeletionTimestamp, o.CreationTimestamp = "x", 7, new(metav1.Now()), metav1.Unix(1, 0)
		return said(s.Create(s.ctx, o)) + added(o) + fmt.Sprint(o.DeletionTimestamp)
	},
	"with a status": func(s *server) string {
		p, d, g := defaultPod("with-status"), deployment("with-status"), gadget("with-status")
		p.Status.Phase, d.Status.Replicas, g.Object["status"] = corev1.PodRunning, 3, map[string]any{"size": "big"}
		return said(s.Create(s.ctx, p)) + said(s.Create(s.ctx, d)) + said(s.Create(s.ctx, g)) + fmt.Sprint(p.Status.Phase, d.Status.Replicas, g.Object["status"])
	},
	"as a dry run": func(s *server) string {
		o := configMap("dry-creation")
		return said(s.Create(s.ctx, o, client.DryRunAll)) + added(o) + s.state(configMap("dry-creation"))
	},
	"with generateName": func(s *server) string {
		o := configMap("")
		o.GenerateName = "generated-"
		return said(s.Create(s.ctx, o)) + fmt.Sprint(len(o.Name))
	},
	"without a name":    func(s *server) string { return said(s.Create(s.ctx, configMap(""))) },
	"with a wrong name": func(s *server) string { return said(s.Create(s.ctx, configMap("alice@example.com"))) },
	"with a wrong label": func(s *server) string {
		o := configMap("wrong-label")
		o.Labels = map[string]string{"team": "system:masters"}
		return said(s.Create(s.ctx, o))
	},
	"with a wrong finalizer": func(s *server) string {
		o := configMap("wrong-finalizer")
		o.Finalizers = []string{"example.com/a b"}
		return said(s.Create(s.ctx, o))
	},
	"of what exists": func(s *server) string {
		made(s, configMap("exists"))
		return said(s.Create(s.ctx, configMap("exists")))
	},
	"of a role with colons": func(s *server) string {
		return said(s.Create(s.ctx, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "example:reader"}}))
	},
	"by a server-side apply": func(s *server) string {
		var got []string
		for _, metadata := range []string{"{}", `{"name":"applied"}`, `{"name":"applied","labels":{"a":"b"}}`, `{"name":"other"}`} {
			o := configMap("applied")
			patch := client.RawPatch(types.ApplyPatchType, []byte(`{"apiVersion":"v1","kind":"ConfigMap","data":{"a":"b"},"metadata":`+metadata+`}`))
			got = append(got, said(s.Patch(s.ctx, o, patch, client.FieldOwner("x"))), added(o), fmt.Sprint(o.Data, o.Labels))
		}
		return strings.Join(got, "\n")
	},
	"by an update": func(s *server) string {
		return said(s.Update(s.ctx, configMap("put"))) + said(s.Update(s.ctx, lease("put"))) + s.state(lease("put"))
	},
	"by an update of what is gone": func(s *server) string {
		l := made(s, lease("gone"))
		return said(s.Delete(s.ctx, l)) + said(s.Update(s.ctx, l))
	},
}

// change changes a ConfigMap and returns what an update says and leaves.
func (s *server) change(name string, change func(*corev1.ConfigMap), options ...client.UpdateOption) string {
	o := configMap(name)
	o.Data, o.Labels = map[string]string{"a": "b"}, map[string]string{"l": "1"}
	made(s, o)
	before := o.DeepCopy()
	change(o)
	err := s.Update(s.ctx, o, options...)
	after := configMap(name)
	if err := s.Get(s.ctx, client.ObjectKeyFromObject(after), after); err != nil {
		return said(err)
	}
	return fmt.Sprintln(said(err), added(after), before.UID == after.UID, before.ResourceVersion == after.ResourceVersion, before.CreationTimestamp.Equal(&after.CreationTimestamp), after.Data, after.Labels)
}

var updates = map[string]func(*server) string{
	"without a change": func(s *server) string { return s.change("same", func(*corev1.ConfigMap) {}) },
	"of the data": func(s *server) string {
		return s.change("data", func(o *corev1.ConfigMap) { o.Data["a"] = "c" })
	},
	"as a dry run": func(s *server) string {
		return s.change("dry-update", func(o *corev1.ConfigMap) { o.Data["a"] = "c" }, client.DryRunAll)
	},
	"without metadata": func(s *server) string {
		return s.change("bare", func(o *corev1.ConfigMap) { *o = *configMap("bare") })
	},
	"with another UID": func(s *server) string {
		return s.change("other-uid", func(o *corev1.ConfigMap) { o.UID = "x" })
	},
	"with a stale resource version": func(s *server) string {
		return s.change("stale", func(o *corev1.ConfigMap) { o.ResourceVersion = "1" })
	},
	"with another age": func(s *server) string {
		return s.change("age", func(o *corev1.ConfigMap) { o.CreationTimestamp = metav1.Unix(1, 0) })
	},
	"with a deletion": func(s *server) string {
		o := configMap("with-deletion")
		made(s, o)
		o.DeletionTimestamp = new(metav1.Unix(1, 0))
		return string(apierrors.ReasonForError(s.Update(s.ctx, o))) + s.state(configMap("with-deletion"))
	},
	"with a wrong label": func(s *server) string {
		return s.change("label", func(o *corev1.ConfigMap) { o.Labels["l"] = "/" })
	},
	"that adds a finalizer to what is deleted": func(s *server) string {
		o := configMap("late")
		o.Finalizers = []string{"example.com/a"}
		made(s, o)
		err := s.Delete(s.ctx, o)
		return said(err) + said(s.Get(s.ctx, client.ObjectKeyFromObject(o), o)) + said(s.Patch(s.ctx, o, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":["example.com/a","example.com/b"]}}`))))
	},
	"of a Lease without a resource version": func(s *server) string {
		made(s, lease("unversioned"))
		return said(s.Update(s.ctx, lease("unversioned")))
	},
	"of a Gadget without a resource version": func(s *server) string {
		made(s, gadget("unversioned"))
		return said(s.Update(s.ctx, gadget("unversioned")))
	},
	"of the stringData of a Secret": func(s *server) string {
		o := made(s, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "texts"}, StringData: map[string]string{"a": "b"}})
		created := fmt.Sprint(o.StringData, o.Data)
		o.StringData = map[string]string{"c": "d"}
		err := s.Update(s.ctx, o)
		patch := client.RawPatch(types.MergePatchType, []byte(`{"stringData":{"a":"e"}}`))
		return created + said(err) + fmt.Sprint(o.StringData, o.Data) + said(s.Patch(s.ctx, o, patch)) + fmt.Sprint(o.StringData, o.Data)
	},
	"by a patch of the UID": func(s *server) string {
		return said(s.Patch(s.ctx, made(s, configMap("patched-uid")), client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"uid":"x"}}`))))
	},
	"by a patch of the name": func(s *server) string {
		return said(s.Patch(s.ctx, made(s, configMap("patched-name")), client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"name":"x"}}`))))
	},
	"by a patch that is stale": func(s *server) string {
		return said(s.Patch(s.ctx, made(s, configMap("patched-stale")), client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"resourceVersion":"1"}}`))))
	},
	"by a patch whose test fails": func(s *server) string {
		return said(s.Patch(s.ctx, made(s, configMap("patched-test")), client.RawPatch(types.JSONPatchType, []byte(`[{"op":"test","path":"/metadata/name","value":"x"}]`))))
	},
	"by a patch of nothing": func(s *server) string {
		o := made(s, configMap("patched-not"))
		before := o.ResourceVersion
		return said(s.Patch(s.ctx, o, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"x":null}}}`)))) + fmt.Sprint(before == o.ResourceVersion)
	},
	"of spec and status": func(s *server) string {
		d, p, g := made(s, deployment("both")), made(s, defaultPod("both")), made(s, gadget("both"))
		d.Spec.Replicas, d.Status.Replicas = new(int32(2)), 9
		p.Spec.Containers[0].Image, p.Status.Phase = "example.com/other", corev1.PodRunning
		g.Object["spec"], g.Object["status"] = map[string]any{"color": "green"}, map[string]any{"size": "big"}
		return strings.Join([]string{said(s.Update(s.ctx, d)), said(s.Update(s.ctx, p)), said(s.Update(s.ctx, g)), both(d, p, g)}, "\n")
	},
	"of spec and status, by status": func(s *server) string {
		d, p, g := made(s, deployment("status")), made(s, defaultPod("status")), made(s, gadget("status"))
		d.Spec.Replicas, d.Status.Replicas, d.Labels, d.Annotations = new(int32(2)), 9, map[string]string{"a": "b"}, map[string]string{"a": "b"}
		p.Spec.Containers[0].Image, p.Status.Phase, p.Labels, p.Annotations = "example.com/other", corev1.PodRunning, map[string]string{"a": "b"}, map[string]string{"a": "b"}
		g.Object["spec"], g.Object["status"] = map[string]any{"color": "green"}, map[string]any{"size": "big"}
		g.SetLabels(map[string]string{"a": "b"})
		return strings.Join([]string{said(s.Status().Update(s.ctx, d)), said(s.Status().Update(s.ctx, p)), said(s.Status().Update(s.ctx, g)), both(d, p, g)}, "\n")
	},
	"of the status by a patch": func(s *server) string {
		p := made(s, defaultPod("status-patch"))
		patch := client.RawPatch(types.StrategicMergePatchType, []byte(`{"metadata":{"labels":{"x":"y"}},"spec":{"nodeName":"n"},"status":{"message":"m"}}`))
		return said(s.Status().Patch(s.ctx, p, patch)) + fmt.Sprint(p.Labels, p.Spec.NodeName, p.Status.Message, p.Status.Phase)
	},
	"of the annotations": func(s *server) string {
		d, g := made(s, deployment("annotated")), made(s, gadget("annotated"))
		d.Annotations = map[string]string{"a": "b"}
		g.SetAnnotations(d.Annotations)
		return said(s.Update(s.ctx, d)) + said(s.Update(s.ctx, g)) + fmt.Sprint(d.Generation, g.GetGeneration())
	},
	"of the status of a kind that has none": func(s *server) string {
		return said(s.Status().Update(s.ctx, made(s, configMap("no-status"))))
	},
	"of a Deployment that is deleted": func(s *server) string {
		d := deployment("terminating")
		d.Finalizers = []string{"example.com/a"}
		made(s, d)
		err := s.Delete(s.ctx, d)
		return said(err) + s.state(d) + fmt.Sprint(d.Generation)
	},
	"by an eviction": func(s *server) string {
		p := made(s, defaultPod("evicted"))
		dry := &policyv1.Eviction{DeleteOptions: &metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}}}
		return said(s.SubResource("eviction").Create(s.ctx, p, dry)) + s.state(p) + said(s.SubResource("eviction").Create(s.ctx, p, &policyv1.Eviction{})) + s.state(p)
	},
}

func both(d *appsv1.Deployment, p *corev1.Pod, g *unstructured.Unstructured) string {
	return fmt.Sprintln(*d.Spec.Replicas, d.Status.Replicas, d.Generation, d.Labels, d.Annotations) + fmt.Sprintln(p.Spec.Containers[0].Image, p.Status.Phase, p.Generation, p.Labels, p.Annotations) +
		fmt.Sprintln(g.Object["spec"], g.Object["status"], g.GetGeneration(), g.GetLabels())
}

var watches = map[string]func(*server) string{
	"by labels": func(s *server) string {
		return s.watch("labels", client.MatchingLabels{"watched": "labels"})
	},
	"by a field": func(s *server) string {
		return s.watch("field", client.MatchingFields{"metadata.name": "watched-field"})
	},
	"by nothing": func(s *server) string { return s.watch("nothing", client.MatchingLabels{}) },
}

// watch returns the events of a ConfigMap whose label comes and goes.
func (s *server) watch(name string, options ...client.ListOption) string {
	w, err := s.Watch(s.ctx, &corev1.ConfigMapList{}, append(options, client.InNamespace("kube-public"))...)
	if err != nil {
		return said(err)
	}
	defer func() {
		w.Stop()
		for range w.ResultChan() { // lets its goroutine end
		}
	}()
	o := configMap("watched-" + name)
	o.Namespace, o.Labels = "kube-public", map[string]string{"watched": name}
	steps := []func() error{
		func() error { return s.Create(s.ctx, o) },
		func() error { o.Data = map[string]string{"a": "b"}; return s.Update(s.ctx, o) },
		func() error { o.Labels = nil; return s.Update(s.ctx, o) },
		func() error { o.Data = nil; return s.Update(s.ctx, o) },
		func() error { o.Labels = map[string]string{"watched": name}; return s.Update(s.ctx, o) },
		func() error { return s.Delete(s.ctx, o) },
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return said(err)
		}
	}
	// The last event is that of the deletion.
	var got []string
	for e := range w.ResultChan() {
		seen := e.Object.(*corev1.ConfigMap)
		if seen.Name != o.Name {
			continue
		}
		got = append(got, fmt.Sprint(e.Type, seen.Labels, seen.Data))
		if e.Type == watch.Deleted && seen.Data == nil {
			break
		}
	}
	return strings.Join(got, "\n")
}

// pages returns the pages of a list.
func pages(s *server) string {
	for _, name := range []string{"page-a", "page-b", "page-c"} {
		o := configMap(name)
		o.Labels = map[string]string{"of": "pages"}
		made(s, o)
	}
	var got []string
	for next := ""; ; {
		var page corev1.ConfigMapList
		err := s.List(s.ctx, &page, client.InNamespace("default"), client.MatchingLabels{"of": "pages"}, client.Limit(2), client.Continue(next))
		for _, item := range page.Items {
			got = append(got, item.Name)
		}
		if next = page.Continue; next == "" {
			return fmt.Sprint(got, said(err))
		}
		got = append(got, "next")
	}
}
