package registration

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// MaxTolerated is the most terms that ParseTolerated accepts.
const MaxTolerated = 64

// Tolerated are the terms that others may add to our namespace selectors although they
// narrow them: the values of each key, none for all values. Only terms that exclude
// namespaces are tolerated (NotIn, DoesNotExist): by any other operator, one term would
// switch off a webhook.
type Tolerated map[string][]string

// ParseTolerated reads terms of the form KEY=VALUE, which tolerates that namespaces with
// this label are excluded, and KEY, which tolerates it for every value.
func ParseTolerated(terms []string) (Tolerated, error) {
	if len(terms) > MaxTolerated {
		return nil, fmt.Errorf("%d terms: at most %d", len(terms), MaxTolerated)
	}
	all := Tolerated{}
	for _, term := range terms {
		key, value, one := strings.Cut(term, "=")
		if problems := validation.IsQualifiedName(key); len(problems) > 0 {
			return nil, fmt.Errorf("%q: must be the key of a label, or KEY=VALUE: %s", term, strings.Join(problems, ", "))
		}
		if problems := validation.IsValidLabelValue(value); len(problems) > 0 {
			return nil, fmt.Errorf("%q: after = must be the value of a label: %s", term, strings.Join(problems, ", "))
		}
		if !one && key == corev1.LabelMetadataName {
			return nil, fmt.Errorf("%q: would let others exclude any namespace: name those that they may, as %s=NAMESPACE", term, key)
		}
		values, known := all[key]
		switch {
		case !one:
			all[key] = nil
		case !known || values != nil:
			all[key] = append(values, value)
		}
	}
	return all, nil
}

// has reports whether the term may stay although it narrows a selector.
func (t Tolerated) has(term metav1.LabelSelectorRequirement) bool {
	values, known := t[term.Key]
	if !known {
		return false
	}
	switch term.Operator {
	case metav1.LabelSelectorOpDoesNotExist:
		return values == nil
	case metav1.LabelSelectorOpNotIn:
		return values == nil || contains(values, term.Values)
	}
	return false
}

// mayStay reports whether others may add the term to the terms from: each of its parts is
// tolerated, or follows from them.
func (t Tolerated) mayStay(term metav1.LabelSelectorRequirement, from []metav1.LabelSelectorRequirement) bool {
	return !slices.ContainsFunc(parts(term), func(part metav1.LabelSelectorRequirement) bool { return !t.has(part) && !follows(part, from) })
}

// parts returns the terms of one value that say the same together. GKE excludes
// kube-system, as we do, and namespaces of its own in one term.
func parts(term metav1.LabelSelectorRequirement) []metav1.LabelSelectorRequirement {
	if term.Operator != metav1.LabelSelectorOpNotIn {
		return []metav1.LabelSelectorRequirement{term}
	}
	all := make([]metav1.LabelSelectorRequirement, len(term.Values))
	for i, value := range term.Values {
		all[i] = metav1.LabelSelectorRequirement{Key: term.Key, Operator: term.Operator, Values: []string{value}}
	}
	return all
}

// terms returns a selector as a list of parts.
func terms(selector *metav1.LabelSelector) []metav1.LabelSelectorRequirement {
	if selector == nil {
		return nil
	}
	var all []metav1.LabelSelectorRequirement
	for key, value := range selector.MatchLabels {
		all = append(all, metav1.LabelSelectorRequirement{Key: key, Operator: metav1.LabelSelectorOpIn, Values: []string{value}})
	}
	for _, term := range selector.MatchExpressions {
		all = append(all, parts(term)...)
	}
	return all
}

// follows reports whether a term holds for everything that the other terms select. Each
// of those is looked at alone, so it never says so wrongly, but not always when it is so.
func follows(term metav1.LabelSelectorRequirement, from []metav1.LabelSelectorRequirement) bool {
	return slices.ContainsFunc(from, func(other metav1.LabelSelectorRequirement) bool {
		return other.Key == term.Key && impliedBy(term, other)
	})
}

// impliedBy compares two terms of the same key.
func impliedBy(term, other metav1.LabelSelectorRequirement) bool {
	switch term.Operator {
	case metav1.LabelSelectorOpExists:
		return other.Operator == metav1.LabelSelectorOpExists || other.Operator == metav1.LabelSelectorOpIn
	case metav1.LabelSelectorOpDoesNotExist:
		return other.Operator == metav1.LabelSelectorOpDoesNotExist
	case metav1.LabelSelectorOpIn:
		return other.Operator == metav1.LabelSelectorOpIn && contains(term.Values, other.Values)
	case metav1.LabelSelectorOpNotIn:
		switch other.Operator {
		case metav1.LabelSelectorOpDoesNotExist:
			return true
		case metav1.LabelSelectorOpNotIn:
			return contains(other.Values, term.Values)
		case metav1.LabelSelectorOpIn:
			return !slices.ContainsFunc(other.Values, func(value string) bool { return slices.Contains(term.Values, value) })
		}
	}
	return false
}

// contains reports whether all of some are in all.
func contains(all, some []string) bool {
	return !slices.ContainsFunc(some, func(one string) bool { return !slices.Contains(all, one) })
}

// strange returns the terms of a selector that narrow the one that is wanted, and are
// not tolerated.
func strange(have, want *metav1.LabelSelector, tolerated Tolerated) []metav1.LabelSelectorRequirement {
	wanted := terms(want)
	return slices.DeleteFunc(terms(have), func(term metav1.LabelSelectorRequirement) bool { return tolerated.mayStay(term, wanted) })
}

// lacks reports whether the wanted selector has a term that does not follow from have.
func lacks(have, want *metav1.LabelSelector) bool {
	having := terms(have)
	return slices.ContainsFunc(terms(want), func(term metav1.LabelSelectorRequirement) bool { return !follows(term, having) })
}

// keep adds the terms of a selector in the cluster that may stay to the wanted one. A
// platform that adds them would otherwise add them again after each write of ours.
func keep(want, have *metav1.LabelSelector, tolerated Tolerated) *metav1.LabelSelector {
	if have == nil {
		return want
	}
	kept := want.DeepCopy()
	wanted := terms(want)
	for _, term := range have.MatchExpressions {
		same := func(other metav1.LabelSelectorRequirement) bool {
			return other.Key == term.Key && other.Operator == term.Operator && slices.Equal(other.Values, term.Values)
		}
		if !slices.ContainsFunc(want.MatchExpressions, same) && tolerated.mayStay(term, wanted) {
			kept.MatchExpressions = append(kept.MatchExpressions, *term.DeepCopy())
		}
	}
	return kept
}

// without returns a selector without the terms that others may have added. implied says
// to drop those that follow from the rest, too, the last ones first.
func without(selector *metav1.LabelSelector, tolerated Tolerated, implied bool) *metav1.LabelSelector {
	if selector == nil {
		return nil
	}
	left := selector.DeepCopy()
	for i, term := range slices.Backward(left.MatchExpressions) {
		rest := &metav1.LabelSelector{MatchLabels: left.MatchLabels, MatchExpressions: slices.Delete(slices.Clone(left.MatchExpressions), i, i+1)}
		var from []metav1.LabelSelectorRequirement
		if implied {
			from = terms(rest)
		}
		if tolerated.mayStay(term, from) {
			left.MatchExpressions = rest.MatchExpressions
		}
	}
	if len(left.MatchExpressions) == 0 {
		left.MatchExpressions = nil
	}
	return left
}

// tolerating returns what ParseTolerated needs, for the terms to stay; "" if that is not
// to be had.
func tolerating(strange []metav1.LabelSelectorRequirement) string {
	each := make([]string, len(strange))
	for i, term := range strange {
		switch {
		case term.Operator == metav1.LabelSelectorOpNotIn:
			each[i] = term.Key + "=" + term.Values[0]
		case term.Operator == metav1.LabelSelectorOpDoesNotExist && term.Key != corev1.LabelMetadataName:
			each[i] = term.Key
		default:
			return ""
		}
	}
	return strings.Join(each, ",")
}

// maxTerms is how many terms a log names.
const maxTerms = 8

// termTexts is how a log names terms.
func termTexts(all []metav1.LabelSelectorRequirement) string {
	var texts []string
	for _, term := range all[:min(len(all), maxTerms)] {
		text := fmt.Sprintf("%s %s", term.Key, term.Operator)
		if len(term.Values) > 0 {
			text += " (" + strings.Join(term.Values[:min(len(term.Values), maxTerms)], ", ") + ")"
		}
		texts = append(texts, text)
	}
	if len(all) > maxTerms {
		texts = append(texts, fmt.Sprintf("and %d more", len(all)-maxTerms))
	}
	return strings.Join(texts, ", ")
}
