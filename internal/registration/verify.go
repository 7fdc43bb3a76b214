package registration

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/client-go/rest"
)

// Verify returns an error if either object, or the conversion stanza of a
// CustomResourceDefinition, is not what it should be, and writes nothing.
// Unlike [Registration.Reconcile] it does not accept what a newer revision has
// registered. It cannot tell which CA is right, but every entry must trust the same
// one: [Registration.Probe] then finds out for all of them.
func (r *Registration) Verify(ctx context.Context, client rest.Interface) error {
	expected := *r
	// Whoever registered did so before; nobody asks here when.
	expected.Started = time.Time{}
	// A cautious start has to be over.
	expected.IgnoreUntilProbed = false
	expected.ForeignBundle = true
	// Only those who register and serve know the paths: a difference of these is none here.
	expected.Paths = nil
	var errs []error
	var bundles [][]byte
	for _, res := range resources {
		live, err := get(ctx, client, res, r.Name)
		if err == nil {
			err = r.check(res, live)
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		errs = append(errs, expected.verify(res, live))
		if live == nil {
			continue
		}
		for _, e := range live.Webhooks {
			same := func(known []byte) bool { return bytes.Equal(known, e.ClientConfig.CABundle) }
			if r.ours(e.Name) && !slices.ContainsFunc(bundles, same) {
				bundles = append(bundles, e.ClientConfig.CABundle)
			}
		}
	}
	for _, name := range r.Conversions.Names() {
		bundle, err := expected.verifyConversion(ctx, client, name, r.ForeignBundle)
		errs = append(errs, err)
		if err == nil && !slices.ContainsFunc(bundles, func(known []byte) bool { return bytes.Equal(known, bundle) }) {
			bundles = append(bundles, bundle)
		}
	}
	if len(bundles) > 1 {
		errs = append(errs, fmt.Errorf("the webhooks and conversions of %s do not all trust the same CA: their caBundles differ", r.Name))
	}
	return errors.Join(errs...)
}

// verifyConversion compares the stanza of a CustomResourceDefinition, and returns its
// caBundle.
func (r *Registration) verifyConversion(ctx context.Context, client rest.Interface, name string, foreignBundle bool) (bundle []byte, err error) {
	live, err := getCRD(ctx, client, name)
	if err != nil {
		return nil, err
	}
	if live == nil {
		return nil, fmt.Errorf("CustomResourceDefinition %s does not exist: apply it", name)
	}
	if err := r.checkCRD(name, live); err != nil {
		return nil, err
	}
	want := r.stanza(name, live, nil)
	bundle = want.Webhook.ClientConfig.CABundle
	switch what := r.stanzaDifference(live, want); {
	case what != "" && what != PathChanged:
		return nil, fmt.Errorf("spec.conversion of CustomResourceDefinition %s is not as it should be: %s", name, what)
	case len(bundle) == 0 && !foreignBundle:
		return nil, fmt.Errorf("spec.conversion of CustomResourceDefinition %s has no caBundle", name)
	}
	if missing := r.Conversions.of(name).missing(live); len(missing) > 0 {
		return nil, fmt.Errorf("CustomResourceDefinition %s has versions that the converter does not know, so requests for them fail: %s", name, strings.Join(missing, ", "))
	}
	return bundle, nil
}

// verify compares one object.
func (r *Registration) verify(res resource, live *configuration) error {
	desired := r.desired(res, live, nil)
	if live != nil && len(desired.Webhooks) > 0 {
		if theirs := live.Annotations[RevisionAnnotation]; theirs != digest(r.entries(res)) {
			return fmt.Errorf("%s %s was registered by another version of this program, or with other flags: revision %q", res.kind, r.Name, theirs)
		}
	}
	causes := slices.DeleteFunc(r.differences(live, desired), func(c cause) bool { return c.kind == PathChanged })
	switch {
	case len(causes) == 0:
		return nil
	case causes[0].kind == "missing":
		return fmt.Errorf("%s %s is missing", res.kind, r.Name)
	case causes[0].detail != "":
		return fmt.Errorf("%s %s is not as it should be: %s: %s", res.kind, r.Name, causes[0].kind, causes[0].detail)
	default:
		return fmt.Errorf("%s %s is not as it should be: %s", res.kind, r.Name, causes[0].kind)
	}
}
