package main

import (
	"context"
	"regexp"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/cmd/kubectl-access/internal/cli"
)

// roleTemplate makes a template for a role in a shop.
func roleTemplate(t *testing.T, namespace, name string, ref v1alpha1.AccessRoleRef, change func(*v1alpha1.AccessConfig)) {
	t.Helper()
	template := &v1alpha1.RoleAccessTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: v1alpha1.RoleAccessTemplateSpec{
		AccessConfig: v1alpha1.AccessConfig{AllowedGroups: []string{"devs"}, AllowedUsers: []string{"carol"}, DefaultDuration: "30m", MaxDuration: "2h", MaxConcurrent: 100},
		RoleRef:      ref,
	}}
	if change != nil {
		change(&template.Spec.AccessConfig)
	}
	testkit.Create(t, admin, template)
}

var deployer = v1alpha1.AccessRoleRef{Kind: "Role", Name: "deployer"}

func TestOneGetsARoleAndReadsWhatItIs(t *testing.T) {
	t.Parallel()
	namespace := newShop(t)
	roleTemplate(t, namespace, "deploy", deployer, nil)
	kubectlAccess(t, mallory, "role", "deploy", "-n", namespace).expect(t, 3, "is not allowed by template")
	o := kubectlAccess(t, alice, "role", "deploy", "-n", namespace, "--name", "rollback", "--duration", "10m", "--reason", "roll back").
		expect(t, 0, "roleaccessrequests/rollback created in namespace "+namespace, "rollback: access until")
	if !regexp.MustCompile(`^Role/deployer in namespace ` + namespace + ` until \d{4}-\S+, for alice\n$`).MatchString(o.stdout) {
		t.Errorf("it prints %q", o.stdout)
	}
	reads := func(ctx context.Context) error {
		return testkit.Client(t, alice, cli.Scheme).Get(ctx, client.ObjectKey{Namespace: namespace, Name: "none"}, &corev1.ConfigMap{})
	}
	testkit.Eventually(t, "alice has the right", func(ctx context.Context) bool { return apierrors.IsNotFound(reads(ctx)) })
	kubectlAccess(t, alice, "list", "-n", namespace).expect(t, 0, "rollback", "role", "Role/deployer")
	kubectlAccess(t, alice, "templates", "-n", namespace).expect(t, 0, "deploy", "Role/deployer")
	if row := regexp.MustCompile(`(?m)^deploy .*`).FindString(kubectlAccess(t, alice, "templates", "-n", namespace, "-o", "wide").stdout); row == "" || strings.Contains(row, "exec") {
		t.Errorf("the verbs of a role are said to be those of a Pod: %q", row)
	}
	kubectlAccess(t, alice, "describe", "role/rollback", "-n", namespace).expect(t, 0, "Role/deployer", "access was granted", "alice asked  roll back")
	kubectlAccess(t, alice, "extend", "rollback", "5m", "-n", namespace).expect(t, 0, "rollback: access until")
	kubectlAccess(t, alice, "revoke", "role/rollback", "-n", namespace).expect(t, 0, "rollback: revoked")
	testkit.Eventually(t, "alice has the right no more", func(ctx context.Context) bool { return apierrors.IsForbidden(reads(ctx)) })
	kubectlAccess(t, alice, "role", "deploy", "-n", namespace, "--shell").expect(t, 2, "unknown flag: --shell")
	kubectlAccess(t, alice, "role", "none", "-n", namespace).expect(t, 5, "there is no RoleAccessTemplate", "deploy")
	kubectlAccess(t, alice, "role", "-n", namespace).expect(t, 2, "TEMPLATE is missing; those that you may use in namespace "+namespace+": deploy")
}

func TestATemplateIsFoundByItsRole(t *testing.T) {
	t.Parallel()
	namespace := newShop(t)
	roleTemplate(t, namespace, "reader", v1alpha1.AccessRoleRef{Kind: "ClusterRole", Name: "view"}, nil)
	o := kubectlAccess(t, alice, "role", "clusterrole/view", "-n", namespace, "--name", "by-role").expect(t, 0, "by-role: access until")
	if !strings.HasPrefix(o.stdout, "ClusterRole/view in namespace "+namespace+" until ") {
		t.Errorf("it prints %q", o.stdout)
	}
	kubectlAccess(t, alice, "role", "clusterrole/edit", "-n", namespace).expect(t, 5, "there is no RoleAccessTemplate for ClusterRole/edit")
}

func TestARoleIsAskedForOnBehalfOfAnother(t *testing.T) {
	t.Parallel()
	namespace := newShop(t)
	roleTemplate(t, namespace, "for-others", deployer, func(config *v1alpha1.AccessConfig) { config.AskFor = &v1alpha1.AskFor{Users: []string{"alice"}} })
	o := kubectlAccess(t, alice, "role", "for-others", "-n", namespace, "--for", "carol").expect(t, 0)
	if !strings.HasSuffix(o.stdout, ", for carol\n") {
		t.Errorf("it prints %q", o.stdout)
	}
}

func TestOneWaitsForTheApprovalOfARole(t *testing.T) {
	t.Parallel()
	namespace, sam, sue := guarded(t)
	roleTemplate(t, namespace, "guarded-role", deployer, func(config *v1alpha1.AccessConfig) {
		config.Approval = &v1alpha1.Approval{Required: 2, Groups: []string{"sre"}}
	})
	asked := begin(t, alice, "role", "guarded-role", "-n", namespace, "--name", "patient-role", "--wait-approval", "--timeout", "1m")
	testkit.Eventually(t, "it waits", func(context.Context) bool {
		return strings.Contains(kubectlAccess(t, sam, "list", "--for-me", "-n", namespace).stdout, "patient-role")
	})
	kubectlAccess(t, sam, "approve", "role/patient-role", "-n", namespace).expect(t, 0, "it has 1 of 2 approvals (groups: sre)")
	isCounted(t, "patient-role", namespace)
	kubectlAccess(t, sue, "approve", "patient-role", "-n", namespace).expect(t, 0)
	asked.wait().expect(t, 0, "it needs 2 approvals (groups: sre)", "waiting for approval: it has 1 of 2 approvals (groups: sre)", "patient-role: access until", "Role/deployer in namespace "+namespace)

	denied := kubectlAccess(t, alice, "role", "guarded-role", "-n", namespace, "--name", "hopeless-role", "--timeout", "0").expect(t, 0, "it needs 2 approvals")
	if denied.stdout != "" {
		t.Errorf("it prints %q before it is granted", denied.stdout)
	}
	kubectlAccess(t, sam, "deny", "hopeless-role", "-n", namespace, "--reason", "not now").expect(t, 0, "hopeless-role: denied")
}

func TestTheNamesOfTemplatesForRolesAreCompleted(t *testing.T) {
	t.Parallel()
	namespace := newShop(t)
	roleTemplate(t, namespace, "complete-me", deployer, nil)
	o := kubectlAccess(t, alice, "__complete", "role", "-n", namespace, "")
	if !slices.Contains(strings.Split(o.stdout, "\n"), "complete-me") {
		t.Errorf("it completes %q", o.stdout)
	}
}

func TestWhoHasNoRightsOnRequestsForRolesSeesTheOthers(t *testing.T) {
	t.Parallel()
	user, err := cluster.AddUser("olga", "old")
	if err != nil {
		t.Fatal(err)
	}
	testkit.Create(t, admin, clusterRole("before-roles", "create", "get", "list", "watch"), boundTo("before-roles", "olga"))
	testkit.Create(t, admin, &v1alpha1.ExecAccessRequest{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "olgas-view"}, Spec: v1alpha1.ExecAccessRequestSpec{RequestSpec: v1alpha1.RequestSpec{TemplateName: "yet-to-come"}}})
	kubectlAccess(t, user, "list", "-n", namespace).expect(t, 0, "olgas-view", "roleaccessrequests are not listed: you have no right to list them")
	kubectlAccess(t, user, "describe", "olgas-view", "-n", namespace).expect(t, 0, "TemplateMissing")
	if err := client.IgnoreNotFound(admin.Delete(t.Context(), &v1alpha1.ExecAccessRequest{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "olgas-view"}})); err != nil {
		t.Fatal(err)
	}
}
