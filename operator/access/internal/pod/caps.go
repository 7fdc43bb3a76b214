package pod

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

// enforceCaps keeps a Pod within the template's caps: it refuses one that asks for
// more, and limits the containers that have no limit.
func enforceCaps(spec *corev1.PodSpec, t *v1alpha1.PodAccessTemplate) error {
	for _, c := range []struct {
		field    string
		resource corev1.ResourceName
		limit    *resource.Quantity
	}{
		{"spec.maxCpu", corev1.ResourceCPU, t.Spec.MaxCPU},
		{"spec.maxMemory", corev1.ResourceMemory, t.Spec.MaxMemory},
		{"spec.maxStorage", corev1.ResourceEphemeralStorage, t.Spec.MaxStorage},
	} {
		if c.limit == nil {
			continue
		}
		if c.limit.Sign() <= 0 {
			return fmt.Errorf("%s: %s must be more than 0; leave the field out for no cap", c.field, c.limit)
		}
		if err := enforceCap(spec, c.resource, *c.limit); err != nil {
			return fmt.Errorf("%s: %w", c.field, err)
		}
	}
	return nil
}

// enforceCap divides a cap among the containers that run at the same time: all
// containers and sidecars, and, one after the other, each plain init container with
// the sidecars.
func enforceCap(spec *corev1.PodSpec, name corev1.ResourceName, limit resource.Quantity) error {
	var together, alone []*corev1.Container
	for i := range spec.InitContainers {
		c := &spec.InitContainers[i]
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			together = append(together, c)
		} else {
			alone = append(alone, c)
		}
	}
	sidecars := len(together)
	for i := range spec.Containers {
		together = append(together, &spec.Containers[i])
	}
	if name == corev1.ResourceEphemeralStorage {
		claimed, err := claimedStorage(spec, limit)
		if err != nil {
			return err
		}
		limit.Sub(claimed)
	}
	if err := share(together, name, limit); err != nil {
		return err
	}
	for _, c := range alone {
		if err := share(append([]*corev1.Container{c}, together[:sidecars]...), name, limit); err != nil {
			return err
		}
	}
	return nil
}

// share gives the containers without a limit equal shares of what the others leave,
// and reports an error when they exceed the limit together.
func share(containers []*corev1.Container, name corev1.ResourceName, limit resource.Quantity) error {
	var limited, requested resource.Quantity
	var open []*corev1.Container
	for _, c := range containers {
		request := c.Resources.Requests[name]
		if l, found := c.Resources.Limits[name]; found && !l.IsZero() {
			limited.Add(l)
			if request.IsZero() {
				request = l
			}
		} else {
			open = append(open, c)
		}
		requested.Add(request)
	}
	if limited.Cmp(limit) > 0 {
		return fmt.Errorf("the limits of the containers come to %s, more than %s", limited.String(), limit.String())
	}
	if requested.Cmp(limit) > 0 {
		return fmt.Errorf("the requests of the containers come to %s, more than %s", requested.String(), limit.String())
	}
	if len(open) == 0 {
		return nil
	}
	left := limit.DeepCopy()
	left.Sub(limited)
	each := *resource.NewMilliQuantity(left.MilliValue()/int64(len(open)), limit.Format)
	if name != corev1.ResourceCPU {
		// Memory and storage have no thousandths.
		each = *resource.NewQuantity(left.Value()/int64(len(open)), limit.Format)
	}
	for _, c := range open {
		request := c.Resources.Requests[name]
		if each.IsZero() || request.Cmp(each) > 0 {
			return fmt.Errorf("container %q has no limit, and its share of %s, %s, is less than it requests (%s)", c.Name, limit.String(), each.String(), request.String())
		}
		if c.Resources.Limits == nil {
			c.Resources.Limits = corev1.ResourceList{}
		}
		c.Resources.Limits[name] = each
		if _, asks := c.Resources.Requests[name]; !asks {
			// Otherwise the API server would take the limit for the request, and reserve it.
			if c.Resources.Requests == nil {
				c.Resources.Requests = corev1.ResourceList{}
			}
			c.Resources.Requests[name] = *resource.NewQuantity(0, limit.Format)
		}
	}
	return nil
}

// claimedStorage is the sum of what the ephemeral volumes of a Pod ask for.
func claimedStorage(spec *corev1.PodSpec, limit resource.Quantity) (resource.Quantity, error) {
	var sum resource.Quantity
	for _, v := range spec.Volumes {
		if v.Ephemeral != nil && v.Ephemeral.VolumeClaimTemplate != nil {
			sum.Add(v.Ephemeral.VolumeClaimTemplate.Spec.Resources.Requests[corev1.ResourceStorage])
		}
	}
	if sum.Cmp(limit) > 0 {
		return sum, fmt.Errorf("the ephemeral volumes ask for %s, more than %s", sum.String(), limit.String())
	}
	return sum, nil
}
