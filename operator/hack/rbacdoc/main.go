// Command rbacdoc writes the blocks of roles in the documentation, so that they
// cannot differ from what `manifests` grants. It replaces what stands between
// <!-- rbac:NAME --> and <!-- /rbac --> in a page. The chart's rules are written by a
// test in operator/cmd/admitkit.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/manager"
	"github.com/admitkit/admitkit/manager/command"
)

// pages are the files with blocks.
var pages = []string{"docs/security.md", "operator/docs/access.md", "operator/docs/audit/rights.md"}

// blocks are what a marker stands for.
var blocks = map[string]func(*operator) (string, error){
	"registrar": func(*operator) (string, error) { return program("my-ext-registrar") },
	"server":    func(*operator) (string, error) { return program("my-ext") },

	"access": func(o *operator) (string, error) { return o.role("admitkit-access", accessFlags) },
	"access-egress": func(o *operator) (string, error) {
		return o.roleAnd("admitkit-access-egress", []string{"default", "kube-system"}, egressFlags, accessFlags)
	},
	"audit": func(o *operator) (string, error) { return o.role("admitkit-audit", auditFlags) },
	"audit-enforcement": func(o *operator) (string, error) {
		return o.role("admitkit-audit-enforcement", enforcementFlags, auditFlags, accessFlags)
	},
	"audit-touched-pods": func(o *operator) (string, error) {
		return o.role("admitkit-audit-touched-pods", touchedFlags, auditFlags)
	},
}

var (
	accessFlags      = []string{"--audit=false", "--access", "--access-namespaces=*"}
	egressFlags      = append([]string{"--access-network-policy=auto", "--access-cilium"}, accessFlags...)
	auditFlags       = []string{"--audit-objects", "--audit-all-namespaces"}
	enforcementFlags = append([]string{"--access", "--access-namespaces=*", "--enforce"}, auditFlags...)
	touchedFlags     = append([]string{"--evict-touched-pods-after=1h"}, auditFlags...)
)

func main() {
	dir := flag.String("dir", ".", "root of the repository")
	flag.Parse()
	if err := write(*dir); err != nil {
		fmt.Fprintln(os.Stderr, "rbacdoc:", err)
		os.Exit(1)
	}
}

func write(dir string) error {
	o, err := build(dir)
	if err != nil {
		return err
	}
	defer os.Remove(o.path) //nolint:errcheck // a file in the temporary folder
	for _, page := range pages {
		path := filepath.Join(dir, page)
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		written, err := fill(string(text), o)
		if err != nil {
			return fmt.Errorf("%s: %w", page, err)
		}
		if err := os.WriteFile(path, []byte(written), 0o644); err != nil {
			return err
		}
	}
	return nil
}

var marked = regexp.MustCompile(`(?s)(<!-- rbac:([a-z-]+) -->\n).*?(<!-- /rbac -->)`)

func fill(text string, o *operator) (string, error) {
	if !marked.MatchString(text) {
		return "", errors.New("there is no marker")
	}
	var errs []error
	text = marked.ReplaceAllStringFunc(text, func(block string) string {
		parts := marked.FindStringSubmatch(block)
		write := blocks[parts[2]]
		if write == nil {
			errs = append(errs, fmt.Errorf("no roles are named %q", parts[2]))
			return block
		}
		roles, err := write(o)
		errs = append(errs, err)
		return parts[1] + "```yaml\n" + roles + "```\n" + parts[3]
	})
	return text, errors.Join(errs...)
}

// program returns the roles and bindings of one ServiceAccount in an installation of
// a program whose extension asks for nothing.
func program(account string) (string, error) {
	cmd := command.New("my-ext", func(mgr *manager.Manager) error {
		nothing := func(context.Context, *corev1.Pod, *extension.Request) error { return nil }
		return mgr.AddExtension(extension.MutatingFunc(nothing, extension.Scope{}))
	})
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetArgs([]string{"manifests", "--image=x", "--namespace=apps", "--webhook-namespace=my-system", "--leaf-secret-name="})
	if err := cmd.Execute(); err != nil {
		return "", err
	}
	objects, err := objectsOf(out.String())
	if err != nil {
		return "", err
	}
	var texts []string
	for _, o := range objects {
		bound := slices.ContainsFunc(objects, func(b object) bool { return b.binds(account) && b.RoleRef.Kind == o.Kind && b.RoleRef.Name == o.Name })
		if bound || o.binds(account) {
			texts = append(texts, o.String())
		}
	}
	return strings.Join(texts, "---\n"), nil
}

// operator is operator/cmd/admitkit, built.
type operator struct{ path string }

func build(dir string) (*operator, error) {
	file, err := os.CreateTemp("", "admitkit")
	if err != nil {
		return nil, err
	}
	if err := file.Close(); err != nil {
		return nil, err
	}
	build := exec.Command("go", "build", "-C", "operator", "-o", file.Name(), "./cmd/admitkit")
	build.Dir, build.Stderr = dir, os.Stderr
	return &operator{file.Name()}, build.Run()
}

// account is the ServiceAccount of the pages.
var account = rbacv1.Subject{Kind: "ServiceAccount", Name: "admitkit", Namespace: "admitkit-system"}

// role returns a ClusterRole with what the extensions need when the operator runs
// with the flags, but not when it runs with any of the others; and its binding.
func (o *operator) role(name string, flags []string, without ...[]string) (string, error) {
	rules, err := o.rightsWith(flags, without...)
	if err != nil {
		return "", err
	}
	role := object{Kind: "ClusterRole", ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: rules}
	binding := object{
		Kind: "ClusterRoleBinding", ObjectMeta: role.ObjectMeta, RoleRef: rbacv1.RoleRef{Kind: role.Kind, Name: name},
		Subjects: []rbacv1.Subject{account},
	}
	return role.String() + "---\n" + binding.String(), nil
}

// roleAnd is role with the Roles in namespaces, and their bindings.
func (o *operator) roleAnd(name string, namespaces, flags []string, without ...[]string) (string, error) {
	text, err := o.role(name, flags, without...)
	if err != nil {
		return "", err
	}
	objects, err := o.objects(flags)
	for _, made := range objects {
		if slices.Contains(namespaces, made.Namespace) {
			made.Name = name
			if made.RoleRef.Name != "" {
				made.RoleRef.Name, made.Subjects = name, []rbacv1.Subject{account}
			}
			text += "---\n" + made.String()
		}
	}
	return text, err
}

func (o *operator) rightsWith(flags []string, without ...[]string) ([]rbacv1.PolicyRule, error) {
	rules, err := o.rights(flags)
	if err != nil {
		return nil, err
	}
	for _, flags := range without {
		others, err := o.rights(flags)
		if err != nil {
			return nil, err
		}
		rules = slices.DeleteFunc(rules, func(r rbacv1.PolicyRule) bool {
			return slices.ContainsFunc(others, func(other rbacv1.PolicyRule) bool { return r.String() == other.String() })
		})
	}
	return rules, nil
}

func (o *operator) objects(flags []string) ([]object, error) {
	args := append([]string{"manifests", "--image=x", "--webhook-namespace=admitkit-system"}, flags...)
	run := exec.Command(o.path, args...)
	run.Stderr = os.Stderr
	text, err := run.Output()
	if err != nil {
		return nil, fmt.Errorf("admitkit %s: %w", strings.Join(args, " "), err)
	}
	return objectsOf(string(text))
}

func (o *operator) rights(flags []string) ([]rbacv1.PolicyRule, error) {
	objects, err := o.objects(flags)
	if err != nil {
		return nil, err
	}
	var rules []rbacv1.PolicyRule
	for _, o := range objects { // one for the servers, one for what reconciles
		if o.Kind == "ClusterRole" && strings.HasSuffix(o.Name, "-extensions") {
			rules = append(rules, o.Rules...)
		}
	}
	if len(rules) == 0 {
		return nil, fmt.Errorf("admitkit %s: no ClusterRole of the extensions", strings.Join(flags, " "))
	}
	return rules, nil
}

// compact merges the verbs of rules on the same resources, and then the resources of
// rules with the same verbs.
func compact(rules []rbacv1.PolicyRule) []rbacv1.PolicyRule {
	merge := func(rules []rbacv1.PolicyRule, field func(*rbacv1.PolicyRule) *[]string) []rbacv1.PolicyRule {
		var merged []rbacv1.PolicyRule
		for _, r := range rules {
			key := func(r rbacv1.PolicyRule) string { *field(&r) = nil; return r.String() }
			i := slices.IndexFunc(merged, func(m rbacv1.PolicyRule) bool { return key(m) == key(r) })
			if i < 0 {
				merged = append(merged, *r.DeepCopy())
				continue
			}
			into := field(&merged[i])
			for _, value := range *field(&r) {
				if !slices.Contains(*into, value) {
					*into = append(*into, value)
				}
			}
		}
		return merged
	}
	rules = merge(rules, func(r *rbacv1.PolicyRule) *[]string { return &r.Verbs })
	return merge(rules, func(r *rbacv1.PolicyRule) *[]string { return &r.Resources })
}

// object is a role or a binding.
type object struct {
	Kind              string `json:"kind"`
	metav1.ObjectMeta `json:"metadata"`
	Rules             []rbacv1.PolicyRule `json:"rules"`
	RoleRef           rbacv1.RoleRef      `json:"roleRef"`
	Subjects          []rbacv1.Subject    `json:"subjects"`
}

func objectsOf(manifests string) ([]object, error) {
	var objects []object
	for document := range strings.SplitSeq(manifests, "---\n") {
		var o object
		if err := yaml.Unmarshal([]byte(document), &o); err != nil {
			return nil, err
		}
		if len(o.Rules)+len(o.Subjects) > 0 {
			objects = append(objects, o)
		}
	}
	return objects, nil
}

func (o object) binds(account string) bool {
	return slices.ContainsFunc(o.Subjects, func(s rbacv1.Subject) bool { return s.Name == account })
}

// String returns the object as people write it.
func (o object) String() string {
	var text strings.Builder
	fmt.Fprintf(&text, "apiVersion: rbac.authorization.k8s.io/v1\nkind: %s\nmetadata:\n  name: %s\n", o.Kind, o.Name)
	if o.Namespace != "" {
		fmt.Fprintf(&text, "  namespace: %s\n", o.Namespace)
	}
	if len(o.Rules) > 0 {
		text.WriteString("rules:\n" + format(compact(o.Rules)))
		return text.String()
	}
	fmt.Fprintf(&text, "roleRef:\n  apiGroup: rbac.authorization.k8s.io\n  kind: %s\n  name: %s\nsubjects:\n", o.RoleRef.Kind, o.RoleRef.Name)
	for _, s := range o.Subjects {
		fmt.Fprintf(&text, "- kind: %s\n  name: %s\n  namespace: %s\n", s.Kind, s.Name, s.Namespace)
	}
	return text.String()
}

func format(rules []rbacv1.PolicyRule) string {
	var text strings.Builder
	for _, r := range rules {
		groups := strings.Join(r.APIGroups, ", ")
		if groups == "" {
			groups = `""`
		}
		fmt.Fprintf(&text, "- apiGroups: [%s]\n  resources: [%s]\n", groups, strings.Join(r.Resources, ", "))
		if len(r.ResourceNames) > 0 {
			fmt.Fprintf(&text, "  resourceNames: [%s]\n", strings.Join(r.ResourceNames, ", "))
		}
		fmt.Fprintf(&text, "  verbs: [%s]\n", strings.Join(r.Verbs, ", "))
	}
	return text.String()
}
