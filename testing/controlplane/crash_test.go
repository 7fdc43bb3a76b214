package controlplane_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/admitkit/admitkit/testing/controlplane"
)

// deathVariable names the way in which the process is to die.
const deathVariable = "CONTROLPLANE_TEST_DEATH"

const (
	killed          = "killed"
	killedInStart   = "killed in Start"
	panicked        = "panicked"
	interrupted     = "interrupted"
	startedAndReady = "the control plane is ready"
)

// startAndDie does not return.
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
		// Ctrl-C in a terminal goes to the whole process group. A shell that runs the
		// tests in the background has SIGINT ignored, so it is asked for.
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
			program, err := os.Executable()
			if err != nil {
				t.Fatal(err)
			}
			dir := t.TempDir()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, program)
			cmd.Env = append(os.Environ(), deathVariable+"="+death, "TMPDIR="+dir)
			cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
			out, err := cmd.CombinedOutput()
			if err == nil || !strings.Contains(string(out), says) {
				t.Fatalf("the process ended with %v and said:\n%s", err, out)
			}
			nothingLeft(t, dir)
		})
	}
}
