package admit_test

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
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
	installed := managertest.Run(t, cluster, managertest.Options{Manager: manager.Options{Namespace: shop}}, func(mgr *manager.Manager) error {
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
