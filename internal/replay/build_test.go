package replay_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/internal/host"
	"github.com/admitkit/admitkit/webhook"
)

// The faults that are put into a build by hand, each as an author may.
var faults = map[string]string{ // by what finds it
	"an image is denied that was allowed":               "decision",
	"an image is allowed that was denied":               "decision",
	"the reason is another":                             "reason",
	"the code is another":                               "code",
	"a label has another value":                         "effect",
	"a label is not set":                                "effect",
	"a variable is set twice":                           "effect",
	"containers are in another order":                   "effect",
	"an annotation is removed":                          "effect",
	"a warning is missing":                              "warnings",
	"a warning is another":                              "warnings",
	"an audit annotation is missing":                    "audit annotations",
	"a panic on DELETE":                                 "decision",
	"an error for a Pod without labels":                 "decision",
	"a webhook is gone":                                 "webhook",
	"a webhook is in another mode":                      "mode",
	"the comparison with the old object is the inverse": "decision",
	"one namespace is forgotten":                        "effect",
	"a group may exec":                                  "decision",
	"a mode would deny something else":                  "audit annotations",
}

var everywhere = extension.EveryNamespace()

// build returns the webhooks of a build with a fault, or with none.
func build(fault string) ([]*webhook.Webhook, error) {
	handlers := []*extension.Handler{stamp(fault), sidecar(fault), replicas(fault), images(fault), coded(fault), unchanged(fault), execs(fault), observed(fault)}
	var rules []webhook.ModeRule
	switch fault {
	case "a webhook is gone":
		handlers = slices.Delete(handlers, 2, 3)
	case "a webhook is in another mode":
		rules = []webhook.ModeRule{{Extensions: []string{host.Open(handlers[3]).Name}, Mode: extension.Warn}}
	}
	return webhook.Group(handlers, webhook.Defaults{Modes: rules})
}

func scope(name string, rules []admissionregistrationv1.RuleWithOperations) extension.Scope {
	return extension.Scope{Name: name, Rules: rules, NamespaceSelector: everywhere}
}

func rulesFor(group, version, resource string) []admissionregistrationv1.RuleWithOperations {
	return []admissionregistrationv1.RuleWithOperations{{
		Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.OperationAll},
		Rule:       admissionregistrationv1.Rule{APIGroups: []string{group}, APIVersions: []string{version}, Resources: []string{resource}},
	}}
}

// stamp labels Pods.
func stamp(fault string) *extension.Handler {
	return extension.MutatingFunc(func(_ context.Context, pod *corev1.Pod, req *extension.Request) error {
		owner := strings.NewReplacer(":", "-", "@", "-").Replace(req.User().Username)
		switch {
		case fault == "a label has another value":
			owner = strings.ToUpper(owner)
		case fault == "a label is not set", fault == "one namespace is forgotten" && req.Namespace == "team-17":
			return nil
		case fault == "an error for a Pod without labels" && len(pod.Labels) == 0:
			return errors.New("no labels")
		case fault == "an annotation is removed":
			delete(pod.Annotations, "note")
		}
		metav1.SetMetaDataLabel(&pod.ObjectMeta, "owner", owner)
		// A secret is copied to where nothing says that it is one.
		for _, variable := range pod.Spec.Containers[0].Env {
			if variable.Name == "DB_PASSWORD" {
				metav1.SetMetaDataAnnotation(&pod.ObjectMeta, "example.com/copied", variable.Value)
			}
		}
		return nil
	}, scope("stamp", extension.Pods(admissionregistrationv1.Create, admissionregistrationv1.Update)))
}

// sidecar adds a container and a variable.
func sidecar(fault string) *extension.Handler {
	return extension.MutatingFunc(func(_ context.Context, pod *corev1.Pod, _ *extension.Request) error {
		variable := corev1.EnvVar{Name: "SIDECAR_TOKEN", Value: "made-by-the-extension"}
		pod.Spec.Containers[0].Env = append(pod.Spec.Containers[0].Env, variable)
		if fault == "a variable is set twice" {
			pod.Spec.Containers[0].Env = append(pod.Spec.Containers[0].Env, variable)
		}
		proxy := corev1.Container{Name: "proxy", Image: "registry.example.com/proxy:1"}
		if fault == "containers are in another order" {
			pod.Spec.Containers = slices.Insert(pod.Spec.Containers, 0, proxy)
		} else {
			pod.Spec.Containers = append(pod.Spec.Containers, proxy)
		}
		return nil
	}, scope("sidecar", extension.Pods(admissionregistrationv1.Create)))
}

func replicas(string) *extension.Handler {
	return extension.MutatingFunc(func(_ context.Context, deployment *appsv1.Deployment, req *extension.Request) error {
		if deployment.Spec.Replicas == nil {
			deployment.Spec.Replicas = new(int32(2))
		}
		req.AddAuditAnnotation("replicas", fmt.Sprint(*deployment.Spec.Replicas))
		return nil
	}, scope("replicas", rulesFor("apps", "v1", "deployments")))
}

// images denies images, and warns.
func images(fault string) *extension.Handler {
	return extension.ValidatingFunc(func(_ context.Context, pod *corev1.Pod, req *extension.Request) error {
		if req.Operation == "DELETE" {
			if fault == "a panic on DELETE" {
				panic("deleted")
			}
			return nil
		}
		image := pod.Spec.Containers[0].Image
		if pod.Spec.HostNetwork && fault != "a warning is missing" {
			if fault == "a warning is another" {
				req.Warnf("hostNetwork is not allowed soon")
			} else {
				req.Warnf("hostNetwork: %v, password: %s", pod.Spec.HostNetwork, pod.Annotations["password"])
			}
		}
		if fault != "an audit annotation is missing" {
			req.AddAuditAnnotation("image", image)
		}
		switch {
		case strings.HasSuffix(image, ":latest") && fault != "an image is allowed that was denied":
			if fault == "the reason is another" {
				return extension.Denyf("%s has no version", image)
			}
			return extension.Denyf("image %s has the tag latest, and its token: %s", image, pod.Annotations["token"])
		case fault == "an image is denied that was allowed" && strings.Contains(image, "shop-3"):
			return extension.Deny("no shop")
		}
		return nil
	}, scope("images", extension.Pods()))
}

// coded is an Extension, whose answer has a code.
type coder struct{ code int32 }

func (c coder) Handle(_ context.Context, _ extension.Manager, pod *corev1.Pod, _ admission.Request) admission.Response {
	if pod.Labels["tier"] != "forbidden" {
		return admission.Allowed("")
	}
	response := admission.Denied("the tier is forbidden")
	response.Result.Code = c.code
	return response
}

func (coder) Scope() extension.Scope {
	return scope("coded", extension.Pods(admissionregistrationv1.Create))
}

func coded(fault string) *extension.Handler {
	c := coder{http.StatusForbidden}
	if fault == "the code is another" {
		c.code = http.StatusUnprocessableEntity
	}
	return host.HandlerOf(c, nil)
}

// unchanged denies changes of Secrets.
func unchanged(fault string) *extension.Handler {
	return extension.ValidatingFunc(func(_ context.Context, secret *corev1.Secret, req *extension.Request) error {
		var old corev1.Secret
		if err := req.Old(&old); err != nil {
			return nil //nolint:nilerr // it is created
		}
		for key, value := range secret.Data {
			if changed := string(old.Data[key]) != string(value); changed != (fault == "the comparison with the old object is the inverse") {
				return extension.Denyf("%s must not change from %s", key, old.Data[key])
			}
		}
		return nil
	}, scope("secrets", rulesFor("", "v1", "secrets")))
}

func execs(fault string) *extension.Handler {
	return extension.ValidatingFunc(func(_ context.Context, options *corev1.PodExecOptions, req *extension.Request) error {
		if fault == "a group may exec" && slices.Contains(req.User().Groups, "developers") {
			return nil
		}
		return extension.Denyf("no exec of %s", strings.Join(options.Command, " "))
	}, scope("exec", extension.Connect("pods/exec")))
}

// observed only tells what it would deny.
func observed(fault string) *extension.Handler {
	s := scope("widgets", rulesFor("example.com", "v1", "widgets"))
	s.Mode = extension.Observe
	return extension.ValidatingFunc(func(_ context.Context, widget *unstructured.Unstructured, _ *extension.Request) error {
		size, _, _ := unstructured.NestedInt64(widget.Object, "spec", "size")
		if limit := map[bool]int64{true: 5, false: 8}[fault == "a mode would deny something else"]; size > limit {
			return extension.Denyf("size %d is too large", size)
		}
		return nil
	}, s)
}
