package binding

import (
	"slices"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

// noon is when the binding of the tests begins. It lasts an hour.
var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

func transient() *v1alpha1.TransientRoleBinding {
	from := metav1.NewTime(noon)
	return &v1alpha1.TransientRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "night", UID: "object"},
		Spec: v1alpha1.TransientBindingSpec{
			ValidFrom: &from, ValidUntil: metav1.NewTime(noon.Add(time.Hour)), Author: &v1alpha1.Author{},
			RoleRef: v1alpha1.BoundRole{Kind: "Role", Name: "deployer"}, Subjects: []v1alpha1.BoundSubject{{Kind: "User", Name: "eve"}},
		},
	}
}

func asWanted() *rbacv1.RoleBinding {
	b := inNamespace.wanted(transient(), "role").(*rbacv1.RoleBinding)
	b.UID = "binding"
	return b
}

func TestWhatFollowsFromTheFacts(t *testing.T) {
	foreign := &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{UID: "foreign"}}
	bare := asWanted()
	bare.Labels, bare.Annotations, bare.OwnerReferences = nil, nil, nil
	before, at, within, end := noon.Add(-time.Second), noon, noon.Add(time.Minute), noon.Add(time.Hour)
	tests := map[string]struct {
		change         func(*facts)
		now            time.Time
		reason         string
		removes, makes bool
		next           time.Time
	}{
		"before its time there is none":                    {nil, before, v1alpha1.BindingNotYet, false, false, noon},
		"it begins at the very moment":                     {nil, at, v1alpha1.BindingActive, false, true, end},
		"it is there":                                      {func(f *facts) { f.binding = asWanted() }, within, v1alpha1.BindingActive, false, false, end},
		"a moment before the end it is there":              {func(f *facts) { f.binding = asWanted() }, end.Add(-1), v1alpha1.BindingActive, false, false, end},
		"at the very end it goes":                          {func(f *facts) { f.binding = asWanted() }, end, v1alpha1.BindingEnded, true, false, end.Add(time.Hour)},
		"one that lost all that says whose it is goes too": {func(f *facts) { f.binding = bare; f.object.GetBindingStatus().BindingUID = "binding" }, end, v1alpha1.BindingEnded, true, false, end.Add(time.Hour)},
		"after the end none is made":                       {nil, end.Add(time.Minute), v1alpha1.BindingEnded, false, false, end.Add(time.Hour)},
		"what another clock has ended is made by none that is behind": {func(f *facts) {
			f.object.GetBindingStatus().EndedAt, f.binding = new(metav1.NewTime(end)), asWanted()
		}, within, v1alpha1.BindingEnded, true, false, end.Add(time.Hour)},
		"a foreign one stays":                                   {func(f *facts) { f.binding = foreign }, within, v1alpha1.BindingNameTaken, false, false, end},
		"a foreign one stays after the end":                     {func(f *facts) { f.binding = foreign }, end, v1alpha1.BindingEnded, false, false, end.Add(time.Hour)},
		"one that was edited is made again":                     {func(f *facts) { b := asWanted(); b.Subjects = nil; f.binding = b }, within, v1alpha1.BindingActive, true, true, end},
		"one that is edited all the time goes, and comes later": {func(f *facts) { b := asWanted(); b.Subjects = nil; f.binding, f.notBefore = b, within.Add(5) }, within, "", true, false, within.Add(5)},
		"without the role it waits":                             {func(f *facts) { f.roleUID = "" }, within, v1alpha1.BindingRoleMissing, false, false, end},
		"a role that was deleted is lost":                       {func(f *facts) { f.roleUID = ""; f.binding = asWanted() }, within, v1alpha1.BindingRoleLost, true, false, end},
		"a role that was made again is another":                 {func(f *facts) { f.roleUID = "other"; f.binding = asWanted() }, within, v1alpha1.BindingRoleLost, true, false, end},
		"so it is if the status knows":                          {func(f *facts) { f.object.GetBindingStatus().RoleUID = "first" }, within, v1alpha1.BindingRoleLost, false, false, end},
		"an object without an author gets nothing":              {func(f *facts) { f.object.GetBindingSpec().Author = nil }, within, v1alpha1.BindingNotAllowed, false, false, end},
		"what the operator does not allow any more ends":        {func(f *facts) { f.refused = "no"; f.binding = asWanted() }, within, v1alpha1.BindingNotAllowed, true, false, end},
		"the binding of an object that is gone goes":            {func(f *facts) { f.object, f.binding = nil, asWanted() }, within, "", true, false, time.Time{}},
		"a foreign one stays where there is no object":          {func(f *facts) { f.object, f.binding = nil, foreign }, within, "", false, false, time.Time{}},
		"one of an earlier object of its name is made again":    {func(f *facts) { b := asWanted(); b.Annotations[annotationUID] = "earlier"; f.binding = b }, within, v1alpha1.BindingActive, true, true, end},
		"one that a finalizer would keep is made again":         {func(f *facts) { b := asWanted(); b.Finalizers = []string{"x/y"}; f.binding = b }, within, v1alpha1.BindingActive, true, true, end},
		"one that is there before its time goes":                {func(f *facts) { f.binding = asWanted() }, before, v1alpha1.BindingNotYet, true, false, noon},
		"what others add to labels and annotations stays as it is": {func(f *facts) {
			b := asWanted()
			b.Labels["team"], b.Annotations["team"] = "a", "a"
			f.binding = b
		}, within, v1alpha1.BindingActive, false, false, end},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			f := &facts{kind: inNamespace, key: types.NamespacedName{Namespace: "shop", Name: "night"}, object: transient(), roleUID: "role", retention: time.Hour}
			f.end = endOf(f.object, time.Hour)
			if test.change != nil {
				test.change(f)
			}
			d := decide(f, test.now)
			if d.reason != test.reason || (d.remove != nil) != test.removes || (d.create != nil) != test.makes || !d.next.Equal(test.next) {
				t.Errorf("got reason %q (%s), removes %t, makes %t, next %s", d.reason, d.message, d.remove != nil, d.create != nil, d.next)
			}
		})
	}
}

func TestABindingIsJudgedAgainWhenItsSpecChanges(t *testing.T) {
	f := &facts{kind: inNamespace, object: transient(), roleUID: "role", end: noon.Add(time.Hour), binding: asWanted()}
	active := metav1.Condition{Type: v1alpha1.ConditionEffective, Reason: v1alpha1.BindingActive, ObservedGeneration: 1}
	f.object.GetBindingStatus().Conditions = []metav1.Condition{active}
	for generation, want := range map[int64]bool{1: false, 2: true} {
		f.object.(*v1alpha1.TransientRoleBinding).Generation = generation
		if d := decide(f, noon); d.judge != want || d.remove != nil {
			t.Errorf("of generation %d: %+v", generation, d)
		}
	}
}

func TestABindingEndsNoLaterThanTheOperatorAllows(t *testing.T) {
	made := metav1.NewTime(noon.Add(10 * time.Minute))
	for what, c := range map[string]struct {
		change func(*v1alpha1.TransientRoleBinding)
		want   time.Time
	}{
		"as its author says":           {func(*v1alpha1.TransientRoleBinding) {}, noon.Add(time.Hour)},
		"one that no webhook has seen": {func(o *v1alpha1.TransientRoleBinding) { o.Spec.ValidUntil.Time = noon.Add(1e6 * time.Hour) }, noon.Add(2*time.Hour + skew)},
		"from when it is made, if it began long before": {func(o *v1alpha1.TransientRoleBinding) {
			o.Spec.ValidUntil.Time, o.CreationTimestamp = noon.Add(1e6*time.Hour), made
		}, made.Add(2*time.Hour + skew)},
		"for good": {func(o *v1alpha1.TransientRoleBinding) { o.Status.EndedAt = &made }, made.Time},
	} {
		object := transient()
		c.change(object)
		if got := endOf(object, 2*time.Hour); !got.Equal(c.want) {
			t.Errorf("%s: it ends at %s, want %s", what, got, c.want)
		}
	}
}

func TestAStatusMakesNoForeignBindingOurs(t *testing.T) {
	object, foreign := transient(), &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{UID: "foreign"}}
	object.CreationTimestamp = metav1.NewTime(noon)
	object.Status.BindingUID = "foreign"
	foreign.RoleRef = object.Spec.RoleRef.Ref()
	for what, c := range map[string]struct {
		role string
		made time.Time
		ours bool
	}{
		"one that may be ours":      {"deployer", noon, true},
		"one to another role":       {"admin", noon, false},
		"one that was there before": {"deployer", noon.Add(-time.Second), false},
	} {
		foreign.RoleRef.Name, foreign.CreationTimestamp = c.role, metav1.NewTime(c.made)
		if isOurs(foreign, object) != c.ours {
			t.Errorf("%s: ours is %t", what, !c.ours)
		}
	}
}

func TestARecordGoesAfterItsRetention(t *testing.T) {
	f := &facts{kind: inNamespace, object: transient(), end: noon.Add(time.Hour), retention: time.Hour}
	if decide(f, noon.Add(2*time.Hour-1)).discard || !decide(f, noon.Add(2*time.Hour)).discard {
		t.Error("it does not go after an hour")
	}
}

func TestRepairsSlowDown(t *testing.T) {
	own, key, now := newExpectations(), types.NamespacedName{Name: "a"}, noon
	var last time.Duration
	for range 40 {
		if err := own.make(key, now, func() (types.UID, error) { return "1", nil }); err != nil {
			t.Fatal(err)
		}
		wait := own.notBefore(key).Sub(now)
		if wait < last || wait > slowestRepair {
			t.Errorf("after %s it waits %s", last, wait)
		}
		last = wait
	}
	if last != slowestRepair || !own.made(key, "1") || own.made(key, "2") {
		t.Errorf("the last wait is %s", last)
	}
	own.forget(key)
	if !own.notBefore(key).IsZero() || own.made(key, "1") {
		t.Error("it is remembered")
	}
}

// A user who leaves a group does not keep what they planned.
func TestTheGroupsOfAnAuthorCountForADay(t *testing.T) {
	made := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	groups := []string{"leads", "system:authenticated", "system:masters", "system:serviceaccounts", "system:serviceaccounts:shop"}
	for ahead, want := range map[time.Duration]int{0: 5, 24 * time.Hour: 5, 24*time.Hour + time.Second: 3, 7 * 24 * time.Hour: 3} {
		object := &v1alpha1.TransientRoleBinding{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(made)}}
		object.Spec.ValidFrom = new(metav1.NewTime(made.Add(ahead)))
		object.Spec.Author = &v1alpha1.Author{Requester: v1alpha1.Requester{Username: "ann", Groups: groups}}
		user, former := authorOf(object)
		if len(user.Groups) != want || former != (want == 3) || former && slices.ContainsFunc(user.Groups, func(g string) bool { return g == "leads" || g == "system:masters" }) {
			t.Errorf("%s ahead: %v %v", ahead, user.Groups, former)
		}
		if user.Username != "ann" || len(object.Spec.Author.Groups) != 5 {
			t.Errorf("%s ahead: the author is %+v, and was changed to %+v", ahead, user, object.Spec.Author)
		}
	}
}
