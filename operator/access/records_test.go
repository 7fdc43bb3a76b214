package access_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/internal/freeport"
	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/operator/access"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

// chronicle keeps records in memory, or refuses them like a Closed sink.
type chronicle struct {
	mu      sync.Mutex
	records []extension.Record
	refuses string // records with this action
	refused int
	made    map[types.UID]int // about each object, those that were refused and repeated too
}

func (c *chronicle) Record(_ context.Context, record extension.Record) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.made == nil {
		c.made = map[types.UID]int{}
	}
	c.made[record.Object.UID]++
	if record.Action == c.refuses {
		c.refused++
		return errors.New("the disk is full")
	}
	if !slices.ContainsFunc(c.records, func(known extension.Record) bool { return known.ID == record.ID }) {
		c.records = append(c.records, record)
	}
	return nil
}

// of returns the records of a request: what happened, and whose doing it was.
func (c *chronicle) of(req v1alpha1.Request) (story []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, record := range c.records {
		if record.Object.UID == req.GetUID() {
			story = append(story, record.Action+" "+record.User.Username)
		}
	}
	return story
}

// says reports whether a record of a request, with an action, has a text.
func (c *chronicle) says(req v1alpha1.Request, action, text string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.ContainsFunc(c.records, func(r extension.Record) bool {
		return r.Object.UID == req.GetUID() && r.Action == action && strings.Contains(r.Reason, text)
	})
}

func (c *chronicle) refuse(action string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refuses, c.refused = action, 0
}

func (c *chronicle) hasRefused() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.refused > 1
}

func TestTheStoryOfARequestIsTold(t *testing.T) {
	t.Parallel()
	namespace, records := common(t), &commons.told
	deployment(t, namespace, "web", 1)
	testkit.Create(t, admin, execTemplate(namespace, "web", ref("Deployment", "web"), "devs"))

	t.Run("to its deletion", func(t *testing.T) {
		req := execRequest(namespace, "deleted", "web")
		req.Spec.Duration = "1h"
		granted(t, alice, req)
		for i, duration := range []string{"30m", "45m", "30m"} { // to and fro
			if err := patch(t, alice, req, fmt.Sprintf(`{"spec":{"duration":%q}}`, duration)); err != nil {
				t.Fatal(err)
			}
			testkit.Eventually(t, "the end has moved", func(context.Context) bool {
				moves := 0
				for _, told := range records.of(req) {
					if told == "end-moved alice" {
						moves++
					}
				}
				return moves == i+1
			})
		}
		if err := admin.Delete(t.Context(), req); err != nil {
			t.Fatal(err)
		}
		testkit.Eventually(t, "it ends", func(context.Context) bool { return slices.Contains(records.of(req), "ended alice") })
		want := []string{"asked alice", "granted alice", "end-moved alice", "end-moved alice", "end-moved alice", "deleted " + cluster.Admin().Name, "ended alice"}
		if story := records.of(req); !slices.Equal(story, want) {
			t.Errorf("it is %q, want %q", story, want)
		}
	})
	t.Run("to its revocation, with who revoked it", func(t *testing.T) {
		req := execRequest(namespace, "revoked", "web")
		req.Spec.Duration = "1h"
		granted(t, alice, req)
		req.Spec.Revoked = &v1alpha1.Revocation{Reason: "she left"}
		if err := admin.Update(t.Context(), req); err != nil {
			t.Fatal(err)
		}
		testkit.Eventually(t, "it ends", func(context.Context) bool { return slices.Contains(records.of(req), "ended alice") })
		if story := records.of(req); !slices.Contains(story, "revoked "+cluster.Admin().Name) {
			t.Errorf("it does not say who revoked: %q", story)
		}
		records.mu.Lock()
		defer records.mu.Unlock()
		i := slices.IndexFunc(records.records, func(r extension.Record) bool { return r.Object.UID == req.UID && r.Action == "ended" })
		if i < 0 {
			t.Fatalf("there is no record of ExecAccessRequest %s/%s with the action ended", namespace, req.Name)
		}
		if last := records.records[i]; !strings.Contains(last.Reason, "revoked by "+cluster.Admin().Name) || !strings.Contains(last.Reason, "she left") || last.Pod.Name == "" {
			t.Errorf("the last record is %+v", last)
		}
	})
}

func TestNothingIsGrantedThatCannotBeRecordedButAccessEnds(t *testing.T) {
	t.Parallel()
	namespace := testkit.ManagerNamespace(t, admin)
	deployment(t, namespace, "web", 1)
	records := &chronicle{refuses: "granted"}
	startOn(t, namespace, freeport.For(t), access.Options{}, nil, records)
	testkit.Create(t, admin, execTemplate(namespace, "web", ref("Deployment", "web"), "devs"))
	req := execRequest(namespace, "a", "web")
	req.Spec.Duration = "1h"
	testkit.Create(t, as(t, alice), req)
	binding := client.ObjectKey{Namespace: namespace, Name: v1alpha1.ExecAccessPrefix + "a"}

	testkit.Eventually(t, "the record is refused", func(context.Context) bool { return records.hasRefused() })
	if err := admin.Get(t.Context(), binding, &rbacv1.RoleBinding{}); !apierrors.IsNotFound(err) {
		t.Errorf("there is a RoleBinding, and no record of it: %v", err)
	}
	records.refuse("ended")
	await(t, req, "is granted", func() bool { return req.Status.Ready })
	if err := admin.Delete(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "access has ended although that cannot be recorded", func(ctx context.Context) bool {
		return records.hasRefused() && apierrors.IsNotFound(admin.Get(ctx, binding, &rbacv1.RoleBinding{}))
	})
	records.refuse("")
	testkit.Eventually(t, "the end is on record", func(context.Context) bool { return slices.Contains(records.of(req), "ended alice") })
}

// noMoreBindings makes a quota that allows no further RoleBinding in a namespace.
func noMoreBindings(t *testing.T, namespace string) *corev1.ResourceQuota {
	t.Helper()
	quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "few", Namespace: namespace}, Spec: corev1.ResourceQuotaSpec{
		Hard: corev1.ResourceList{"count/rolebindings.rbac.authorization.k8s.io": resource.MustParse("0")},
	}}
	testkit.Create(t, admin, quota)
	testkit.Eventually(t, "the quota counts", func(ctx context.Context) bool {
		return admin.Get(ctx, client.ObjectKeyFromObject(quota), quota) == nil && len(quota.Status.Hard) > 0
	})
	return quota
}

func TestAGrantThatTheAPIServerRefusesSaysWhyAndIsToldOnce(t *testing.T) {
	t.Parallel()
	namespace := common(t)
	deployment(t, namespace, "web", 1)
	testkit.Create(t, admin, execTemplate(namespace, "web", ref("Deployment", "web"), "devs"))
	quota := noMoreBindings(t, namespace)
	req := execRequest(namespace, "a", "web")
	req.Spec.Duration = "1h"
	testkit.Create(t, as(t, alice), req)
	await(t, req, "says why", func() bool { return fails(req, "AccessResourcesCreated", "NotAllowed") })
	c := meta.FindStatusCondition(req.Status.Conditions, "AccessResourcesCreated")
	if !strings.Contains(c.Message, "exceeded quota: few") {
		t.Errorf("it says %q", c.Message)
	}
	if err := admin.Delete(t.Context(), quota); err != nil {
		t.Fatal(err)
	}
	await(t, req, "is granted", func() bool { return req.Status.Ready })
	commons.told.mu.Lock()
	defer commons.told.mu.Unlock()
	if made := commons.told.made[req.UID]; made != 2 {
		t.Errorf("%d records were made, want that it was asked for and granted", made)
	}
}
