package main

import (
	"context"
	"regexp"
	"strings"
	"sync"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/testing/controlplane"
)

// panel are sam and sue, who approve by the template "guarded", which needs both.
var panel = sync.OnceValues(func() (users [2]*controlplane.User, err error) {
	for i, name := range []string{"sam", "sue"} {
		if users[i], err = cluster.AddUser(name, "sre"); err != nil {
			return users, err
		}
	}
	for _, rule := range []rbacv1.PolicyRule{
		{APIGroups: []string{"admitkit.dev"}, Resources: []string{"accessdecisions"}, Verbs: []string{"create"}},
		{APIGroups: []string{"admitkit.dev"}, Resources: []string{"podaccessrequests", "execaccessrequests", "roleaccessrequests"}, Verbs: []string{"get", "list"}},
	} {
		name := "decide-" + rule.Verbs[0]
		role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: []rbacv1.PolicyRule{rule}}
		binding := boundTo(name, "sam")
		binding.Subjects[0].Kind, binding.Subjects[0].Name = rbacv1.GroupKind, "sre"
		if err := admin.Create(context.Background(), role); err != nil {
			return users, err
		}
		if err := admin.Create(context.Background(), binding); err != nil {
			return users, err
		}
	}
	return users, nil
})

// guarded opens a shop with that template.
func guarded(t *testing.T) (namespace string, sam, sue *controlplane.User) {
	t.Helper()
	users, err := panel()
	if err != nil {
		t.Fatal(err)
	}
	namespace = newShop(t)
	anotherTemplate(t, namespace, "guarded", func(config *v1alpha1.AccessConfig) {
		config.Approval = &v1alpha1.Approval{Required: 2, Groups: []string{"sre"}}
	})
	return namespace, users[0], users[1]
}

// waiting asks for access by "guarded", and returns the name of the request, which waits.
func waiting(t *testing.T, namespace string, args ...string) string {
	t.Helper()
	o := kubectlAccess(t, alice, append([]string{"exec", "guarded", "-n", namespace, "--timeout", "0"}, args...)...).
		expect(t, 0, "it needs 2 approvals (groups: sre): ask them for 'kubectl access approve guarded-")
	return strings.TrimPrefix(regexp.MustCompile(`execaccessrequests/guarded-\w+`).FindString(o.stderr), "execaccessrequests/")
}

func TestARequestIsApprovedByThoseWhoMay(t *testing.T) {
	t.Parallel()
	namespace, sam, sue := guarded(t)
	name := waiting(t, namespace, "--reason", "orders are stuck")
	testkit.Eventually(t, "sam sees that it waits", func(context.Context) bool {
		return strings.Contains(kubectlAccess(t, sam, "list", "--for-me", "-n", namespace).expect(t, 0, name).stdout, "Waiting")
	})
	kubectlAccess(t, alice, "list", "--pending", "-n", namespace).expect(t, 0, name)
	kubectlAccess(t, alice, "list", "--for-me", "-n", namespace).expect(t, 0, "no requests found")
	kubectlAccess(t, alice, "approve", name, "-n", namespace).expect(t, 3, "cannot create resource \"accessdecisions\"")
	kubectlAccess(t, sam, "approve", name, "-n", namespace, "--reason", "agreed").
		expect(t, 0, "alice asks for access by template guarded for 30m: orders are stuck", name+": approved; it has 1 of 2 approvals (groups: sre)")
	kubectlAccess(t, sam, "approve", name, "-n", namespace).expect(t, 3, "each person decides once")
	testkit.Eventually(t, "sam has nothing more to decide", func(context.Context) bool {
		return strings.Contains(kubectlAccess(t, sam, "list", "--for-me", "-n", namespace).stderr, "no requests found")
	})
	kubectlAccess(t, sue, "approve", "exec/"+name, "-n", namespace).expect(t, 0, "it has 2 of 2 approvals")
	testkit.Eventually(t, "it is ready", func(context.Context) bool {
		return strings.Contains(kubectlAccess(t, alice, "list", "-n", namespace).stdout, name) &&
			strings.Contains(kubectlAccess(t, alice, "describe", name, "-n", namespace).stdout, "access was granted")
	})
	story := kubectlAccess(t, alice, "describe", name, "-n", namespace).
		expect(t, 0, "alice asked  orders are stuck", "sam approved  agreed", "sue approved", "access was granted", "2 of 2 approvals").stdout
	order := regexp.MustCompile(`(?s)alice asked.*approved.*approved.*access was granted`)
	if !order.MatchString(story) {
		t.Errorf("the story is not in order:\n%s", story)
	}
	kubectlAccess(t, sue, "deny", name, "-n", namespace, "--reason", "too late").expect(t, 3, "has been approved already")
	if o := kubectlAccess(t, alice, "list", "--pending", "-n", namespace); strings.Contains(o.stdout, name) {
		t.Errorf("it is pending:\n%s", o.stdout)
	}
}

func TestADenialSaysWhy(t *testing.T) {
	t.Parallel()
	namespace, sam, _ := guarded(t)
	name := waiting(t, namespace)
	kubectlAccess(t, sam, "deny", name, "-n", namespace).expect(t, 2, "--reason is missing")
	kubectlAccess(t, nil, "deny", name, "-n", namespace, "--reason", "x").expect(t, 3, "alice asks for access by template guarded (Deployment/web) for 30m") // who may read the template
	kubectlAccess(t, sam, "deny", name, "-n", namespace, "--reason", "use the replica\n  2001-01-01 00:00:00  sue approved").expect(t, 0, name+": denied")
	testkit.Eventually(t, "it has ended", func(context.Context) bool {
		return strings.Contains(kubectlAccess(t, alice, "describe", name, "-n", namespace).stdout, "the request has ended: denied by sam: use the replica")
	})
	kubectlAccess(t, alice, "describe", name, "-n", namespace).expect(t, 0, "0 of 2 approvals")
	kubectlAccess(t, alice, "list", "-n", namespace).expect(t, 0, name, "Denied")
	for line := range strings.Lines(kubectlAccess(t, alice, "describe", name, "-n", namespace).stdout) {
		if strings.HasPrefix(line, "  2001") {
			t.Errorf("a reason looks like a step of the story: %s", line)
		}
	}
}

// isCounted waits for the first of two approvals, which a second one at the same moment would hide.
func isCounted(t *testing.T, request, namespace string) {
	t.Helper()
	testkit.Eventually(t, "the approval is counted", func(context.Context) bool {
		return strings.Contains(kubectlAccess(t, alice, "describe", request, "-n", namespace).stdout, "1 of 2 approvals")
	})
}

func TestOneWaitsForApprovalAsLongAsItTakes(t *testing.T) {
	t.Parallel()
	namespace, sam, sue := guarded(t)
	kubectlAccess(t, alice, "exec", "guarded", "-n", namespace, "--timeout", "10s").
		expect(t, 4, "not ready after 10s: waiting for approval: it has 0 of 2 approvals (groups: sre)", "The request is kept")
	kubectlAccess(t, alice, "exec", "guarded", "-n", namespace, "--timeout", "0", "--wait-approval").expect(t, 2, "--timeout must be more than 0")
	asked := begin(t, alice, "exec", "guarded", "-n", namespace, "--name", "patient", "--wait-approval", "--timeout", "1m")
	testkit.Eventually(t, "it waits", func(context.Context) bool {
		return strings.Contains(kubectlAccess(t, sam, "list", "--for-me", "-n", namespace).stdout, "patient")
	})
	kubectlAccess(t, sam, "approve", "patient", "-n", namespace).expect(t, 0)
	isCounted(t, "patient", namespace)
	kubectlAccess(t, sue, "approve", "patient", "-n", namespace).expect(t, 0)
	asked.wait().expect(t, 0, "waiting for approval: it has 1 of 2 approvals (groups: sre)", "patient: access until", "kubectl get pod")
}

func TestOneWhoWaitsLearnsOfADenial(t *testing.T) {
	t.Parallel()
	namespace, sam, _ := guarded(t)
	asked := begin(t, alice, "exec", "guarded", "-n", namespace, "--name", "hopeful", "--wait-approval")
	testkit.Eventually(t, "it waits", func(context.Context) bool {
		return strings.Contains(kubectlAccess(t, sam, "list", "--for-me", "-n", namespace).stdout, "hopeful")
	})
	kubectlAccess(t, sam, "deny", "hopeful", "-n", namespace, "--reason", "not today").expect(t, 0)
	asked.wait().expect(t, 3, "access has ended: denied by sam: not today")
}
