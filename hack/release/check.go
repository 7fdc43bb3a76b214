package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"sigs.k8s.io/yaml"
)

// check builds a release of HEAD twice, in two folders, and examines it.
func check(ctx context.Context, root, tools string) error {
	began := time.Now()
	here := &release{root: root, tools: tools}
	if changed, err := here.output(ctx, "git", "status", "--porcelain"); err != nil {
		return err
	} else if changed != "" {
		fmt.Fprintf(os.Stderr, "release: the check is of HEAD, which does not have these changes:\n%s\n", changed)
	}
	temp, err := os.MkdirTemp("", "release-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(temp) }() // the next start of the machine removes it, too
	var sums [2][]sum
	var built *release
	for i, name := range []string{"first", "another-of-another-name"} {
		clone := filepath.Join(temp, name, "admitkit")
		if err := here.clone(ctx, clone); err != nil {
			return err
		}
		if built, err = build(ctx, clone, tools); err != nil {
			return fmt.Errorf("build %d: %w", i+1, err)
		}
		if sums[i], err = sumsOf(built.out()); err != nil {
			return err
		}
		fmt.Printf("build %d of %s: %d artifacts, after %s\n", i+1, built.tag, len(sums[i]), time.Since(began).Round(time.Second))
	}
	if err := errors.Join(compare(sums[0], sums[1]), examine(ctx, built, temp)); err != nil {
		return err
	}
	for _, s := range sums[0] {
		fmt.Printf("%10.1f kB  %s  %s\n", float64(s.size)/1e3, s.sum[:12], s.name)
	}
	fmt.Printf("FIGURE release.artifacts=%d artifacts\nFIGURE release.minutes=%.1f min\n", len(sums[0]), time.Since(began).Minutes())
	return nil
}

// clone makes a clean clone of HEAD with a tag that no release has.
func (r *release) clone(ctx context.Context, dir string) error {
	content, err := os.ReadFile(filepath.Join(r.root, "operator/charts/admitkit/Chart.yaml"))
	if err != nil {
		return err
	}
	var chart struct{ Version string }
	if err := yaml.Unmarshal(content, &chart); err != nil {
		return err
	}
	for _, args := range [][]string{
		{"clone", "--quiet", "--no-local", r.root, dir},
		{"-C", dir, "tag", "v" + chart.Version + snapshot},
		{"-C", dir, "remote", "set-url", "origin", source},
	} {
		if err := r.run(ctx, "git", args...); err != nil {
			return err
		}
	}
	return nil
}

// compare names the files in which two builds differ.
func compare(one, other []sum) error {
	var differ []string
	of := map[string]string{}
	for _, s := range one {
		of[s.name] = s.sum
	}
	for _, s := range other {
		if of[s.name] != s.sum {
			differ = append(differ, s.name)
		}
		delete(of, s.name)
	}
	for name := range of {
		differ = append(differ, name)
	}
	if len(differ) > 0 {
		return fmt.Errorf("two builds of one commit differ in %s", strings.Join(differ, ", "))
	}
	return nil
}
