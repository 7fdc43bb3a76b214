#!/usr/bin/env bash
# Fuzzes what parses what others send, each target for a time ($1, 6s by default), and
# prints how often it ran. An input that fails is left in the package's testdata/fuzz,
# where `make test` finds it from then on.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
git grep -oE '^func Fuzz\w+' -- '*_test.go' | while IFS=: read -r file target; do
	target=${target#func } package=$(dirname "$file")
	echo "$package $target"
	# Each run begins with the seeds alone: to go through what long runs before it
	# have found, as go test does, takes longer than that. And minimizing what is
	# merely interesting would take most of the time.
	go -C "$package" test -c -fuzz "^$target\$" -o "$work/fuzz.test" .
	if ! (cd "$package" && "$work/fuzz.test" -test.run '^$' -test.fuzz "^$target\$" -test.fuzztime "${1:-6s}" \
		-test.fuzzminimizetime 1x -test.fuzzcachedir "$work/$target" -test.timeout 0 </dev/null) 2>&1 | tee "$work/output"; then
		# A worker that is still busy when the time is over fails the test
		# though no input did (https://go.dev/issue/75804).
		if grep -q 'Failing input written' "$work/output" || ! grep -q 'context deadline exceeded' "$work/output"; then
			exit 1
		fi
	fi
	execs=$(grep -o 'execs: [0-9]*' "$work/output" | tail -1 | grep -o '[0-9]*' || true)
	echo "FIGURE fuzz.$target.execs=${execs:-0} execs"
done
