// Package v1alpha1 has the kinds of controllers that are made of hooks, in Metacontroller's
// API group, metacontroller.k8s.io, as manifests for Metacontroller 4.17 have them:
//
//   - A [CompositeController] makes children of its parents, as a Deployment makes ReplicaSets.
//   - A [DecoratorController] attaches objects, labels and annotations to objects of others.
//   - A [ControllerRevision] is what is remembered of a parent during a rolling update.
//
// Package operator/hook runs them. The schemas keep the fields that they do not know:
// the condition Honored of a controller names each field that has no effect.
//
// +kubebuilder:object:generate=true
// +groupName=metacontroller.k8s.io
package v1alpha1

//go:generate controller-gen object crd:crdVersions=v1 paths=. output:crd:dir=../../../config/crd/metacontroller

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the group and version of this package's kinds.
var GroupVersion = schema.GroupVersion{Group: "metacontroller.k8s.io", Version: "v1alpha1"}

// AddToScheme adds this package's kinds to a scheme.
func AddToScheme(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion,
		&CompositeController{}, &CompositeControllerList{},
		&DecoratorController{}, &DecoratorControllerList{},
		&ControllerRevision{}, &ControllerRevisionList{},
	)
	metav1.AddToGroupVersion(scheme, GroupVersion)
	return nil
}
