#!/usr/bin/env bash
# Fuzzes what parses what others send, each target for a time ($1, 6s by
# default), and prints how often it ran. An input that fails is left in the
# package's testdata/fuzz, where `make test` finds it from then on.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for target in codec:webhook:FuzzReview patch:webhook/internal/patch:FuzzPatch decode:internal/wire:FuzzDecode ca:certs:FuzzParseCA redact:extension/audit/internal/act:FuzzRedactionLeavesWhatAShellCouldRun command:extension/access/internal/command:FuzzACommandIsThatOfTextTemplate rego:extension/hook/rego:FuzzCompile ticket:extension/session/protocol:FuzzTicket frame:extension/session/protocol:FuzzFrame archive:cmd/session:FuzzArchive; do
	IFS=: read -r name package fuzz <<<"$target"
	# Each run begins with the seeds alone: to go through what long runs before it
	# have found, as go test does, takes longer than that. And minimizing what is
	# merely interesting would take most of the time.
	go test -c -fuzz "^$fuzz\$" -o "$work/$name.test" "./$package"
	if ! (cd "$package" && "$work/$name.test" -test.run '^$' -test.fuzz "^$fuzz\$" -test.fuzztime "${1:-6s}" \
		-test.fuzzminimizetime 1x -test.fuzzcachedir "$work/$name" -test.timeout 0) 2>&1 | tee "$work/output"; then
		# A worker that is still busy when the time is over fails the test
		# though no input did (https://go.dev/issue/75804).
		if grep -q 'Failing input written' "$work/output" || ! grep -q 'context deadline exceeded' "$work/output"; then
			exit 1
		fi
	fi
	execs=$(grep -o 'execs: [0-9]*' "$work/output" | tail -1 | grep -o '[0-9]*' || true)
	echo "FIGURE fuzz.$name.execs=${execs:-0} execs"
done
