package access_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/extension/deliver"
	"github.com/admitkit/admitkit/internal/freeport"
	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/operator/access"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/testing/controlplane"
)

// castle is a namespace in which roles are given for a while, and the people who try to get
// more.
type castle struct {
	namespace, elsewhere string
	// wide is a ClusterRole that takes in others with its name as a label.
	wide    string
	told    *chronicle
	notes   *receiver
	manager *running
	// ada writes templates and may bind the roles, in the namespace alone. lea may bind
	// deployer only as long as her RoleBinding is there. eve writes templates, and holds
	// what is in the roles, but may bind none. stan may write the status of requests.
	ada, lea, eve, stan *controlplane.User
	named               atomic.Int32
}

// Each role lets its holders get one resource, so that one can ask whether they hold it.
var heldBy = map[string]string{"deployer": "configmaps", "doomed": "services", "fixed": "endpoints", "unnamed": "secrets"}

func newCastle(t *testing.T) *castle {
	t.Helper()
	c := &castle{namespace: testkit.Namespace(t, admin), elsewhere: testkit.Namespace(t, admin), told: &chronicle{}, notes: newReceiver(t)}
	c.wide = "wide-" + c.namespace
	for name, into := range map[string]**controlplane.User{"ada": &c.ada, "lea": &c.lea, "eve": &c.eve, "stan": &c.stan} {
		user, err := cluster.AddUser(name+"-"+c.namespace, "engineers")
		if err != nil {
			t.Fatal(err)
		}
		*into = user
	}
	for _, namespace := range []string{c.namespace, c.elsewhere} {
		for name, resource := range heldBy {
			testkit.Create(t, admin, roleThatLetsGet(namespace, name, resource))
		}
		c.let(t, namespace, "templates", rule("admitkit.dev", "create get list update patch delete", "roleaccesstemplates"), c.ada.Name, c.lea.Name, c.eve.Name)
	}
	testkit.Create(t, admin, &rbacv1.ClusterRole{
		ObjectMeta:      metav1.ObjectMeta{Name: c.wide},
		AggregationRule: &rbacv1.AggregationRule{ClusterRoleSelectors: []metav1.LabelSelector{{MatchLabels: map[string]string{"into": c.wide}}}},
	})
	t.Cleanup(func() {
		_ = admin.DeleteAllOf(context.Background(), &rbacv1.ClusterRole{}, client.MatchingLabels{"into": c.wide})
		_ = admin.Delete(context.Background(), &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: c.wide}})
	})
	c.letManagerBind(t)
	named := []string{"deployer", "doomed", "fixed"}
	c.let(t, c.namespace, "binders", rule("rbac.authorization.k8s.io", "bind", "roles", named...), c.ada.Name)
	c.let(t, c.namespace, "wide-binders", rule("rbac.authorization.k8s.io", "bind", "clusterroles", c.wide), c.ada.Name)
	c.let(t, c.namespace, "unnamed-binders", rule("rbac.authorization.k8s.io", "bind", "roles", "unnamed"), c.ada.Name)
	c.let(t, c.namespace, "lea-binds", rule("rbac.authorization.k8s.io", "bind", "roles", "deployer"), c.lea.Name)
	c.let(t, c.namespace, "held", rule("", "get", "configmaps"), c.eve.Name)
	c.let(t, c.namespace, "status", rule("admitkit.dev", "get update patch", "roleaccessrequests/status"), c.stan.Name)
	c.let(t, c.namespace, "decisions", rule("admitkit.dev", "create", "accessdecisions"), "alice", "bob")
	options := access.Options{Namespaces: []string{c.namespace, c.elsewhere}, ClusterRoles: []string{c.wide}, Notifications: deliver.EventOptions{Options: deliver.Options{URL: c.notes.URL}, Source: "test"}}
	for _, name := range named {
		options.Roles = append(options.Roles, c.namespace+"/"+name, c.elsewhere+"/"+name)
	}
	c.manager = startOn(t, testkit.ManagerNamespace(t, admin), freeport.For(t), options, nil, c.told)
	return c
}

// letManagerBind gives the manager the rights of operator/docs/access-roles.md, with which
// `manifests` would name the roles.
func (c *castle) letManagerBind(t *testing.T) {
	t.Helper()
	for _, namespace := range []string{c.namespace, c.elsewhere} {
		c.let(t, namespace, "admitkit-roles", rule("rbac.authorization.k8s.io", "bind", "roles", "deployer", "doomed", "fixed"), managerUser.Name)
		c.let(t, namespace, "admitkit-clusterroles", rule("rbac.authorization.k8s.io", "bind", "clusterroles", c.wide), managerUser.Name)
	}
	c.let(t, "", "watch-"+c.wide, rule("rbac.authorization.k8s.io", "get list watch", "clusterroles", c.wide), managerUser.Name)
}

func rule(group, verbs, resource string, names ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: []string{resource}, ResourceNames: names, Verbs: strings.Fields(verbs)}
}

func roleThatLetsGet(namespace, name, resource string) *rbacv1.Role {
	return &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Rules: []rbacv1.PolicyRule{rule("", "get", resource)}}
}

func users(names ...string) (subjects []rbacv1.Subject) {
	for _, name := range names {
		subjects = append(subjects, rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: name})
	}
	return subjects
}

// let gives users a right in a namespace.
func (c *castle) let(t *testing.T, namespace, name string, right rbacv1.PolicyRule, names ...string) {
	t.Helper()
	testkit.Grant(t, admin, namespace, name, []rbacv1.PolicyRule{right}, names...)
}

// template returns a template of a name of its own.
func (c *castle) template(role string) *v1alpha1.RoleAccessTemplate {
	ref := v1alpha1.AccessRoleRef{Kind: "Role", Name: role}
	if role == c.wide {
		ref.Kind = "ClusterRole"
	}
	return &v1alpha1.RoleAccessTemplate{
		ObjectMeta: metav1.ObjectMeta{Namespace: c.namespace, Name: fmt.Sprintf("t%d", c.named.Add(1))},
		Spec:       v1alpha1.RoleAccessTemplateSpec{AccessConfig: config("devs"), RoleRef: ref},
	}
}

func (c *castle) write(t *testing.T, author *controlplane.User, role string, change ...func(*v1alpha1.AccessConfig)) *v1alpha1.RoleAccessTemplate {
	t.Helper()
	template := c.template(role)
	for _, fn := range change {
		fn(&template.Spec.AccessConfig)
	}
	testkit.Create(t, as(t, author), template)
	return template
}

func roleRequest(template *v1alpha1.RoleAccessTemplate, name, duration string) *v1alpha1.RoleAccessRequest {
	r := &v1alpha1.RoleAccessRequest{ObjectMeta: metav1.ObjectMeta{Namespace: template.Namespace, Name: name}}
	r.Spec.TemplateName, r.Spec.Duration = template.Name, duration
	return r
}

// ask makes a request of a name of its own.
func (c *castle) ask(t *testing.T, user *controlplane.User, template *v1alpha1.RoleAccessTemplate, duration string) *v1alpha1.RoleAccessRequest {
	t.Helper()
	req := roleRequest(template, fmt.Sprintf("r%d", c.named.Add(1)), duration)
	testkit.Create(t, as(t, user), req)
	return req
}

// gets asks for a role and waits for it.
func (c *castle) gets(t *testing.T, user *controlplane.User, template *v1alpha1.RoleAccessTemplate, duration string) *v1alpha1.RoleAccessRequest {
	t.Helper()
	req := c.ask(t, user, template, duration)
	await(t, req, "is ready", func() bool { return req.Status.Ready })
	return req
}

// canGet asks the API server whether a user may get a resource.
func canGet(t *testing.T, user *controlplane.User, namespace, resource string) bool {
	t.Helper()
	review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
		ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: namespace, Verb: "get", Version: "v1", Resource: resource},
	}}
	if err := as(t, user).Create(t.Context(), review); err != nil {
		t.Fatal(err)
	}
	return review.Status.Allowed
}

func soonCan(t *testing.T, user *controlplane.User, namespace, resource string, want bool) {
	t.Helper()
	testkit.Eventually(t, fmt.Sprintf("%s can get %s: %t", user.Name, resource, want), func(context.Context) bool {
		return canGet(t, user, namespace, resource) == want
	})
}

// pastTheWebhooks is a client that the webhooks take for the manager: what it does stands for
// what is done while none is registered.
func pastTheWebhooks(t *testing.T) client.Client {
	t.Helper()
	config := cluster.Config()
	config.Impersonate = rest.ImpersonationConfig{UserName: managerUser.Name, Groups: []string{"system:masters"}}
	c, err := client.New(config, client.Options{Scheme: scheme, Mapper: admin.RESTMapper()})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func endsAs(t *testing.T, req *v1alpha1.RoleAccessRequest, reason, message string) {
	t.Helper()
	await(t, req, "is "+reason, func() bool { return fails(req, v1alpha1.ConditionAccessResourcesCreated, reason) })
	if c := meta.FindStatusCondition(req.Status.Conditions, v1alpha1.ConditionAccessResourcesCreated); !strings.Contains(c.Message, message) {
		t.Errorf("the condition says %q, want %q", c.Message, message)
	}
	testkit.Eventually(t, "there is no RoleBinding", func(context.Context) bool { return gone(t, bindingOf(req)) })
}

func TestAnEngineerHasARoleForAWhile(t *testing.T) {
	t.Parallel()
	c := newCastle(t)
	template := c.write(t, c.ada, "deployer")
	testkit.Eventually(t, "the template is ready", func(ctx context.Context) bool {
		return admin.Get(ctx, client.ObjectKeyFromObject(template), template) == nil && template.Status.Ready
	})
	if template.Spec.Author == nil || template.Spec.Author.Username != c.ada.Name {
		t.Errorf("the author is %+v", template.Spec.Author)
	}
	if canGet(t, alice, c.namespace, "configmaps") {
		t.Fatal("alice has the role before she asks")
	}
	req := c.gets(t, alice, template, "1h")
	soonCan(t, alice, c.namespace, "configmaps", true)
	if canGet(t, bob, c.namespace, "configmaps") || canGet(t, alice, c.elsewhere, "configmaps") || canGet(t, alice, c.namespace, "secrets") {
		t.Error("somebody has more than alice asked for")
	}
	role := &rbacv1.Role{}
	if err := admin.Get(t.Context(), client.ObjectKey{Namespace: c.namespace, Name: "deployer"}, role); err != nil {
		t.Fatal(err)
	}
	if got := req.Status.GrantedRole; got == nil || *got != (v1alpha1.GrantedRole{Kind: "Role", Name: "deployer", UID: string(role.UID)}) {
		t.Errorf("the status says %+v", got)
	}
	binding := bindingOf(req)
	if err := admin.Get(t.Context(), client.ObjectKeyFromObject(binding), binding); err != nil {
		t.Fatal(err)
	}
	if owner := metav1.GetControllerOf(binding); owner == nil || owner.UID != req.UID || binding.RoleRef.Name != "deployer" {
		t.Errorf("the RoleBinding is %+v", binding)
	}
	notBefore(t, endsIn(t, alice, req, 3*time.Second), "alice has no role any more", func() bool { return !canGet(t, alice, c.namespace, "configmaps") })
	await(t, req, "says that it ended", func() bool { return fails(req, "AccessStillValid", "Expired") && !req.Status.Ready })
	if !gone(t, bindingOf(req)) {
		t.Error("the RoleBinding is there after the end")
	}
	testkit.Eventually(t, "the record is gone", func(context.Context) bool { return gone(t, roleOf(req)) })
	if story := c.told.of(req); !slices.Equal(story, []string{"asked alice", "granted alice", "end-moved alice", "ended alice"}) {
		t.Errorf("the records are %q", story)
	}
	if !c.told.says(req, "granted", "alice may access Role deployer until ") {
		t.Error("the record does not name the role")
	}
	notes := c.notes.tells(t, req, "asked", "granted", "ended")
	if n := notes[1]; n.Type != "dev.admitkit.access.granted" || n.Subject != "RoleAccessRequest/"+c.namespace+"/"+req.Name || n.Data.Role != "Role deployer" ||
		n.Data.Pod != "" || !strings.HasPrefix(n.Data.Message, "alice may access Role deployer until ") {
		t.Errorf("the notification is %+v", n)
	}
}

func TestAClusterRoleIsGivenInTheNamespaceAlone(t *testing.T) {
	t.Parallel()
	c := newCastle(t)
	part := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: c.wide + "-1", Labels: map[string]string{"into": c.wide}}, Rules: []rbacv1.PolicyRule{rule("", "get", "configmaps")}}
	testkit.Create(t, admin, part)
	req := c.gets(t, alice, c.write(t, c.ada, c.wide), "1h")
	soonCan(t, alice, c.namespace, "configmaps", true)
	if canGet(t, alice, c.elsewhere, "configmaps") {
		t.Error("alice has the role elsewhere")
	}
	// Whoever may change the ClusterRole changes what its holders have: that is Kubernetes' own.
	testkit.Create(t, admin, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: c.wide + "-2", Labels: map[string]string{"into": c.wide}}, Rules: []rbacv1.PolicyRule{rule("", "get", "services")}})
	soonCan(t, alice, c.namespace, "services", true)
	if err := patch(t, alice, req, `{"spec":{"revoked":{}}}`); err != nil {
		t.Fatal(err)
	}
	for _, resource := range []string{"configmaps", "services"} {
		soonCan(t, alice, c.namespace, resource, false)
	}
	await(t, req, "is revoked", func() bool { return fails(req, "AccessStillValid", "Revoked") })
	c.anotherOfItsNameIsNotGiven(t)
}

func (c *castle) anotherOfItsNameIsNotGiven(t *testing.T) {
	t.Helper()
	req := c.gets(t, alice, c.write(t, c.ada, c.wide), "1h")
	wide := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: c.wide}}
	if err := admin.Delete(t.Context(), wide); err != nil {
		t.Fatal(err)
	}
	testkit.Create(t, admin, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: c.wide}, Rules: []rbacv1.PolicyRule{rule("", "get", "secrets")}})
	endsAs(t, req, v1alpha1.ReasonRoleLost, "ClusterRole "+c.wide)
	soonCan(t, alice, c.namespace, "secrets", false)
}

func TestWhatARoleConsistsOfIsRepaired(t *testing.T) {
	t.Parallel()
	c := newCastle(t)
	req := c.gets(t, alice, c.write(t, c.ada, "deployer"), "1h")
	binding, other := bindingOf(req), pastTheWebhooks(t)
	isRepaired := func(what string) {
		t.Helper()
		before := binding.UID
		testkit.Eventually(t, what+" is repaired", func(ctx context.Context) bool {
			return admin.Get(ctx, client.ObjectKeyFromObject(binding), binding) == nil && binding.UID != before &&
				binding.RoleRef.Name == "deployer" && len(binding.Subjects) == 1 && binding.Subjects[0].Name == "alice"
		})
		soonCan(t, alice, c.namespace, "configmaps", true)
	}
	isRepaired("nothing") // reads it
	if err := admin.Delete(t.Context(), binding); err != nil {
		t.Fatal(err)
	}
	isRepaired("a RoleBinding that was deleted")

	binding.Subjects = users("mallory")
	if err := other.Update(t.Context(), binding); err != nil {
		t.Fatal(err)
	}
	isRepaired("a RoleBinding with another subject")
	soonCan(t, mallory, c.namespace, "configmaps", false)

	binding.Subjects, binding.Labels = users("alice", "mallory"), nil
	if err := other.Update(t.Context(), binding); err != nil {
		t.Fatal(err)
	}
	isRepaired("a RoleBinding with one subject more, and without our label")
	soonCan(t, mallory, c.namespace, "configmaps", false)

	more := binding.DeepCopy()
	more.RoleRef.Name, more.ResourceVersion, more.UID = "unnamed", "", ""
	if err := other.Delete(t.Context(), binding); err != nil {
		t.Fatal(err)
	}
	for err := other.Create(t.Context(), more); err != nil; err = other.Create(t.Context(), more) {
		// The repair was first.
		if !apierrors.IsAlreadyExists(err) {
			t.Fatal(err)
		}
		if err := other.Delete(t.Context(), binding.DeepCopy(), client.PropagationPolicy(metav1.DeletePropagationBackground)); client.IgnoreNotFound(err) != nil {
			t.Fatal(err)
		}
	}
	isRepaired("a RoleBinding to another role")
	soonCan(t, alice, c.namespace, "secrets", false)

	if err := patch(t, pastUser(t), binding, `{"metadata":{"ownerReferences":null}}`); err != nil {
		t.Fatal(err)
	}
	isRepaired("a RoleBinding without its owner")
	if err := admin.Delete(t.Context(), roleOf(req)); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the record is made again", func(context.Context) bool { return !gone(t, roleOf(req)) })
	if granted := req.Status.GrantedRole; admin.Get(t.Context(), client.ObjectKeyFromObject(req), req) != nil || *req.Status.GrantedRole != *granted {
		t.Errorf("another role is granted: %+v", req.Status.GrantedRole)
	}
}

// pastUser is who may take owners away, as the garbage collector does.
func pastUser(t *testing.T) *controlplane.User {
	t.Helper()
	return cluster.Admin()
}

// escalations are attempts to have more than RBAC gave, by what is tried. Each must end with
// nobody having it, and a message that says why.
var escalations = map[string]func(*testing.T, *castle){
	"who may bind nothing writes a template": func(t *testing.T, c *castle) {
		refused(t, as(t, c.eve).Create(t.Context(), c.template("doomed")), "spec.roleRef: ", "user \""+c.eve.Name+"\" has not the right to bind Role "+c.namespace+"/doomed", "resourceNames [\"doomed\"]")
	},
	"who holds all that is in the role writes a template": func(t *testing.T, c *castle) {
		soonCan(t, c.eve, c.namespace, "configmaps", true)
		refused(t, as(t, c.eve).Create(t.Context(), c.template("deployer")), "has not the right to bind")
	},
	"a template names another author": func(t *testing.T, c *castle) {
		template := c.template("deployer")
		template.Spec.Author = &v1alpha1.Author{Requester: v1alpha1.Requester{Username: c.ada.Name, Groups: []string{"system:masters"}}}
		refused(t, as(t, c.eve).Create(t.Context(), template), "user \""+c.eve.Name+"\" has not the right to bind")
	},
	"a template is written in the name of its author": func(t *testing.T, c *castle) {
		create := cluster.Kubectl(t.Context(), c.eve, "create", "--validate=false", "-f", "-", "--as", c.ada.Name)
		create.Stdin = strings.NewReader(fmt.Sprintf("{apiVersion: admitkit.dev/v1alpha1, kind: RoleAccessTemplate, metadata: {namespace: %s, name: in-the-name-of}, "+
			"spec: {accessConfig: {allowedGroups: [engineers]}, roleRef: {kind: Role, name: deployer}}}", c.namespace))
		if output, err := create.CombinedOutput(); err == nil || !strings.Contains(string(output), "cannot impersonate") {
			t.Errorf("%v: %s", err, output)
		}
	},
	"a template is for the role of that name in another namespace": func(t *testing.T, c *castle) {
		template := c.template("deployer")
		template.Namespace = c.elsewhere
		refused(t, as(t, c.ada).Create(t.Context(), template), "has not the right to bind Role "+c.elsewhere+"/deployer")
	},
	"a template is copied to another namespace": func(t *testing.T, c *castle) {
		template := c.write(t, c.ada, c.wide)
		stolen := template.DeepCopy()
		stolen.ObjectMeta = metav1.ObjectMeta{Namespace: c.elsewhere, Name: template.Name}
		refused(t, as(t, c.eve).Create(t.Context(), stolen), "user \""+c.eve.Name+"\" has not the right to bind ClusterRole "+c.wide+" in namespace "+c.elsewhere)
	},
	"a role that the operator does not name": func(t *testing.T, c *castle) {
		refused(t, as(t, c.ada).Create(t.Context(), c.template("unnamed")), "admitkit grants no Role "+c.namespace+"/unnamed", "--access-role="+c.namespace+"/unnamed")
	},
	"an administrator's template for cluster-admin": func(t *testing.T, c *castle) {
		template := c.template("cluster-admin")
		template.Spec.RoleRef.Kind = "ClusterRole"
		refused(t, admin.Create(t.Context(), template), "admitkit grants no ClusterRole cluster-admin", "--access-cluster-role=cluster-admin")
	},
	"the role of a template is changed": func(t *testing.T, c *castle) {
		refused(t, patch(t, c.ada, c.write(t, c.ada, "deployer"), `{"spec":{"roleRef":{"name":"doomed"}}}`), "roleRef cannot be changed")
	},
	"who may bind nothing lets themselves use another's template": func(t *testing.T, c *castle) {
		template := c.write(t, c.ada, "deployer")
		refused(t, patch(t, c.eve, template, fmt.Sprintf(`{"spec":{"accessConfig":{"allowedUsers":[%q]}}}`, c.eve.Name)), "has not the right to bind")
		refused(t, as(t, c.eve).Create(t.Context(), roleRequest(template, "eves", "1h")), "is not allowed by template")
	},
	"who may bind nothing takes the approval out of a template": func(t *testing.T, c *castle) {
		template := c.write(t, c.ada, "deployer", func(config *v1alpha1.AccessConfig) {
			config.Approval = &v1alpha1.Approval{Required: 1, Users: []string{"bob"}, Timeout: "1h"}
		})
		refused(t, patch(t, c.eve, template, `{"spec":{"accessConfig":{"approval":null}}}`), "has not the right to bind")
	},
	"a label makes nobody the author": func(t *testing.T, c *castle) {
		template := c.write(t, c.ada, "deployer")
		if err := patch(t, c.eve, template, `{"metadata":{"labels":{"a":"b"}},"spec":{"author":{"username":"system:admin","groups":["system:masters"]}}}`); err != nil {
			t.Fatal(err)
		}
		if template.Labels["a"] != "b" || template.Spec.Author.Username != c.ada.Name || slices.Contains(template.Spec.Author.Groups, "system:masters") {
			t.Errorf("the template is %+v", template)
		}
	},
	"the author loses the right before the grant": func(t *testing.T, c *castle) {
		template := c.write(t, c.lea, "deployer", func(config *v1alpha1.AccessConfig) {
			config.Approval = &v1alpha1.Approval{Required: 1, Users: []string{"bob"}, Timeout: "1h"}
		})
		req, later := c.ask(t, alice, template, "1h"), c.gets(t, bob, c.write(t, c.lea, "deployer"), "1h")
		await(t, req, "waits", func() bool { return fails(req, "Approved", "Waiting") })
		if err := admin.Delete(t.Context(), &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: c.namespace, Name: "lea-binds"}}); err != nil {
			t.Fatal(err)
		}
		soonMay(t, c.lea, c.namespace, false)
		approved(t, req, bob)
		endsAs(t, req, v1alpha1.ReasonRoleNotAllowed, "user \""+c.lea.Name+"\" has not the right to bind")
		// What is granted goes on, but is not granted again.
		if gone(t, bindingOf(later)) {
			t.Error("what was granted before has ended")
		}
		if err := admin.Delete(t.Context(), bindingOf(later)); err != nil {
			t.Fatal(err)
		}
		endsAs(t, later, v1alpha1.ReasonRoleNotAllowed, "user \""+c.lea.Name+"\" has not the right to bind")
		refused(t, as(t, c.lea).Create(t.Context(), c.template("deployer")), "has not the right to bind")
		c.let(t, c.namespace, "lea-binds-again", rule("rbac.authorization.k8s.io", "bind", "roles", "deployer"), c.lea.Name)
		await(t, req, "is granted when the author has the right again", func() bool { return req.Status.Ready })
	},
	"a role is made anew during the grant": func(t *testing.T, c *castle) {
		req := c.gets(t, alice, c.write(t, c.ada, "doomed"), "1h")
		doomed := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: c.namespace, Name: "doomed"}}
		if err := admin.Delete(t.Context(), doomed); err != nil {
			t.Fatal(err)
		}
		testkit.Create(t, admin, roleThatLetsGet(c.namespace, "doomed", "serviceaccounts"))
		endsAs(t, req, v1alpha1.ReasonRoleLost, "Role doomed")
		soonCan(t, alice, c.namespace, "serviceaccounts", false)
		// Not by its record either, which others may delete.
		if err := client.IgnoreNotFound(admin.Delete(t.Context(), roleOf(req))); err != nil {
			t.Fatal(err)
		}
		testkit.Eventually(t, "it is looked at again", func(ctx context.Context) bool {
			return admin.Get(ctx, client.ObjectKeyFromObject(req), req) == nil && strings.Contains(messageOf(req), "was replaced by another of the same name")
		})
		endsAs(t, req, v1alpha1.ReasonRoleLost, "make another request")
	},
	"a template is made anew by another": func(t *testing.T, c *castle) {
		template := c.write(t, c.ada, "fixed")
		req := c.gets(t, alice, template, "1h")
		if err := as(t, c.eve).Delete(t.Context(), template); err != nil {
			t.Fatal(err)
		}
		await(t, req, "has ended", func() bool { return fails(req, "AccessStillValid", "TemplateMissing") })
		again := template.DeepCopy()
		again.ObjectMeta = metav1.ObjectMeta{Namespace: c.namespace, Name: template.Name}
		refused(t, as(t, c.eve).Create(t.Context(), again), "has not the right to bind")
		soonCan(t, alice, c.namespace, "endpoints", false)
	},
	"the status of a request names a greater role": func(t *testing.T, c *castle) {
		template := c.write(t, c.ada, "deployer", func(config *v1alpha1.AccessConfig) {
			config.Approval = &v1alpha1.Approval{Required: 1, Users: []string{"bob"}, Timeout: "1h"}
		})
		req := c.ask(t, alice, template, "1h")
		await(t, req, "waits", func() bool { return fails(req, "Approved", "Waiting") })
		for _, forged := range []string{
			`{"status":{"ready":true,"grantedRole":{"kind":"ClusterRole","name":"cluster-admin","uid":"1"}}}`, `{"status":{"ready":true,"approvedAt":"2026-01-01T00:00:00Z"}}`,
		} {
			err := as(t, c.stan).Status().Patch(t.Context(), req.DeepCopy(), client.RawPatch("application/merge-patch+json", []byte(forged)))
			refused(t, err, "only admitkit writes them")
		}
		approved(t, req, bob)
		await(t, req, "is ready", func() bool { return req.Status.Ready })
		err := pastTheWebhooks(t).Status().Patch(t.Context(), req.DeepCopy(), client.RawPatch("application/merge-patch+json", []byte(`{"status":{"grantedRole":{"name":"doomed"}}}`)))
		refused(t, err, "status.grantedRole cannot be changed")
	},
	"a RoleBinding of that name is there": func(t *testing.T, c *castle) {
		template := c.write(t, c.ada, "deployer")
		req := roleRequest(template, "taken", "1h")
		foreign := bindingOf(req)
		foreign.RoleRef, foreign.Subjects = rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "unnamed"}, users("carol")
		testkit.Create(t, pastTheWebhooks(t), foreign)
		testkit.Create(t, as(t, alice), req)
		await(t, req, "says so", func() bool { return fails(req, "AccessResourcesCreated", v1alpha1.ReasonNameTaken) })
		if uid := foreign.UID; admin.Get(t.Context(), client.ObjectKeyFromObject(foreign), foreign) != nil || foreign.UID != uid || foreign.Subjects[0].Name != "carol" {
			t.Errorf("the RoleBinding is %+v", foreign)
		}
		if canGet(t, alice, c.namespace, "secrets") {
			t.Error("alice has the role of the other RoleBinding")
		}
	},
	"an administrator of the namespace changes what was granted": func(t *testing.T, c *castle) {
		req := c.gets(t, alice, c.write(t, c.ada, "deployer"), "1h")
		refused(t, patch(t, cluster.Admin(), bindingOf(req), `{"subjects":[{"apiGroup":"rbac.authorization.k8s.io","kind":"User","name":"mallory"}]}`), "which admitkit alone makes and changes")
		refused(t, patch(t, cluster.Admin(), roleOf(req), `{"metadata":{"annotations":{"admitkit.dev/role":"ClusterRole/cluster-admin"}}}`), "which admitkit alone makes and changes")
		refused(t, admin.Create(t.Context(), &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: c.namespace, Name: "roleaccess-mine"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"}, Subjects: users("mallory")}), "roleaccess-")
	},
	"a request is deleted without what it got": func(t *testing.T, c *castle) {
		req := c.gets(t, alice, c.write(t, c.ada, "fixed"), "1h")
		soonCan(t, alice, c.namespace, "endpoints", true)
		if err := admin.Delete(t.Context(), req, client.PropagationPolicy(metav1.DeletePropagationOrphan)); err != nil {
			t.Fatal(err)
		}
		testkit.Eventually(t, "nothing is left", func(context.Context) bool { return gone(t, bindingOf(req)) && gone(t, roleOf(req)) })
		soonCan(t, alice, c.namespace, "endpoints", false)
	},
	"who asks approves": func(t *testing.T, c *castle) {
		req := c.ask(t, alice, c.write(t, c.ada, "deployer", func(config *v1alpha1.AccessConfig) {
			config.Approval = &v1alpha1.Approval{Required: 1, Users: []string{"alice", "bob"}, Timeout: "1h"}
		}), "1h")
		await(t, req, "waits", func() bool { return fails(req, "Approved", "Waiting") })
		_, err := approve(t, alice, req)
		refused(t, err, `user "alice" made the request, and nobody decides about their own`)
		stillWaits(t, req)
		isGranted(t, req, approved(t, req, bob))
	},
	"a request is lengthened beyond the maximum": func(t *testing.T, c *castle) {
		req := c.gets(t, alice, c.write(t, c.ada, "deployer"), "1h")
		refused(t, patch(t, alice, req, `{"spec":{"duration":"3h"}}`), "exceeds the maximum")
		refused(t, patch(t, c.eve, req, `{"spec":{"duration":"90m"}}`), "by the requester only")
	},
	"a request is for another's template": func(t *testing.T, c *castle) {
		refused(t, as(t, mallory).Create(t.Context(), roleRequest(c.write(t, c.ada, "deployer"), "mallorys", "1h")), "is not allowed by template")
	},
	"a request names another requester": func(t *testing.T, c *castle) {
		req := roleRequest(c.write(t, c.ada, "deployer"), "forged", "1h")
		req.Spec.Requester = &v1alpha1.Requester{Username: "alice", Groups: []string{"devs"}}
		refused(t, as(t, mallory).Create(t.Context(), req), "spec.requester does not name the user who makes the request")
	},
}

func TestNobodyGetsARoleThatItsAuthorCannotGive(t *testing.T) {
	t.Parallel()
	c := newCastle(t)
	var tried, escalated atomic.Int32
	t.Run("attempts", func(t *testing.T) {
		for sentence, try := range escalations {
			t.Run(sentence, func(t *testing.T) {
				t.Parallel()
				tried.Add(1)
				try(t, c)
				if t.Failed() {
					escalated.Add(1)
				}
			})
		}
	})
	if tried.Load() < 12 {
		t.Errorf("%d attempts", tried.Load())
	}
	for _, user := range []*controlplane.User{mallory, c.eve, c.stan} {
		for role, resource := range heldBy {
			if canGet(t, user, c.namespace, resource) && (user != c.eve || role != "deployer") {
				escalated.Add(1)
				t.Errorf("%s has the role %s", user.Name, role)
			}
		}
	}
	testkit.Figure("access.role_escalations_tried", float64(tried.Load()), "")
	testkit.Figure("access.role_escalated", float64(escalated.Load()), "")
}

func messageOf(req *v1alpha1.RoleAccessRequest) string {
	if c := meta.FindStatusCondition(req.Status.Conditions, v1alpha1.ConditionAccessResourcesCreated); c != nil {
		return c.Message
	}
	return ""
}

// soonMay waits until the authorizer knows that a user may bind deployer, or no longer.
func soonMay(t *testing.T, user *controlplane.User, namespace string, want bool) {
	t.Helper()
	testkit.Eventually(t, "the authorizer knows", func(ctx context.Context) bool {
		review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{
			Namespace: namespace, Name: "deployer", Verb: "bind", Group: rbacv1.GroupName, Version: "v1", Resource: "roles",
		}}}
		return as(t, user).Create(ctx, review) == nil && review.Status.Allowed == want
	})
}

func TestAnUninstallEndsRolesToo(t *testing.T) {
	t.Parallel()
	c := newCastle(t)
	req := c.gets(t, alice, c.write(t, c.ada, "deployer"), "1h")
	soonCan(t, alice, c.namespace, "configmaps", true)
	c.keep(t, req)
	c.manager.stop()
	mgr, _ := uninstaller(t, c.namespace, freeport.For(t))
	removers := removersOf(t, mgr, access.Options{})
	// The webhook that guards RoleBindings is registered still, and nobody answers. The
	// uninstall comes back when it is not.
	if errs := removers.remove(t, time.Minute, mgr); len(errs) != 1 || !strings.Contains(errs[0].Error(), "failed calling webhook") {
		t.Fatal(errs)
	}
	name := metav1.ObjectMeta{Name: "admitkit." + c.manager.GetWebhookNamespace()}
	for _, object := range []client.Object{
		&admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: name}, &admissionregistrationv1.ValidatingWebhookConfiguration{ObjectMeta: name},
	} {
		if err := admin.Delete(t.Context(), object); err != nil {
			t.Fatal(err)
		}
	}
	if errs := removers.remove(t, time.Minute, mgr); len(errs) > 0 {
		t.Fatal(errs)
	}
	if !gone(t, bindingOf(req)) || !gone(t, roleOf(req)) {
		t.Error("something is left of the grant")
	}
	soonCan(t, alice, c.namespace, "configmaps", false)
	if err := admin.Get(t.Context(), client.ObjectKeyFromObject(req), req); err != nil || req.Status.RevokedAt == nil {
		t.Errorf("it is not revoked: %v", err)
	}
}

func TestWithoutRolesTheKindIsOff(t *testing.T) {
	t.Parallel()
	namespace := common(t)
	template := (&castle{namespace: namespace}).template("deployer")
	refused(t, admin.Create(t.Context(), template), "admitkit grants no roles here", "--access-role=NAMESPACE/NAME")
	refused(t, as(t, alice).Create(t.Context(), roleRequest(template, "a", "1h")), "admitkit grants no roles here")
	for _, field := range []string{"verbs: [attach]", "accessCommand: ls", "singleUse: true", "onExpiry: Evict", "session: {idleTimeout: 15m}"} {
		manifest := fmt.Sprintf("{apiVersion: admitkit.dev/v1alpha1, kind: RoleAccessTemplate, metadata: {name: bad, namespace: %s}, "+
			"spec: {accessConfig: {allowedGroups: [devs], %s}, roleRef: {kind: Role, name: deployer}}}", namespace, field)
		if err := testkit.Apply(t.Context(), cluster, manifest); err == nil || !strings.Contains(err.Error(), "are about Pods, and a role has none") {
			t.Errorf("%s: %v", field, err)
		}
	}
}
