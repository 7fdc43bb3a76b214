package host

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/util/sets"
)

// CheckSelector returns an error for a selector that selects nothing, or is none.
func CheckSelector(selector *metav1.LabelSelector) error {
	compiled, err := metav1.LabelSelectorAsSelector(selector)
	if selector == nil || err != nil {
		return err
	}
	requirements, _ := compiled.Requirements()
	byKey := map[string][]labels.Requirement{}
	for _, r := range requirements {
		byKey[r.Key()] = append(byKey[r.Key()], r)
	}
	for key, all := range byKey {
		if !canHold(all) {
			return fmt.Errorf("%s matches nothing: no value of %s meets it", metav1.FormatLabelSelector(selector), key)
		}
	}
	return nil
}

// canHold reports whether some value of a label, or none, meets all requirements.
func canHold(all []labels.Requirement) bool {
	var allowed sets.Set[string] // nil: any
	refused := sets.Set[string]{}
	required, absent := false, false
	for _, r := range all {
		switch values := sets.New(r.ValuesUnsorted()...); r.Operator() {
		case selection.In, selection.Equals, selection.DoubleEquals:
			if allowed != nil {
				values = values.Intersection(allowed)
			}
			allowed, required = values, true
		case selection.NotIn, selection.NotEquals:
			refused = refused.Union(values)
		case selection.Exists:
			required = true
		case selection.DoesNotExist:
			absent = true
		}
	}
	return (!required || !absent) && (allowed == nil || allowed.Difference(refused).Len() > 0)
}
