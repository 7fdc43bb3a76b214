package access_test

import (
	"errors"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/admitkit/admitkit/operator/access"
	"github.com/admitkit/admitkit/testing/admit"
)

// inShop is the namespace of the tests of what the webhooks alone decide, which need no API
// server. Those in which requests are granted prove that it calls the webhooks.
const inShop = "shop"

// webhooks has those of the extension, and a cluster with these objects.
func webhooks(t *testing.T, objects ...runtime.Object) *admit.Client {
	t.Helper()
	return admit.New(t, access.New(access.Options{Namespaces: []string{inShop}})).WithScheme(scheme).In(inShop, nil).With(objects...)
}

var groupsOf = map[string]string{
	"alice": "devs engineers", "bob": "devs engineers", "mallory": "engineers", "bot": "engineers bots", "olga": "devs engineers oncall",
	"sam": "sre", "Sam": "sre", "sid": "sre devs", "Sid": "sre devs",
	"system:serviceaccount:shop:other": "system:serviceaccounts:shop", "system:serviceaccount:shop:trusted": "system:serviceaccounts:shop",
}

// by returns the client of a user, who is in the groups of that name.
func by(c *admit.Client, user string) *admit.Client {
	return c.As(user, strings.Fields(groupsOf[user])...)
}

// denied wants that the user is told all of the parts.
func denied(t *testing.T, result *admit.Result, parts ...string) {
	t.Helper()
	var err error
	if !result.Allowed {
		err = errors.New(result.Reason)
	}
	refused(t, err, parts...)
}

// stored makes a request as a user, and stores it.
func stored[R request](t *testing.T, c *admit.Client, user string, req R) R {
	t.Helper()
	result := by(c, user).Create(req)
	if !result.Allowed {
		t.Fatalf("%s is refused: %s", user, result.Reason)
	}
	made := result.Object.(R)
	made.SetUID(types.UID("uid-of-" + made.GetName()))
	made.SetCreationTimestamp(metav1.Now())
	c.With(made)
	return made
}
