package host

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/extension"
)

// Converter gives access to an extension.Converter.
type Converter struct {
	// CRD is the name of the CustomResourceDefinition, and Group the group in it.
	CRD, Group string
	// Versions are the versions; the hub is the first.
	Versions []*ConverterVersion
}

// ConverterVersion is a version of a Converter.
type ConverterVersion struct {
	Name string
	// Type is a pointer to the type of the objects.
	Type reflect.Type
	// ToHub and FromHub are nil for the hub.
	ToHub, FromHub func(from, to client.Object) error
}

// New returns an empty object of the version.
func (v *ConverterVersion) New() client.Object {
	return reflect.New(v.Type.Elem()).Interface().(client.Object)
}

// Version returns the version with a name, nil if there is none.
func (c *Converter) Version(name string) *ConverterVersion {
	for _, v := range c.Versions {
		if v.Name == name {
			return v
		}
	}
	return nil
}

// Names returns the names of the versions.
func (c *Converter) Names() []string {
	names := make([]string, len(c.Versions))
	for i, v := range c.Versions {
		names[i] = v.Name
	}
	return names
}

// OpenConverter gives access to a converter. The error says what of it is wrong.
func OpenConverter(c *extension.Converter) (*Converter, error) {
	opened := &Converter{CRD: inside.ConverterCRD(c)}
	inside.EachVersion(c, func(name string, typ reflect.Type, toHub, fromHub func(from, to client.Object) error) {
		opened.Versions = append(opened.Versions, &ConverterVersion{name, typ, toHub, fromHub})
	})
	if err := opened.check(); err != nil {
		return nil, fmt.Errorf("the Converter of %q: %w", opened.CRD, err)
	}
	return opened, nil
}

func (c *Converter) check() error {
	plural, group, _ := strings.Cut(c.CRD, ".")
	c.Group = group
	switch {
	case len(c.Versions) == 0:
		return errors.New("it is empty: make one with extension.Converting")
	case plural == "" || len(validation.IsDNS1123Subdomain(c.CRD)) > 0 || !strings.Contains(group, "."):
		return errors.New("that is no name of a CustomResourceDefinition: it has to be PLURAL.GROUP, such as alarms.example.com")
	case len(c.Versions) == 1:
		return errors.New("it has one version only: give it a spoke, with extension.Between, for each other one")
	}
	for i, v := range c.Versions {
		if err := v.check(i == 0); err != nil {
			return fmt.Errorf("version %q: %w", v.Name, err)
		}
		if slices.ContainsFunc(c.Versions[:i], func(other *ConverterVersion) bool { return other.Name == v.Name }) {
			return fmt.Errorf("version %q is there twice", v.Name)
		}
	}
	return nil
}

func (v *ConverterVersion) check(hub bool) error {
	switch {
	case v.Type == nil:
		return errors.New("the spoke is empty: make it with extension.Between")
	case len(validation.IsDNS1035Label(v.Name)) > 0:
		return errors.New("that is no name of a version, such as v1beta1")
	case v.Type.Kind() != reflect.Pointer:
		return fmt.Errorf("its type is %s: it has to be a pointer to the type of the objects", v.Type)
	case !hub && (v.ToHub == nil || v.FromHub == nil):
		return errors.New("a function of extension.Between is nil: it needs one to the hub and one from it")
	}
	return nil
}

// addConverter adds a Converter.
func (p *Parts) addConverter(c *extension.Converter) error {
	opened, err := OpenConverter(c)
	if err == nil {
		p.Converters = append(p.Converters, opened)
		err = p.Check()
	}
	return err
}
