package registration

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/webhook"
)

// parse reads a selector as kubectl does.
func parse(t *testing.T, text string) *metav1.LabelSelector {
	t.Helper()
	selector, err := metav1.ParseToLabelSelector(text)
	if err != nil {
		t.Fatal(err)
	}
	return selector
}

func TestTermsThatOthersAddMayStayOnlyIfTheyChangeNothingOrAreTolerated(t *testing.T) {
	tolerated, err := ParseTolerated([]string{"control-plane=true", "managed", corev1.LabelMetadataName + "=gke-gmp-system"})
	if err != nil {
		t.Fatal(err)
	}
	const name = corev1.LabelMetadataName
	for because, test := range map[string]struct {
		want, have string
		may        bool
	}{
		"nothing was added": {name + "=apps", name + "=apps", true},
		"a label in the form of an expression is the same":    {name + "=apps", name + " in (apps)", true},
		"the other excludes namespaces that ours excludes":    {name + " notin (a,b)", name + " notin (a,b)," + name + " notin (b)", true},
		"the other excludes namespaces that ours never names": {name + " in (apps)", name + " in (apps)," + name + " notin (kube-system)", true},
		"it excludes what ours does not have":                 {"!x", "!x,x notin (y)", true},
		"it asks for a label that ours asks for":              {"x in (y)", "x in (y),x", true},
		"it is tolerated with its value":                      {"", "control-plane notin (true)", true},
		"it is tolerated with every value":                    {"", "managed notin (a,b)", true},
		"GKE excludes its own, and what ours excludes":        {name + " notin (kube-system,mine)", name + " notin (kube-system,mine)," + name + " notin (kube-system,gke-gmp-system)", true},
		"ours is in two parts":                                {name + " notin (a,b)", name + " notin (b)," + name + " notin (a)", true},
		"it is tolerated to exclude all values":               {"", "!managed", true},

		"it excludes a namespace that ours selects":     {name + " in (a,b)", name + " in (a,b)," + name + " notin (b)", false},
		"it excludes a namespace more":                  {name + " notin (a)", name + " notin (a,b)," + name + " notin (a)", false},
		"it excludes ours, its own, and one more":       {name + " notin (kube-system)", name + " notin (kube-system)," + name + " notin (kube-system,gke-gmp-system,apps)", false},
		"its value is not the tolerated one":            {"", "control-plane notin (true,mine)", false},
		"it excludes all values where one is tolerated": {"", "!control-plane", false},
		"it selects by a tolerated key":                 {"", "managed in (never)", false},
		"it selects by the presence of a tolerated key": {"", "managed", false},
		"its key is a stranger's":                       {"", "team notin (a)", false},
		"ours is missing":                               {name + "=apps", "", false},
		"ours was changed":                              {name + "=apps", name + "=web", false},
		"ours excludes one less":                        {name + " notin (a,b)", name + " notin (a)", false},
	} {
		r := &Registration{Tolerated: tolerated}
		have, want := &entry{NamespaceSelector: parse(t, test.have)}, &entry{NamespaceSelector: parse(t, test.want)}
		if detail, differ := r.selectorsDiffer(have, want); differ == test.may {
			t.Errorf("%s: %q instead of %q may stay: %v, want %v (%s)", because, test.have, test.want, !differ, test.may, detail)
		} else if differ != (detail != "") {
			t.Errorf("%s: the detail is %q", because, detail)
		}
		have, want = &entry{ObjectSelector: have.NamespaceSelector}, &entry{ObjectSelector: want.NamespaceSelector}
		follows := test.may && !strings.Contains(because, "tolerated") && !strings.Contains(because, "GKE")
		if _, differ := r.selectorsDiffer(have, want); differ == follows {
			t.Errorf("%s, in an object selector: %q instead of %q may stay: %v, want %v", because, test.have, test.want, !differ, follows)
		}
	}
}

// What follows is claimed by logic, and tried here on every set of labels.
func TestATermThatFollowsSelectsAllThatTheOthersDo(t *testing.T) {
	var all []metav1.LabelSelectorRequirement
	for _, operator := range []metav1.LabelSelectorOperator{metav1.LabelSelectorOpIn, metav1.LabelSelectorOpNotIn} {
		for _, values := range [][]string{{"a"}, {"b"}, {"a", "b"}, {"c"}} {
			all = append(all, metav1.LabelSelectorRequirement{Key: "k", Operator: operator, Values: values})
		}
	}
	all = append(all, metav1.LabelSelectorRequirement{Key: "k", Operator: metav1.LabelSelectorOpExists}, metav1.LabelSelectorRequirement{Key: "k", Operator: metav1.LabelSelectorOpDoesNotExist})
	sets := []labels.Set{{}, {"k": "a"}, {"k": "b"}, {"k": "c"}, {"k": "d"}}
	matches := func(term metav1.LabelSelectorRequirement, set labels.Set) bool {
		selector, err := metav1.LabelSelectorAsSelector(&metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{term}})
		if err != nil {
			t.Fatal(err)
		}
		return selector.Matches(set)
	}
	for _, term := range all {
		for _, other := range all {
			implied := true
			for _, set := range sets {
				implied = implied && (!matches(other, set) || matches(term, set))
			}
			if got := Tolerated(nil).mayStay(term, parts(other)); got != implied {
				t.Errorf("%v follows from %v: %v, want %v", term, other, got, implied)
			}
		}
	}
}

func TestWhatToTolerateIsReadWithCare(t *testing.T) {
	for text, want := range map[string]string{
		"":                            "must be the key of a label",
		"a b":                         "must be the key of a label",
		"key=not a value":             "must be the value of a label",
		"kubernetes.io/metadata.name": "would let others exclude any namespace",
	} {
		if _, err := ParseTolerated([]string{text}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", text, err, want)
		}
	}
	if _, err := ParseTolerated(make([]string, MaxTolerated+1)); err == nil || !strings.Contains(err.Error(), "at most 64") {
		t.Errorf("too many: %v", err)
	}
	for _, order := range [][]string{{"k", "k=a"}, {"k=a", "k"}} {
		tolerated, err := ParseTolerated(order)
		if err != nil {
			t.Fatal(err)
		}
		if !tolerated.has(metav1.LabelSelectorRequirement{Key: "k", Operator: metav1.LabelSelectorOpNotIn, Values: []string{"b"}}) {
			t.Errorf("%v tolerates only one value", order)
		}
	}
}

func TestTheTermsOfAPlatformDoNotHideTheRevisionOfANewerReplica(t *testing.T) {
	tolerated, err := ParseTolerated([]string{"control-plane=true"})
	if err != nil {
		t.Fatal(err)
	}
	register := func(scope extension.Scope) *Registration {
		webhooks, err := webhook.Group([]*extension.Handler{extension.Mutating(extension.MutatorFunc[*corev1.Pod](nil), scope)}, webhook.Defaults{Namespaces: []string{"apps"}})
		if err != nil {
			t.Fatal(err)
		}
		return &Registration{Name: "admitkit.my-system", Domain: "my-system.svc", Webhooks: webhooks, Tolerated: tolerated}
	}
	newer := register(extension.Scope{Name: "new", Rules: extension.Pods("CREATE", "UPDATE")}).desired(mutating, nil, nil)
	revision := newer.Annotations[RevisionAnnotation]
	older := register(extension.Scope{Name: "old"})
	for _, add := range []string{"", "control-plane notin (true)", corev1.LabelMetadataName + " notin (kube-system)", "control-plane notin (true)," + corev1.LabelMetadataName + " notin (kube-system)"} {
		live := newer.DeepCopy()
		selector := live.Webhooks[0].NamespaceSelector
		selector.MatchExpressions = append(selector.MatchExpressions, parse(t, add).MatchExpressions...)
		if entries := older.newer(live, revision); len(entries) != 1 {
			t.Errorf("with %q an older replica takes the newer webhooks for drift", add)
		}
	}
	narrowed := newer.DeepCopy()
	narrowed.Webhooks[0].NamespaceSelector = parse(t, "team notin (a)")
	if entries := older.newer(narrowed, revision); entries != nil {
		t.Error("an older replica accepts webhooks that somebody has narrowed")
	}
}
