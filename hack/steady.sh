#!/usr/bin/env bash
# Runs `make test` three times beside two busy loops a core: a test that fails under load
# is a defect, of the test or of what it tests.
set -euo pipefail
cd "$(dirname "$0")/.."
trap 'kill $(jobs -p)' EXIT
for _ in $(seq $((2 * $(getconf _NPROCESSORS_ONLN)))); do
	while :; do :; done &
done
failed=0
for _ in 1 2 3; do
	hack/test.sh -count=1 || failed=$((failed + 1))
done
echo "FIGURE test.steady_failed=$failed runs"
exit $((failed > 0))
