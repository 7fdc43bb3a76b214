package controlplane_test

import (
	"context"
	"fmt"
	"log"
	"testing"

	"github.com/admitkit/admitkit/testing/controlplane"
)

// In a test, Run starts a control plane and stops it when the test ends.
func ExampleRun() {
	_ = func(t *testing.T) { // func TestPodsBecomeReady(t *testing.T)
		cluster := controlplane.Run(t, controlplane.Options{ControllerManager: true, Kwok: true})
		for _, args := range [][]string{
			{"create", "deployment", "web", "--image=example.com/web"},
			{"rollout", "status", "deployment/web", "--timeout=10s"},
			{"exec", "deployment/web", "--", "echo", "hello"},
		} {
			if out, err := cluster.Kubectl(t.Context(), nil, args...).CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
		}
	}
}

// In a program, or in the TestMain of a package, call Start and Stop.
func ExampleStart() {
	ctx := context.Background()
	cluster, err := controlplane.Start(ctx, controlplane.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer func() {
		if err := cluster.Stop(); err != nil {
			log.Print(err)
		}
	}()
	alice, err := cluster.AddUser("alice", "developers")
	if err != nil {
		log.Print(err)
		return
	}
	out, err := cluster.Kubectl(ctx, alice, "auth", "whoami").CombinedOutput()
	fmt.Printf("%s%v\n", out, err)
}
