package webhook

import (
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// part is a part of the namespaces that a webhook selects.
type part struct {
	selector *metav1.LabelSelector
	// holds are the rules whose selectors select it.
	holds map[int]bool
	// rest is set for one part that no rule selects, to which objects in no namespace belong.
	rest bool
}

// divide divides parts by the selector of a rule. Parts are disjoint, and those that
// cannot have a namespace are left out.
func divide(parts []part, selector *metav1.LabelSelector, rule int) []part {
	terms := termsOf(selector)
	var all, inside []part
	for _, p := range parts {
		before := termsOf(p.selector)
		for i, term := range terms {
			// A namespace that the selector does not select has a first term that fails.
			outside, possible := conjunction(slices.Concat(before, terms[:i], []metav1.LabelSelectorRequirement{not(term)}))
			if possible || p.rest && i == 0 {
				all = append(all, part{selector: outside, holds: p.holds, rest: p.rest && i == 0})
			}
		}
		if selected, possible := conjunction(slices.Concat(before, terms)); possible {
			holds := maps.Clone(p.holds)
			if holds == nil {
				holds = map[int]bool{}
			}
			holds[rule] = true
			inside = append(inside, part{selector: selected, holds: holds})
		}
	}
	return append(all, inside...)
}

// termsOf returns the terms of a selector, all of which must hold.
func termsOf(selector *metav1.LabelSelector) []metav1.LabelSelectorRequirement {
	var terms []metav1.LabelSelectorRequirement
	for _, key := range slices.Sorted(maps.Keys(selector.MatchLabels)) {
		terms = append(terms, metav1.LabelSelectorRequirement{Key: key, Operator: metav1.LabelSelectorOpIn, Values: []string{selector.MatchLabels[key]}})
	}
	return append(terms, selector.MatchExpressions...)
}

// opposite has the operator that holds where another does not. NotIn holds without the
// label, too.
var opposite = map[metav1.LabelSelectorOperator]metav1.LabelSelectorOperator{
	metav1.LabelSelectorOpIn: metav1.LabelSelectorOpNotIn, metav1.LabelSelectorOpNotIn: metav1.LabelSelectorOpIn,
	metav1.LabelSelectorOpExists: metav1.LabelSelectorOpDoesNotExist, metav1.LabelSelectorOpDoesNotExist: metav1.LabelSelectorOpExists,
}

func not(term metav1.LabelSelectorRequirement) metav1.LabelSelectorRequirement {
	term.Operator = opposite[term.Operator]
	return term
}

// conjunction returns the selector of all terms, in few, and whether any labels can have
// them all.
func conjunction(terms []metav1.LabelSelectorRequirement) (selector *metav1.LabelSelector, possible bool) {
	selector, possible = &metav1.LabelSelector{}, true
	var keys []string
	for _, term := range terms {
		if !slices.Contains(keys, term.Key) {
			keys = append(keys, term.Key)
		}
	}
	for _, key := range keys {
		of := ofKey(terms, key)
		possible = possible && of.possible()
		selector.MatchExpressions = append(selector.MatchExpressions, of.terms(key)...)
	}
	return selector, possible
}

// values are the values that terms leave to a label.
type values struct {
	in             []string
	limited        bool // to in
	notIn          []string
	exists, absent bool
}

func ofKey(terms []metav1.LabelSelectorRequirement, key string) *values {
	v := &values{}
	for _, term := range terms {
		if term.Key != key {
			continue
		}
		switch term.Operator {
		case metav1.LabelSelectorOpIn:
			if !v.limited {
				v.in, v.limited = slices.Clone(term.Values), true
			}
			v.in = slices.DeleteFunc(v.in, func(value string) bool { return !slices.Contains(term.Values, value) })
		case metav1.LabelSelectorOpNotIn:
			v.notIn = append(v.notIn, term.Values...)
		case metav1.LabelSelectorOpExists:
			v.exists = true
		case metav1.LabelSelectorOpDoesNotExist:
			v.absent = true
		}
	}
	v.in = slices.DeleteFunc(v.in, func(value string) bool { return slices.Contains(v.notIn, value) })
	v.notIn = slices.Compact(slices.Sorted(slices.Values(v.notIn)))
	return v
}

func (v *values) possible() bool {
	return (!v.limited || len(v.in) > 0) && (!v.absent || !v.exists && !v.limited)
}

// terms returns the fewest terms. If none are possible, they hold for no labels.
func (v *values) terms(key string) []metav1.LabelSelectorRequirement {
	term := func(operator metav1.LabelSelectorOperator, values ...string) metav1.LabelSelectorRequirement {
		return metav1.LabelSelectorRequirement{Key: key, Operator: operator, Values: values}
	}
	switch {
	case !v.possible():
		return []metav1.LabelSelectorRequirement{term(metav1.LabelSelectorOpExists), term(metav1.LabelSelectorOpDoesNotExist)}
	case v.limited:
		return []metav1.LabelSelectorRequirement{term(metav1.LabelSelectorOpIn, v.in...)}
	case v.absent:
		return []metav1.LabelSelectorRequirement{term(metav1.LabelSelectorOpDoesNotExist)}
	}
	var terms []metav1.LabelSelectorRequirement
	if len(v.notIn) > 0 {
		terms = append(terms, term(metav1.LabelSelectorOpNotIn, v.notIn...))
	}
	if v.exists {
		terms = append(terms, term(metav1.LabelSelectorOpExists))
	}
	return terms
}
