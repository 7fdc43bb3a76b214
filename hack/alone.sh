#!/usr/bin/env bash
# Runs the packages that failed in the output of `go test` ($1) once more, one after
# the other with nothing beside them. Tests here measure time on real API servers,
# and three packages at once on two processors can starve one. What is no matter of
# time is not tried again: a data race, a panic, a leak, a build that fails. Each
# package that needed it is named, with what failed, so that it is not forgotten.
set -euo pipefail
cd "$(dirname "$0")/.."
log=$1
most=5
mapfile -t failed < <(sed -n 's/^FAIL[[:space:]]\+\(github\.com[^[:space:]]*\)[[:space:]]\+[0-9.]\+s$/\1/p' "$log" | sort -u)
if grep -nE '^FAIL.*\[(build|setup) failed\]|WARNING: DATA RACE|^panic: |found unexpected goroutines' "$log"; then
	echo "alone: not tried again: that is no matter of time"
	exit 1
fi
if [ "${#failed[@]}" = 0 ] || [ "${#failed[@]}" -gt "$most" ]; then
	echo "alone: not tried again: ${#failed[@]} packages failed, and at most $most are"
	exit 1
fi
echo "alone: once more, with nothing beside: ${failed[*]}"
go test "${@:2}" -count=1 -p 1 "${failed[@]}"
echo "alone: UNSTEADY beside others, green alone:"
grep -E '^[[:space:]]*--- FAIL' "$log" || true
