package controlplane_test

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/testing/controlplane"
)

// deathVariable says how the process dies.
const deathVariable = "CONTROLPLANE_TEST_DEATH"

const (
	killed          = "killed"
	killedInStart   = "killed in Start"
	panicked        = "panicked"
	interrupted     = "interrupted"
	startedAndReady = "the control plane is ready"
)

// startAndDie starts a control plane and dies. It does not return.
func startAndDie(death string) {
	if death == killedInStart {
		go func() {
			for {
				if started, _ := filepath.Glob(filepath.Join(os.TempDir(), "*/pids/kube-apiserver")); len(started) > 0 {
					fmt.Println("kube-apiserver is starting")
					_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
				}
				time.Sleep(time.Millisecond)
			}
		}()
	}
	if _, err := controlplane.Start(context.Background(), controlplane.Options{}); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println(startedAndReady)
	switch death {
	case killed:
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	case panicked:
		go panic("as go test -timeout does")
	case interrupted:
		// Ctrl-C in a terminal goes to the whole process group. A shell ignores SIGINT
		// for tests that run in the background, so ask for it.
		signals := make(chan os.Signal, 1)
		signal.Notify(signals, os.Interrupt)
		_ = syscall.Kill(-syscall.Getpgrp(), syscall.SIGINT)
		<-signals
		os.Exit(1)
	}
	select {}
}

func TestNothingIsLeftWhenTheProcess(t *testing.T) {
	for death, says := range map[string]string{
		killed:        startedAndReady,
		killedInStart: "kube-apiserver is starting",
		panicked:      "panic: as go test -timeout does",
		interrupted:   startedAndReady,
	} {
		t.Run("is "+death, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			cmd := testkit.Again(t, deathVariable, death)
			cmd.Env = append(cmd.Env, "TMPDIR="+dir)
			cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
			process := testkit.Run(t, cmd)
			if err := process.Wait(); err == nil || !strings.Contains(process.Output.String(), says) {
				t.Fatalf("the process ended with %v and printed:\n%s", err, process.Output.String())
			}
			nothingLeft(t, dir)
		})
	}
}
