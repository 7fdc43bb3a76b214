#!/usr/bin/env bash
# Runs the short form of every test but those of real nodes, and says which were the
# slowest and what all of them cost. Its arguments go to go test. MODULES are those
# beside the root that have tests. With RACE=all, every test runs with the race detector.
set -euo pipefail
cd "$(dirname "$0")/.."
if [ -z "$MODULES" ]; then
	echo "MODULES names no module that has tests: git ls-files finds none" >&2
	exit 1
fi
out=$PWD/bin/test gotestsum=$PWD/bin/tools/gotestsum
rm -rf "$out"
mkdir -p "$out"

# The race detector makes computing ten times as long, and buys nothing in kube-apiserver,
# Helm and golden files. So it is for the tests that need no control plane, and for the
# packages in which goroutines of ours meet. Some that need none only compute: random
# objects, schemas, charts. What meets in them, caches, meets in the tests of webhook too.
meet='/(webhook|manager|extension/cluster)$'
alone='/(webhook/internal/patch|internal/(jsonpatch|wire)|operator/api/v1alpha1|operator/internal/hook/review|operator/cmd/sandbox)$'
[ "${RACE:-}" != all ] || meet=. alone='^$'
# By operator/go.work, library and operator are tested together, so that no processor waits.
packages=$(go -C operator list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}} {{.TestImports}} {{.XTestImports}}{{end}}' ./... ../...)
raced=$(awk -v meet="$meet" -v alone="$alone" '$1 !~ alone && ($1 ~ meet || !/testing\/(controlplane|managertest)/) {print $1}' <<<"$packages")
plain=$(awk '{print $1}' <<<"$packages" | grep -vxF "$raced" || true)
# They begin first, so that none of them is left over at the end.
longest='/(manager|webhook|examples|cmd/admitkit|operator/(access|audit|binding|sandbox|session))$'
first() { grep -E "$longest" <<<"$1" || true; printf '%s\n' "$1"; }
race=-race
if ! command -v "$(go env CC)" >/dev/null; then
	echo "no C compiler ($(go env CC)): the tests run without the race detector"
	race=
fi

# run FOLDER NAME ARGUMENT... runs go test. A test that waits for its API server leaves the
# processors to others: so many run at a time, whatever the machine has.
run() (
	cd "$1"
	"$gotestsum" --format standard-quiet --hide-summary=skipped --jsonfile "$out/$2.json" -- \
		-short -vet=off -timeout 20m -parallel 8 "${@:3}"
)

# What the tests cost is told apart from what compiling costs, which a warm cache saves.
# shellcheck disable=SC2086 # names of packages are words
{
	[ -z "$plain" ] || go -C operator list -export -deps -test $plain >/dev/null
	CGO_ENABLED=${race:+1} go -C operator list $race -export -deps -test $raced >/dev/null
	for module in $MODULES; do
		go -C "$module" list -export -deps -test ./... >/dev/null
	done
}
times >"$out/before"
began=$SECONDS failed=0

# A processor that others use, too, takes up to half as long again for the same work. So
# work that is always the same is timed beside the tests: .ci/run compares the two.
seq 500000 >"$out/numbers"
: >"$out/pace"
while sleep 10; do
	(TIMEFORMAT='%U %S' && time gzip -9 <"$out/numbers" >/dev/null) 2>>"$out/pace"
done &
pace=$!
trap 'kill $pace' EXIT
# shellcheck disable=SC2086
{
	[ -z "$plain" ] || run operator plain -p 3 "$@" $(first "$plain") &
	CGO_ENABLED=${race:+1} run operator raced -p 1 $race "$@" $(first "$raced") || failed=1
	for module in $MODULES; do
		run "$module" "${module//\//-}" "$@" ./... || failed=1
	done
	wait $! || failed=1
}
times >"$out/after"

echo "the ten slowest tests:"
cat "$out"/*.json | "$gotestsum" tool slowest --threshold 1s --num 10
{
	awk '{ sum += $1 + $2 } END { if (NR > 0) printf "FIGURE test.pace_ms=%d ms\n", 1000 * sum / NR }' "$out/pace"
	awk -F '[ms ]+' -v wall=$((SECONDS - began)) '
		FNR == 2 { sum[FILENAME] = 60*$1 + $2 + 60*$3 + $4 }
		END {
			printf "FIGURE test.compile_cpu_s=%d s\n", sum[ARGV[1]]
			printf "FIGURE test.cpu_s=%d s\nFIGURE test.warm_s=%d s\n", sum[ARGV[2]] - sum[ARGV[1]], wall
		}' "$out/before" "$out/after"
} | tee "$out/figures.txt"
exit $failed
