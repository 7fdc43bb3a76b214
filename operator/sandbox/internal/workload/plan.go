package workload

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/sandbox/internal/owned"
)

// Defaults of templates.
const (
	defaultTimeout   = 30 * 60
	defaultGrace     = 60
	defaultMountPath = "/workspace"
)

var (
	defaultSize      = resource.MustParse("1Gi")
	defaultResources = corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("1"), corev1.ResourceMemory: resource.MustParse("512Mi"), corev1.ResourceEphemeralStorage: resource.MustParse("1Gi"),
	}
)

// Plan is what a template, its base and a run make together.
type Plan struct {
	// Image is that of the work.
	Image         string
	command, args []string
	env           []v1alpha1.SandboxEnv
	resources     corev1.ResourceList
	mountPath     string
	size          resource.Quantity
	// Egress is what the Pod may reach by address, and Hosts by name, through its proxy.
	Egress v1alpha1.Egress
	Hosts  []v1alpha1.EgressName
	pod    v1alpha1.SandboxPod
	// Timeout is how long the work may take, in seconds, and grace how long its end.
	Timeout, grace int64
	// Interactive are the limits of Interactive runs, nil for a template that is not for these, and for Batch runs.
	Interactive *v1alpha1.InteractiveLimits
	// Requires are the credentials that runs cannot be without.
	Requires []string
}

// Of returns what a template makes. base is that of a template that has one. An error names the
// field of the template that is wrong.
func Of(template, base *v1alpha1.SandboxRunTemplateSpec) (*Plan, error) {
	p := &Plan{mountPath: defaultMountPath, size: defaultSize, resources: defaultResources, Timeout: defaultTimeout, grace: defaultGrace, Egress: v1alpha1.Egress{DNS: new(false)}}
	if base != nil {
		var err error
		if p, err = Of(base, nil); err != nil {
			return nil, fmt.Errorf("its base: %w", err)
		}
	}
	if template.BaseTemplateRef == nil {
		if err := p.lock(template); err != nil {
			return nil, err
		}
	}
	if p.Image == "" {
		return nil, fmt.Errorf("image: must be set")
	}
	if template.Requires != nil {
		p.Requires = slices.Concat(p.Requires, template.Requires.Credentials)
	}
	if template.Interactive != nil {
		if base != nil && p.Interactive == nil {
			return nil, fmt.Errorf("interactive: the base is not for Interactive runs: leave it out, or set it there")
		}
		var err error
		if p.Interactive, err = limitsOf(p.Interactive, template.Interactive, base != nil, "interactive"); err != nil {
			return nil, err
		}
	}
	if err := p.add(template.Env, "env"); err != nil {
		return nil, err
	}
	if err := p.limit(template.Resources, base != nil, "resources"); err != nil {
		return nil, err
	}
	if err := less(&p.Timeout, template.TimeoutSeconds, base != nil, "timeoutSeconds"); err != nil {
		return nil, err
	}
	return p, less(&p.grace, template.TerminationGracePeriodSeconds, base != nil, "terminationGracePeriodSeconds")
}

// lock sets what a template by a base takes from that.
func (p *Plan) lock(template *v1alpha1.SandboxRunTemplateSpec) error {
	p.Image, p.command, p.args = template.Image, template.Command, template.Args
	if w := template.Workspace; w != nil {
		if w.MountPath != "" {
			p.mountPath = w.MountPath
		}
		if err := replace(&p.size, w.Size, nil, "workspace.size"); err != nil {
			return err
		}
	}
	if template.Egress != nil {
		p.Egress, p.Hosts = template.Egress.Egress, template.Egress.Hosts
		if err := checkNames(template.Egress); err != nil {
			return fmt.Errorf("egress.%w", err)
		}
	}
	return p.place(template.Pod)
}

// With returns what a run by the template makes. An error names the field of the run that is wrong.
func (p *Plan) With(spec *v1alpha1.SandboxRunSpec) (*Plan, error) {
	of := *p
	if err := of.add(spec.ExtraEnv, "extraEnv"); err != nil {
		return nil, err
	}
	if err := of.limit(spec.Resources, true, "resources"); err != nil {
		return nil, err
	}
	if err := less(&of.Timeout, spec.TimeoutSeconds, true, "timeoutSeconds"); err != nil {
		return nil, err
	}
	return &of, of.withMode(spec)
}

// add adds variables, and replaces none: a run must not change what its template says.
func (p *Plan) add(env []v1alpha1.SandboxEnv, field string) error {
	if err := CheckEnv(env, field); err != nil {
		return err
	}
	for i, e := range env {
		if slices.ContainsFunc(p.env, func(have v1alpha1.SandboxEnv) bool { return have.Name == e.Name }) {
			return fmt.Errorf("%s[%d].name: the template sets %s already, and it cannot be replaced", field, i, e.Name)
		}
	}
	p.env = slices.Concat(p.env, env)
	return nil
}

// limit sets resources, if bounded no higher than they are.
func (p *Plan) limit(r *v1alpha1.SandboxResources, bounded bool, field string) error {
	if r == nil {
		return nil
	}
	p.resources = p.resources.DeepCopy()
	for name, of := range map[corev1.ResourceName]struct {
		quantity *v1alpha1.SandboxQuantity
		field    string
	}{
		corev1.ResourceCPU: {r.CPU, ".cpu"}, corev1.ResourceMemory: {r.Memory, ".memory"}, corev1.ResourceEphemeralStorage: {r.EphemeralStorage, ".ephemeralStorage"},
	} {
		value := p.resources[name]
		var most *resource.Quantity
		if bounded {
			most = new(value)
		}
		if err := replace(&value, of.quantity, most, field+of.field); err != nil {
			return err
		}
		p.resources[name] = value
	}
	return nil
}

// replace sets a quantity, if most is not nil to no more than that.
func replace(value *resource.Quantity, with *v1alpha1.SandboxQuantity, most *resource.Quantity, field string) error {
	if with == nil {
		return nil
	}
	quantity, err := resource.ParseQuantity(with.String())
	if err != nil || quantity.Sign() <= 0 {
		return fmt.Errorf("%s: %.30q is not an amount above 0, such as %s", field, with.String(), exampleOf(field))
	}
	if strings.HasSuffix(with.String(), "m") && !strings.HasSuffix(field, ".cpu") {
		return fmt.Errorf("%s: %.30q is in thousandths of a byte: write Mi for m", field, with.String())
	}
	if most != nil && quantity.Cmp(*most) > 0 {
		return fmt.Errorf("%s: %s is more than the %s of the template", field, quantity.String(), most.String())
	}
	*value = quantity
	return nil
}

func exampleOf(field string) string {
	if strings.HasSuffix(field, ".cpu") {
		return "500m or 2"
	}
	return "512Mi or 4Gi"
}

// less sets a number of seconds, if bounded to no more than it is.
func less(value, with *int64, bounded bool, field string) error {
	if with == nil {
		return nil
	}
	if bounded && *with > *value {
		return fmt.Errorf("%s: %d is more than the %d of the template", field, *with, *value)
	}
	*value = *with
	return nil
}

// CheckEnv refuses the variables that the sandbox itself sets.
func CheckEnv(env []v1alpha1.SandboxEnv, field string) error {
	for i, e := range env {
		if owned.IsReserved(e.Name) {
			return fmt.Errorf("%s[%d].name: %s is reserved: the sandbox itself sets it; leave it out", field, i, e.Name)
		}
	}
	return nil
}
