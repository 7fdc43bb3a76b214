package v1alpha1

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kjson "sigs.k8s.io/json"
)

// MaxTemplateBytes is the most bytes that the JSON of a PodAccessTemplate may have,
// with its metadata.
const MaxTemplateBytes = 64 << 10

// UnmarshalJSON decodes a template, if that takes little time and memory, since its
// author is not trusted by those who read it: it must not be larger than
// [MaxTemplateBytes], nor have a quantity that [CheckQuantities] reports. The API server
// checks neither, because the schema does not repeat that of a Pod.
//
// Of a template that cannot be read it decodes all but the spec, and Unreadable says
// why: one template must not keep those that are listed with it from being read.
func (t *PodAccessTemplate) UnmarshalJSON(raw []byte) error {
	type plain PodAccessTemplate
	read := plain{}
	err := checkTemplate(raw)
	if err == nil {
		err = kjson.UnmarshalCaseSensitivePreserveInts(raw, &read)
	}
	if err != nil {
		rest := struct {
			metav1.TypeMeta `json:",inline"`
			Metadata        metav1.ObjectMeta `json:"metadata"`
			Status          TemplateStatus    `json:"status"`
		}{}
		if kjson.UnmarshalCaseSensitivePreserveInts(raw, &rest) != nil {
			return err
		}
		read = plain{TypeMeta: rest.TypeMeta, ObjectMeta: rest.Metadata, Status: rest.Status, unreadable: err.Error()}
	}
	*t = PodAccessTemplate(read)
	return nil
}

// Unreadable says why the spec of a template was not decoded; nil if it was. Such a
// template allows nobody anything. Do not write it back.
func (t *PodAccessTemplate) Unreadable() error {
	if t.unreadable == "" {
		return nil
	}
	return errors.New(t.unreadable)
}

func checkTemplate(raw []byte) error {
	if len(raw) > MaxTemplateBytes {
		return fmt.Errorf("the PodAccessTemplate has %d bytes, at most %d are allowed", len(raw), MaxTemplateBytes)
	}
	var content map[string]any
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.UseNumber()
	if err := decoder.Decode(&content); err != nil {
		return err
	}
	return CheckQuantities(content, &PodAccessTemplate{})
}

// The longest quantities that are read. Those of a Pod are far shorter.
const (
	maxQuantityLength = 128
	maxExponentDigits = 2
)

// CheckQuantities reports a quantity that should not be read, in content that is JSON
// of the type of into. [resource.ParseQuantity] would compute with 1e-999999999 for
// hours.
func CheckQuantities(content, into any) error {
	return checkQuantities(content, reflect.TypeOf(into), "")
}

var quantityType = reflect.TypeFor[resource.Quantity]()

func checkQuantities(content any, into reflect.Type, path string) error {
	for into.Kind() == reflect.Pointer {
		into = into.Elem()
	}
	if into == quantityType {
		return checkQuantity(fmt.Sprint(content), path)
	}
	switch content := content.(type) {
	case []any:
		if into.Kind() != reflect.Slice {
			return nil
		}
		for i, item := range content {
			if err := checkQuantities(item, into.Elem(), fmt.Sprintf("%s[%d]", path, i)); err != nil {
				return err
			}
		}
	case map[string]any:
		switch into.Kind() {
		case reflect.Map:
			for key, value := range content {
				if err := checkQuantities(value, into.Elem(), path+"."+key); err != nil {
					return err
				}
			}
		case reflect.Struct:
			return checkFields(content, into, path)
		}
	}
	return nil
}

func checkFields(content map[string]any, into reflect.Type, path string) error {
	for field := range into.Fields() {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if name == "" {
			if field.Anonymous { // inlined
				if err := checkQuantities(content, field.Type, path); err != nil {
					return err
				}
			}
			continue
		}
		if value, found := content[name]; found {
			if err := checkQuantities(value, field.Type, path+"."+name); err != nil {
				return err
			}
		}
	}
	return nil
}

func checkQuantity(text, path string) error {
	path = strings.TrimPrefix(path, ".")
	if len(text) > maxQuantityLength {
		return fmt.Errorf("%s: the quantity has %d characters, at most %d are allowed", path, len(text), maxQuantityLength)
	}
	at := strings.IndexAny(text, "eE")
	if at < 0 {
		return nil
	}
	if exponent := strings.TrimLeft(strings.TrimSpace(text[at+1:]), "+-"); len(exponent) > maxExponentDigits {
		return fmt.Errorf("%s: the exponent of %q has %d digits, at most %d are allowed", path, text, len(exponent), maxExponentDigits)
	}
	return nil
}
