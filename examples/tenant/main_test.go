package main

import (
	"strings"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/manager"
	"github.com/admitkit/admitkit/testing/admit"
	"github.com/admitkit/admitkit/testing/controlplane"
	"github.com/admitkit/admitkit/testing/managertest"
)

func named(namespace, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name}
}

func pod(namespace, name string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: named(namespace, name), Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "registry.example.com/web:1"}}}}
}

func claim(namespace string) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{ObjectMeta: named(namespace, "uploads"), Spec: corev1.PersistentVolumeClaimSpec{
		AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
	}}
}

var shop = &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop", Labels: map[string]string{tenant: "shop"}, Annotations: map[string]string{costCentre: "4711"}}}

// Marking and denying need no cluster.
func TestAPodOfNobodyIsDeniedAndAClaimIsNot(t *testing.T) {
	ofPods, ofClaims := admissions()
	client := admit.New(t, ofPods, ofClaims).With(shop.DeepCopy(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "nobodys"}})
	for _, object := range []runtime.Object{pod("shop", "web"), claim("shop")} {
		marked := client.Create(object).Object.(metav1.Object)
		if marked.GetLabels()[tenant] != "shop" || marked.GetAnnotations()[costCentre] != "4711" {
			t.Errorf("%T: the labels are %v, the annotations %v", object, marked.GetLabels(), marked.GetAnnotations())
		}
	}
	if result := client.Create(pod("nobodys", "web")); result.Allowed || !strings.Contains(result.Reason, "namespace nobodys has no tenant") {
		t.Errorf("a Pod of nobody: %t, %q", result.Allowed, result.Reason)
	}
	if result := client.Create(claim("nobodys")); !result.Allowed || len(result.Warnings) != 1 {
		t.Errorf("a claim of nobody: %t, %q, %q", result.Allowed, result.Reason, result.Warnings)
	}
}

// TestATenantPaysForItsObjects runs the registrar, the server and the watcher with the
// rights that `tenant manifests` prints.
func TestATenantPaysForItsObjects(t *testing.T) {
	installed := managertest.Run(t, controlplane.Run(t, controlplane.Options{}), managertest.Options{
		Name: "tenant", AllNamespaces: true, Objects: []client.Object{shop.DeepCopy()},
	}, build)
	create := func(object client.Object) error { return installed.Admin.Create(t.Context(), object) }

	for _, object := range []client.Object{pod("shop", "web"), claim("shop")} {
		if err := create(object); err != nil {
			t.Fatal(err)
		}
		if object.GetLabels()[tenant] != "shop" || object.GetAnnotations()[costCentre] != "4711" {
			t.Errorf("%T: the labels are %v, the annotations %v", object, object.GetLabels(), object.GetAnnotations())
		}
	}

	// Whatever the cache knows by then.
	fresh := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "fresh", Labels: map[string]string{tenant: "fresh"}}}
	for _, object := range []client.Object{fresh, pod("fresh", "web")} {
		if err := create(object); err != nil {
			t.Fatal(err)
		}
	}

	counts := func(line string) {
		t.Helper()
		for began := time.Now(); !strings.Contains(installed.Metrics(), line+"\n"); time.Sleep(20 * time.Millisecond) {
			if time.Since(began) > time.Minute {
				t.Fatalf("/metrics has no line %s", line)
			}
		}
	}
	counts(`tenant_pods{tenant="shop"} 1`)
	counts(`tenant_pods{tenant="fresh"} 1`)
	if err := installed.Admin.Delete(t.Context(), pod("shop", "web"), client.GracePeriodSeconds(0)); err != nil {
		t.Fatal(err)
	}
	counts(`tenant_pods{tenant="shop"} 0`)
}

// TestAPodIsNotAdmittedUnseenAndAClaimIs looks at what the registrar would write.
func TestAPodIsNotAdmittedUnseenAndAClaimIs(t *testing.T) {
	mgr, err := manager.New(manager.Options{WebhookNamespace: "tenant-system", ServiceName: "tenant", RESTConfig: &rest.Config{Host: "http://offline.invalid"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := build(mgr); err != nil {
		t.Fatal(err)
	}
	installation, err := mgr.Manifests(manager.InstallOptions{Name: "tenant", Image: "registry.example.com/tenant:1"})
	if err != nil {
		t.Fatal(err)
	}
	policies := map[string]string{}
	for _, object := range installation.Configurations {
		if configuration, ok := object.(*admissionregistrationv1.MutatingWebhookConfiguration); ok {
			for _, webhook := range configuration.Webhooks {
				policies[webhook.Rules[0].Resources[0]] = string(*webhook.FailurePolicy)
			}
		}
	}
	if policies["pods"] != "Fail" || policies["persistentvolumeclaims"] != "Ignore" {
		t.Errorf("the failure policies are %v", policies)
	}
}
