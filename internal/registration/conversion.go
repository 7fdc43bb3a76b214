package registration

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"

	"github.com/admitkit/admitkit/internal/webhookpath"
	"github.com/admitkit/admitkit/webhook"
)

// CRDsPath is the path of CustomResourceDefinitions at the API server.
const CRDsPath = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

// ConverterAnnotation names the installation that converts the objects of a
// CustomResourceDefinition. Apart from it, only spec.conversion is ours there.
const ConverterAnnotation = "admitkit.dev/converter"

// Conversion is a CustomResourceDefinition whose objects this installation converts.
type Conversion struct {
	// CRD is its name, and Versions are those that are converted.
	CRD      string
	Versions []string
}

// Conversions are the conversion stanzas of CustomResourceDefinitions. [NewConversions]
// returns them; nil has none.
//
// A stanza is replaced as a whole, by a patch of nothing else, and only if nobody wrote the
// object in between. Objects that do not exist are none of our making: they are waited for.
type Conversions struct {
	all []Conversion

	mu      sync.Mutex
	states  map[string]*conversionState
	applied chan struct{}
}

// conversionState is what is known of one CustomResourceDefinition.
type conversionState struct {
	ConversionState
	// bundle is the caBundle that the API server has.
	bundle []byte
	// once is true when the stanza was as it should be: what is written from then on
	// repairs what others changed.
	once bool
}

// ConversionState is the state of a stanza.
type ConversionState struct {
	// Registered is true if the stanza is as it should be, and Missing if there is no
	// CustomResourceDefinition.
	Registered, Missing bool
	// Unconverted are the versions that it serves and nobody converts.
	Unconverted []string
}

// NewConversions returns the stanzas, of which nothing is known yet.
func NewConversions(all []Conversion) *Conversions {
	if len(all) == 0 {
		return nil
	}
	c := &Conversions{all: all, states: map[string]*conversionState{}, applied: make(chan struct{})}
	for _, conversion := range all {
		c.states[conversion.CRD] = &conversionState{}
	}
	return c
}

// Names returns the names of the CustomResourceDefinitions.
func (c *Conversions) Names() []string {
	if c == nil {
		return nil
	}
	names := make([]string, len(c.all))
	for i, conversion := range c.all {
		names[i] = conversion.CRD
	}
	return names
}

// of returns the conversion of a CustomResourceDefinition.
func (c *Conversions) of(crd string) Conversion {
	return c.all[slices.IndexFunc(c.all, func(of Conversion) bool { return of.CRD == crd })]
}

// Applied returns a channel that is closed when each stanza has been as it should be.
func (c *Conversions) Applied() <-chan struct{} {
	if c == nil {
		closed := make(chan struct{})
		close(closed)
		return closed
	}
	return c.applied
}

// States returns the state of each CustomResourceDefinition by its name.
func (c *Conversions) States() map[string]ConversionState {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	states := map[string]ConversionState{}
	for name, state := range c.states {
		states[name] = state.ConversionState
	}
	return states
}

// Bundles returns the caBundles that API servers use for the conversions, as far as they
// are known.
func (c *Conversions) Bundles() [][]byte {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	var bundles [][]byte
	for _, state := range c.states {
		if state.Registered {
			bundles = append(bundles, state.bundle)
		}
	}
	return bundles
}

// Check returns an error if a stanza was never as it should be.
func (c *Conversions) Check() error {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(c.states)) {
		switch state := c.states[name]; {
		case state.once:
		case state.Missing:
			errs = append(errs, errMissing(name))
		default:
			errs = append(errs, errUnregistered(name))
		}
	}
	return errors.Join(errs...)
}

// crd is what is read of a CustomResourceDefinition.
type crd struct {
	Metadata metav1.ObjectMeta `json:"metadata"`
	Spec     struct {
		Conversion *stanza `json:"conversion"`
		Versions   []struct {
			Name    string `json:"name"`
			Served  bool   `json:"served"`
			Storage bool   `json:"storage"`
		} `json:"versions"`
	} `json:"spec"`
	Status struct {
		StoredVersions []string `json:"storedVersions"`
	} `json:"status"`
}

// stanza is spec.conversion.
type stanza struct {
	Strategy string          `json:"strategy"`
	Webhook  *stanzaOfCaller `json:"webhook,omitempty"`
}

type stanzaOfCaller struct {
	ClientConfig struct {
		URL      *string          `json:"url,omitempty"`
		Service  *serviceOfStanza `json:"service,omitempty"`
		CABundle []byte           `json:"caBundle,omitempty"`
	} `json:"clientConfig"`
	ConversionReviewVersions []string `json:"conversionReviewVersions"`
}

type serviceOfStanza struct {
	Namespace string  `json:"namespace"`
	Name      string  `json:"name"`
	Path      *string `json:"path,omitempty"`
	Port      *int32  `json:"port,omitempty"`
}

// stanza returns what spec.conversion should be.
func (r *Registration) stanza(name string, live *crd, pem []byte) *stanza {
	target := r.clientConfig(webhook.ConversionPath(name))
	if r.Paths != nil {
		changePath(&target, r.Paths.Sign)
	}
	caller := &stanzaOfCaller{ConversionReviewVersions: []string{"v1"}}
	caller.ClientConfig.URL = target.URL
	if s := target.Service; s != nil {
		caller.ClientConfig.Service = &serviceOfStanza{s.Namespace, s.Name, s.Path, s.Port}
	}
	caller.ClientConfig.CABundle = pem
	if r.ForeignBundle { // such as cert-manager's, which injects into these objects, too
		caller.ClientConfig.CABundle = nil
		if has := live.Spec.Conversion; has != nil && has.Webhook != nil {
			caller.ClientConfig.CABundle = has.Webhook.ClientConfig.CABundle
		}
	}
	return &stanza{Strategy: "Webhook", Webhook: caller}
}

// changePath changes the path of the converter.
func (s *stanza) changePath(change func(string) string) {
	if s == nil || s.Webhook == nil {
		return
	}
	own := &s.Webhook.ClientConfig
	target := admissionregistrationv1.WebhookClientConfig{URL: own.URL}
	if own.Service != nil {
		target.Service = &admissionregistrationv1.ServiceReference{Path: own.Service.Path}
	}
	changePath(&target, change)
	if own.URL = target.URL; own.Service != nil {
		own.Service.Path = target.Service.Path
	}
}

// readCRDs returns the CustomResourceDefinitions that exist.
func (r *Registration) readCRDs(ctx context.Context, client rest.Interface) (map[string]*crd, error) {
	live := map[string]*crd{}
	for _, name := range r.Conversions.Names() {
		found, err := getCRD(ctx, client, name)
		if err != nil {
			return nil, err
		}
		if found != nil {
			live[name] = found
		}
	}
	return live, nil
}

func getCRD(ctx context.Context, client rest.Interface, name string) (*crd, error) {
	data, err := raw(client.Get().AbsPath(CRDsPath, name).SetHeader("Accept", "application/json").Do(ctx))
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	found := &crd{}
	if err == nil {
		err = json.Unmarshal(data, found)
	}
	if err != nil {
		return nil, fmt.Errorf("reading CustomResourceDefinition %s: %w", name, withRemedy(err))
	}
	return found, nil
}

// withRemedy says who grants a right that is missing.
func withRemedy(err error) error {
	if apierrors.IsForbidden(err) {
		return fmt.Errorf("%w: whoever registers a conversion needs get, watch and patch on its CustomResourceDefinition, and a reconciler get; `manifests` grants them", err)
	}
	return err
}

// Converted returns an error unless API servers have the objects of a
// CustomResourceDefinition converted, by whatever installation.
func Converted(ctx context.Context, client rest.Interface, name string) error {
	live, err := getCRD(ctx, client, name)
	switch {
	case err != nil:
		return err
	case live == nil:
		return errMissing(name)
	case live.Spec.Conversion == nil || live.Spec.Conversion.Strategy != "Webhook":
		return errUnregistered(name)
	}
	return nil
}

func errMissing(name string) error {
	return fmt.Errorf("CustomResourceDefinition %s does not exist: apply it, so that its objects can be converted", name)
}

func errUnregistered(name string) error {
	return fmt.Errorf("CustomResourceDefinition %s: its conversion is not registered yet", name)
}

// checkCRD returns an error that wraps ErrForeign if another installation converts.
func (r *Registration) checkCRD(name string, live *crd) error {
	owner := live.Metadata.Annotations[ConverterAnnotation]
	if owner == "" || owner == r.Target.Owner() {
		return nil
	}
	return fmt.Errorf("the conversion of CustomResourceDefinition %s is %w: it belongs to %q, and this is %q: unregister the other one, or remove the annotation %s if it is gone",
		name, ErrForeign, owner, r.Target.Owner(), ConverterAnnotation)
}

// lost reports whether another installation converts, and has this one called no more.
func (r *Registration) lost(name string, live *crd) bool {
	return r.checkCRD(name, live) != nil && !r.calls(name, live)
}

// calls reports whether a stanza has this installation called, whoever has written it.
func (r *Registration) calls(name string, live *crd) bool {
	has := live.Spec.Conversion
	if has == nil || has.Webhook == nil {
		return false
	}
	target := func(s *stanza) string {
		own := s.Webhook.ClientConfig
		own.CABundle = nil
		text, _ := json.Marshal(own) // it always marshals
		return webhookpath.Strip(string(text))
	}
	return target(has) == target(r.stanza(name, live, nil))
}

// reconcileCRDs repairs the stanzas, or only looks for what is wrong. settled says that each that has this installation
// called is as it should be.
func (r *Registration) reconcileCRDs(ctx context.Context, client rest.Interface, lives map[string]*crd, pem []byte, look bool) (repairs []Repair, settled bool, err error) {
	if r.Conversions == nil {
		return nil, true, nil
	}
	settled = true
	var errs []error
	for _, conversion := range r.Conversions.all {
		what, err := r.reconcileCRD(ctx, client, conversion, lives[conversion.CRD], pem, look)
		if what != "" && (err == nil || look) {
			repairs = append(repairs, Repair{Object: "CustomResourceDefinition " + conversion.CRD, Kind: what})
		}
		live := lives[conversion.CRD]
		settled = settled && what == "" && (err == nil || live != nil && r.lost(conversion.CRD, live))
		errs = append(errs, err)
	}
	r.Conversions.tellApplied()
	return repairs, settled, joined(errs)
}

// joined is errors.Join, but a single error keeps its kind: a conflict is tried again.
func joined(errs []error) error {
	errs = slices.DeleteFunc(errs, func(err error) bool { return err == nil })
	if len(errs) == 1 {
		return errs[0]
	}
	return errors.Join(errs...)
}

func (r *Registration) reconcileCRD(ctx context.Context, client rest.Interface, conversion Conversion, live *crd, pem []byte, look bool) (what string, err error) {
	c := r.Conversions
	if live == nil {
		c.note(conversion.CRD, func(s *conversionState) { s.ConversionState = ConversionState{Missing: true} })
		return "", nil
	}
	if err := r.checkCRD(conversion.CRD, live); err != nil {
		return "", err
	}
	want := r.stanza(conversion.CRD, live, pem)
	what = r.stanzaDifference(live, want)
	bundle := want.Webhook.ClientConfig.CABundle
	c.note(conversion.CRD, func(s *conversionState) {
		s.ConversionState = ConversionState{Registered: what == "", Unconverted: conversion.missing(live)}
		if what == "" {
			s.bundle, s.once = bundle, true
		}
	})
	if what == "" || look {
		return what, nil
	}
	content, err := json.Marshal(want)
	if err != nil {
		return what, err
	}
	if err := r.mayRepair(conversion.CRD, what, live, string(content)); err != nil {
		return what, err
	}
	if err := r.patchCRD(ctx, client, conversion.CRD, live, content); err != nil {
		return what, err
	}
	c.note(conversion.CRD, func(s *conversionState) {
		if s.once {
			r.repairs().repaired(conversion.CRD, []string{what}, string(content), time.Now())
		}
		s.Registered, s.bundle, s.once = true, bundle, true
	})
	return what, nil
}

// stanzaDifference names what is not as it should be.
func (r *Registration) stanzaDifference(live *crd, want *stanza) string {
	has := live.Spec.Conversion
	if has == nil || has.Strategy != want.Strategy || has.Webhook == nil {
		return "conversion"
	}
	if !bytes.Equal(has.Webhook.ClientConfig.CABundle, want.Webhook.ClientConfig.CABundle) {
		return "caBundle"
	}
	is, err := json.Marshal(has)
	should, err2 := json.Marshal(want)
	switch {
	case err != nil || err2 != nil || webhookpath.Strip(string(is)) != webhookpath.Strip(string(should)):
		return "target"
	case live.Metadata.Annotations[ConverterAnnotation] != r.Target.Owner():
		return "annotations"
	case !bytes.Equal(is, should):
		return PathChanged
	}
	return ""
}

// missing returns the served versions that nobody converts.
func (c Conversion) missing(live *crd) (missing []string) {
	for _, v := range live.Spec.Versions {
		if (v.Served || v.Storage) && !slices.Contains(c.Versions, v.Name) {
			missing = append(missing, v.Name)
		}
	}
	return missing
}

func (c *Conversions) note(name string, change func(*conversionState)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change(c.states[name])
}

// tellApplied closes the channel of Applied when it is time.
func (c *Conversions) tellApplied() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, state := range c.states {
		if !state.once {
			return
		}
	}
	select {
	case <-c.applied:
	default:
		close(c.applied)
	}
}

// mayRepair returns an error while it is too early to repair what somebody changes again and
// again.
func (r *Registration) mayRepair(name, what string, live *crd, wanted string) error {
	left, times := r.repairs().wait(repairKey{name, what}, wanted, time.Now())
	if left == 0 {
		return nil
	}
	return fmt.Errorf("somebody else (%s) has changed spec.conversion of CustomResourceDefinition %s %d times; the next repair is in %s: leave the stanza out of what they apply",
		cmp.Or(strings.Join(live.managers(), ", "), "unknown"), name, times+1, left.Round(time.Second))
}

// managers are the field managers of the stanza.
func (c *crd) managers() (names []string) {
	for _, m := range c.Metadata.ManagedFields {
		if m.FieldsV1 != nil && m.Manager != FieldManager && bytes.Contains(m.FieldsV1.GetRawBytes(), []byte(`"f:conversion"`)) {
			names = append(names, m.Manager)
		}
	}
	return names
}

// patchCRD replaces the stanza, if nobody wrote in between.
func (r *Registration) patchCRD(ctx context.Context, client rest.Interface, name string, live *crd, content []byte) error {
	owner := operation{"add", "/metadata/annotations/" + strings.ReplaceAll(ConverterAnnotation, "/", "~1"), r.Target.Owner()}
	if live.Metadata.Annotations == nil {
		owner = operation{"add", "/metadata/annotations", map[string]string{ConverterAnnotation: r.Target.Owner()}}
	}
	return patch(ctx, client, name,
		operation{"replace", "/metadata/resourceVersion", live.Metadata.ResourceVersion}, operation{"add", "/spec/conversion", json.RawMessage(content)}, owner)
}

// operation is one of a JSON patch.
type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value,omitempty"`
}

func patch(ctx context.Context, client rest.Interface, name string, operations ...operation) error {
	body, err := json.Marshal(operations)
	if err != nil {
		return err
	}
	if err := client.Patch(types.JSONPatchType).AbsPath(CRDsPath, name).Param("fieldManager", FieldManager).
		SetHeader("Accept", "application/json").Body(body).Do(ctx).Error(); err != nil {
		return fmt.Errorf("patching spec.conversion of CustomResourceDefinition %s: %w", name, withRemedy(err))
	}
	return nil
}

// ReleaseConversions gives the CustomResourceDefinitions up, for another installation to
// take. A stanza goes only if its objects need none: if there is one version. Otherwise it
// stays, though nobody answers any more: reads and writes in other versions than the stored
// one fail then. Without it they would succeed, and lose every field whose name or place
// differs. It returns the names of those that stay.
func (r *Registration) ReleaseConversions(ctx context.Context, client rest.Interface) (stay []string, err error) {
	var errs []error
	for _, name := range r.Conversions.Names() {
		var stays bool
		errs = append(errs, retry.RetryOnConflict(retry.DefaultBackoff, func() (err error) {
			stays, err = r.releaseConversion(ctx, client, name)
			return err
		}))
		if stays {
			stay = append(stay, name)
		}
	}
	return stay, errors.Join(errs...)
}

func (r *Registration) releaseConversion(ctx context.Context, client rest.Interface, name string) (stays bool, err error) {
	live, err := getCRD(ctx, client, name)
	if err != nil || live == nil || live.Metadata.Annotations[ConverterAnnotation] != r.Target.Owner() {
		return false, err
	}
	operations := []operation{
		{"replace", "/metadata/resourceVersion", live.Metadata.ResourceVersion},
		{Op: "remove", Path: "/metadata/annotations/" + strings.ReplaceAll(ConverterAnnotation, "/", "~1")},
	}
	if live.needsNone() {
		operations = append(operations, operation{"add", "/spec/conversion", stanza{Strategy: "None"}})
	} else {
		stays = true
	}
	err = patch(ctx, client, name, operations...)
	if apierrors.IsNotFound(err) { // somebody has deleted it meanwhile
		return false, nil
	}
	return stays, err
}

// needsNone reports whether all objects have one version, and are read in no other.
func (c *crd) needsNone() bool {
	var used []string
	for _, v := range c.Spec.Versions {
		if v.Served || v.Storage {
			used = append(used, v.Name)
		}
	}
	return len(used) == 1 && slices.Equal(c.Status.StoredVersions, used)
}
