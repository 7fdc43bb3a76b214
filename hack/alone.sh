#!/usr/bin/env bash
# Runs the tests that failed in the output of `go test` ($1) once more, one package after
# the other with nothing beside them. Tests here measure time on real API servers, and
# three packages at once on two processors can starve one. What is no matter of time is
# not tried again: a data race, a panic, a leak, a build that fails. Each test that
# needed it is named, so that it is not forgotten.
set -euo pipefail
cd "$(dirname "$0")/.."
log=$1
most=5
if grep -nE '^FAIL.*\[(build|setup) failed\]|WARNING: DATA RACE|^panic: |found unexpected goroutines' "$log"; then
	echo "alone: not tried again: that is no matter of time"
	exit 1
fi
# A line for each package: its name, and the tests of its own that failed, which come before it.
mapfile -t failed < <(awk '
	/^--- FAIL: / { tests = tests "|" $3 }
	/^ok[[:space:]]/ { tests = "" }
	/^FAIL[[:space:]]+github\.com/ { print $2, substr(tests, 2); tests = "" }' "$log")
if [ "${#failed[@]}" = 0 ] || [ "${#failed[@]}" -gt "$most" ]; then
	echo "alone: not tried again: ${#failed[@]} packages failed, and at most $most are"
	exit 1
fi
for each in "${failed[@]}"; do
	read -r package tests <<<"$each"
	if [ -z "$tests" ]; then
		echo "alone: not tried again: $package failed without a test"
		exit 1
	fi
	echo "alone: once more, with nothing beside: $package $tests"
	go test "${@:2}" -count=1 -run "^($tests)\$" "$package" | tee "$log.alone"
	if grep -q 'no tests to run' "$log.alone"; then
		echo "alone: nothing has run"
		exit 1
	fi
	echo "alone: UNSTEADY beside others, green alone: $package $tests"
done
