package managertest

import (
	"context"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/admitkit/admitkit/internal/testkit"
)

// pollInterval is the pause where there is no event to wait for.
const pollInterval = 20 * time.Millisecond

// createFirst creates the watched namespaces and what the author has.
func (i *Installation) createFirst(ctx context.Context) error {
	for _, name := range append([]string{i.Namespace}, i.options.Manager.Namespaces...) {
		if err := i.createAll(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}); err != nil {
			return err
		}
	}
	if err := i.installCRDs(ctx, i.options.CRDPaths); err != nil {
		return err
	}
	return i.createAll(ctx, i.options.Objects...)
}

// installCRDs installs CRDs, those of files and folders too, and returns when they are
// served. It writes only what differs from those that exist: the API server compiles the
// rules of all versions anew after each write.
func (i *Installation) installCRDs(ctx context.Context, paths []string, crds ...*apiextensionsv1.CustomResourceDefinition) error {
	if len(paths)+len(crds) == 0 {
		return nil
	}
	options := envtest.CRDInstallOptions{Paths: paths, CRDs: crds, ErrorIfPathMissing: true, PollInterval: pollInterval, MaxTime: patience}
	if err := i.writeCRDs(ctx, &options); err != nil {
		return fmt.Errorf("installing CRDs: %w", err)
	}
	for _, crd := range options.CRDs {
		i.crds = append(i.crds, crd)
	}
	return nil
}

func (i *Installation) writeCRDs(ctx context.Context, options *envtest.CRDInstallOptions) error {
	if err := envtest.ReadCRDFiles(options); err != nil {
		return err
	}
	config := i.cluster.Config()
	// Tests that run in parallel may install the same one at the same moment.
	raced := func(err error) bool { return apierrors.IsAlreadyExists(err) || apierrors.IsConflict(err) }
	if err := retry.OnError(retry.DefaultBackoff, raced, func() error {
		changed, err := i.changed(ctx, options.CRDs)
		if err != nil {
			return err
		}
		return envtest.CreateCRDs(config, changed)
	}); err != nil {
		return err
	}
	return envtest.WaitForCRDs(config, options.CRDs, *options)
}

// changed returns the CRDs that do not exist as they should be. The others become what exists.
func (i *Installation) changed(ctx context.Context, crds []*apiextensionsv1.CustomResourceDefinition) (changed []*apiextensionsv1.CustomResourceDefinition, err error) {
	admin, err := testkit.NewClient(i.cluster.Admin(), nil)
	if err != nil {
		return nil, err
	}
	for _, crd := range crds {
		live, want := &apiextensionsv1.CustomResourceDefinition{}, crd.DeepCopy()
		if err := wait.PollUntilContextCancel(ctx, pollInterval, true, func(ctx context.Context) (bool, error) {
			*live = apiextensionsv1.CustomResourceDefinition{}
			err := admin.Get(ctx, client.ObjectKeyFromObject(crd), live)
			return live.DeletionTimestamp == nil, client.IgnoreNotFound(err) // what is being deleted goes first
		}); err != nil {
			return nil, err
		}
		apiextensionsv1.SetObjectDefaults_CustomResourceDefinition(want) // as the API server does
		same := equality.Semantic.DeepEqual
		if live.UID != "" && same(live.Spec, want.Spec) && same(live.Labels, want.Labels) && same(live.Annotations, want.Annotations) {
			live.DeepCopyInto(crd)
		} else {
			changed = append(changed, crd)
		}
	}
	return changed, nil
}

// createAll creates objects in their order. A Namespace may be there already.
func (i *Installation) createAll(ctx context.Context, objects ...client.Object) error {
	for _, object := range objects {
		crd, ok := object.(*apiextensionsv1.CustomResourceDefinition)
		if read, is := object.(*unstructured.Unstructured); is && read.GetKind() == "CustomResourceDefinition" {
			crd, ok = &apiextensionsv1.CustomResourceDefinition{}, true
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(read.Object, crd); err != nil {
				return fmt.Errorf("CustomResourceDefinition %s: %w", read.GetName(), err)
			}
		}
		if ok {
			if err := i.installCRDs(ctx, nil, crd); err != nil {
				return err
			}
			continue
		}
		err := i.Admin.Create(ctx, object)
		if _, ok := object.(*corev1.Namespace); ok && apierrors.IsAlreadyExists(err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("creating %T %s: %w", object, client.ObjectKeyFromObject(object), err)
		}
	}
	return nil
}

// install creates the objects of manifests, except those that need nodes and a network,
// and returns when RBAC knows every right.
func (i *Installation) install(ctx context.Context, objects []client.Object) error {
	for _, object := range objects {
		switch object.(type) {
		case *appsv1.Deployment, *corev1.Service:
			continue
		case *apiextensionsv1.CustomResourceDefinition, *corev1.Namespace:
		default:
			// The scheme of the program need not have their kinds.
			content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
			if err != nil {
				return err
			}
			object = &unstructured.Unstructured{Object: content}
		}
		if err := i.createAll(ctx, object); err != nil {
			return err
		}
	}
	return i.waitForRights(ctx, questions(objects))
}

// waitForRights waits until the API server, which learns of roles by a watch, says yes to
// every question. A process that begins before would be refused what it may do.
func (i *Installation) waitForRights(ctx context.Context, questions []authorizationv1.SubjectAccessReviewSpec) error {
	admin, err := testkit.NewClient(i.cluster.Admin(), nil) // the scheme of the program need not have reviews
	if err != nil {
		return err
	}
	for _, question := range questions {
		if err := wait.PollUntilContextCancel(ctx, pollInterval, true, func(ctx context.Context) (bool, error) {
			return testkit.May(ctx, admin, question)
		}); err != nil {
			return fmt.Errorf("waiting until RBAC allows %+v: %w", question, err)
		}
	}
	return nil
}

// questions asks for one right of each rule that objects grant.
func questions(objects []client.Object) []authorizationv1.SubjectAccessReviewSpec {
	rules := map[string][]rbacv1.PolicyRule{}
	key := func(kind, namespace, name string) string { return kind + " " + namespace + "/" + name }
	for _, object := range objects {
		switch role := object.(type) {
		case *rbacv1.Role:
			rules[key("Role", role.Namespace, role.Name)] = role.Rules
		case *rbacv1.ClusterRole:
			rules[key("ClusterRole", "", role.Name)] = role.Rules
		}
	}
	var asked []authorizationv1.SubjectAccessReviewSpec
	ask := func(namespace string, ref rbacv1.RoleRef, subject rbacv1.Subject) {
		roleIn := namespace
		if ref.Kind == "ClusterRole" {
			roleIn = ""
		}
		for _, rule := range rules[key(ref.Kind, roleIn, ref.Name)] {
			asked = append(asked, testkit.Question(userOf(subject.Namespace, subject.Name), namespace, rule))
		}
	}
	for _, object := range objects {
		switch binding := object.(type) {
		case *rbacv1.RoleBinding:
			ask(binding.Namespace, binding.RoleRef, binding.Subjects[0])
		case *rbacv1.ClusterRoleBinding:
			ask("", binding.RoleRef, binding.Subjects[0])
		}
	}
	return asked
}

// userOf returns the user name of a ServiceAccount.
func userOf(namespace, name string) string { return "system:serviceaccount:" + namespace + ":" + name }
