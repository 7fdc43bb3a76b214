package manager

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/metadata"

	"github.com/admitkit/admitkit/internal/registration"
	"github.com/admitkit/admitkit/manager/internal/apiserver"
)

// conversions returns the stanzas of the converters.
func (m *Manager) conversions() *registration.Conversions {
	all := make([]registration.Conversion, len(m.parts.Converters))
	for i, c := range m.parts.Converters {
		all[i] = registration.Conversion{CRD: c.CRD, Versions: c.Names()}
		conversionRegistered.WithLabelValues(c.CRD).Add(0)
	}
	return registration.NewConversions(all)
}

// tellConversions says what has changed about the conversions since before.
func (m *Manager) tellConversions(before, after map[string]registration.ConversionState) {
	for _, name := range slices.Sorted(maps.Keys(after)) {
		was, is := before[name], after[name]
		registered := 0.0
		if is.Registered {
			registered = 1
		}
		conversionRegistered.WithLabelValues(name).Set(registered)
		if is.Missing && !was.Missing {
			message := fmt.Sprintf("CustomResourceDefinition %s does not exist: its conversion is registered when it does", name)
			m.options.Logger.Warnw(message, "crd", name)
			m.event("NoCustomResourceDefinition", message)
		}
		if len(is.Unconverted) > 0 && !slices.Equal(was.Unconverted, is.Unconverted) {
			message := fmt.Sprintf("CustomResourceDefinition %s has versions that the converter does not know, so requests for them fail: %s", name, strings.Join(is.Unconverted, ", "))
			m.options.Logger.Warnw(message, "crd", name)
			m.event("VersionNotConverted", message)
		}
	}
}

// crdResource is the resource of CustomResourceDefinitions.
var crdResource = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}

// watchCRD watches the metadata of CustomResourceDefinitions, which can be large themselves.
func (m *Manager) watchCRD(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	client, err := metadata.NewForConfigAndClient(metadata.ConfigFor(m.options.RESTConfig), m.httpClient)
	if err != nil {
		return nil, err
	}
	return client.Resource(crdResource).Watch(ctx, options)
}

// releaseConversions gives the CustomResourceDefinitions up; see
// [registration.Registration.ReleaseConversions].
func (m *Manager) releaseConversions(ctx context.Context) error {
	if len(m.parts.Converters) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, apiserver.Timeout)
	defer cancel()
	stay, err := m.registration(nil).ReleaseConversions(ctx, m.clients.Admissionregistration.RESTClient())
	for _, name := range stay {
		m.options.Logger.Warnw("spec.conversion stays in the CustomResourceDefinition, and nobody answers it any more: until another installation converts, its objects are read and written in the stored version alone; "+
			"with the strategy None, fields would be lost", "crd", name)
	}
	return err
}
