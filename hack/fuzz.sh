#!/usr/bin/env bash
# Fuzzes what parses what others send, each target for a time ($1, 20s by
# default), and prints how often it ran. An input that fails is left in the
# package's testdata/fuzz, where `make test` finds it from then on.
set -euo pipefail
cd "$(dirname "$0")/.."
output=$(mktemp)
trap 'rm -f "$output"' EXIT
for target in codec:webhook:FuzzReview patch:webhook/internal/patch:FuzzPatch decode:extension:FuzzDecode ca:certs:FuzzParseCA; do
	IFS=: read -r name package fuzz <<<"$target"
	# Minimizing what is merely interesting would take most of the time.
	if ! go test -run '^$' -fuzz "^$fuzz\$" -fuzztime "${1:-20s}" -fuzzminimizetime 1x -timeout 0 "./$package" 2>&1 | tee "$output"; then
		# A worker that is still busy when the time is over fails the test
		# though no input did (https://go.dev/issue/75804).
		if grep -q 'Failing input written' "$output" || ! grep -q 'context deadline exceeded' "$output"; then
			exit 1
		fi
	fi
	execs=$(grep -o 'execs: [0-9]*' "$output" | tail -1 | grep -o '[0-9]*' || true)
	echo "FIGURE fuzz.$name.execs=${execs:-0} execs"
done
