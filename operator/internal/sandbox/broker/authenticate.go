package broker

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/internal/sandbox/broker/protocol"
)

// The claims of a token that is bound to a Pod.
const (
	claimPodName = "authentication.kubernetes.io/pod-name"
	claimPodUID  = "authentication.kubernetes.io/pod-uid"
)

// caller is who asks.
type caller struct {
	user authenticationv1.UserInfo
	// pod is that of a run. It is nil for the controller.
	pod       *v1alpha1.LeasePod
	namespace string
}

// maxToken bounds a token: what the API server issues has less than 2 KiB.
const maxToken = 16 << 10

// authenticate asks the API server whose the token of a request is.
func (b *service) authenticate(ctx context.Context, r *http.Request) (*caller, error) {
	token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !ok || token == "" || len(token) > maxToken {
		return nil, refuse(http.StatusUnauthorized, protocol.CodeUnauthorized, "show a ServiceAccount token of audience %s as bearer", protocol.Audience)
	}
	review := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token, Audiences: []string{protocol.Audience}}}
	if err := b.live.Create(ctx, review); err != nil {
		return nil, b.unavailable("asking the API server whose the token is", err)
	}
	status := &review.Status
	if !status.Authenticated || !slices.Contains(status.Audiences, protocol.Audience) {
		return nil, refuse(http.StatusUnauthorized, protocol.CodeUnauthorized, "the token is not valid for audience %s: it has expired, its Pod is gone, or it is for another audience", protocol.Audience)
	}
	who := &caller{user: status.User}
	if slices.Contains(b.options.Controllers, status.User.Username) {
		return who, nil
	}
	account := strings.Split(status.User.Username, ":")
	name, uid := status.User.Extra[claimPodName], status.User.Extra[claimPodUID]
	if len(account) != 4 || account[0] != "system" || account[1] != "serviceaccount" || len(name) != 1 || len(uid) != 1 {
		return nil, refuse(http.StatusForbidden, protocol.CodeForbidden, "user %q is neither the controller nor a token that is bound to the Pod of a run", status.User.Username)
	}
	who.namespace, who.pod = account[2], &v1alpha1.LeasePod{Name: name[0], UID: types.UID(uid[0])}
	return who, nil
}

// runOf returns the run that a caller speaks for. named is what the request says.
func (b *service) runOf(ctx context.Context, who *caller, named *protocol.Run) (*run, error) {
	var found *run
	var err error
	switch {
	case who.pod == nil && !valid(named):
		return nil, refuse(http.StatusBadRequest, protocol.CodeBadRequest, badRun)
	case who.pod == nil:
		found, err = b.runs.get(ctx, kindOf(named), named.Namespace, named.Name)
	case named != nil:
		return nil, refuse(http.StatusForbidden, protocol.CodeForbidden, "run: a Pod asks for its own run, and names none")
	default:
		found, err = b.runOfPod(ctx, who)
	}
	switch {
	case apierrors.IsNotFound(err):
		return nil, refuse(http.StatusNotFound, protocol.CodeRunNotFound, "there is no such run: %v", err)
	case err != nil:
		return nil, b.unavailable("reading the run", err)
	case len(b.options.Namespaces) > 0 && !slices.Contains(b.options.Namespaces, found.Namespace):
		return nil, refuse(http.StatusForbidden, protocol.CodeForbidden, "namespace %s is not one of those for runs", found.Namespace)
	}
	return found, nil
}

const badRun = "run: name the namespace and the name of the run; its kind is SandboxRun, which is the default, or Workspace"

func valid(named *protocol.Run) bool {
	return named != nil && len(validation.IsDNS1123Label(named.Namespace)) == 0 && len(validation.IsDNS1123Subdomain(named.Name)) == 0 &&
		slices.Contains([]string{"", protocol.KindRun, protocol.KindWorkspace}, named.Kind)
}

func kindOf(named *protocol.Run) v1alpha1.LeaseKind {
	return v1alpha1.LeaseKind(cmp.Or(named.Kind, protocol.KindRun))
}

func (b *service) runOfPod(ctx context.Context, who *caller) (*run, error) {
	pod := &corev1.Pod{}
	if err := b.live.Get(ctx, client.ObjectKey{Namespace: who.namespace, Name: who.pod.Name}, pod); err != nil {
		return nil, fmt.Errorf("reading Pod %s/%s: %w", who.namespace, who.pod.Name, err)
	}
	if pod.UID != who.pod.UID {
		return nil, apierrors.NewNotFound(runResource, "of an earlier Pod "+pod.Name)
	}
	return b.runs.ofPod(ctx, pod)
}
