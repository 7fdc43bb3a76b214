#!/usr/bin/env bash
# Tidies the modules in folders, or with -diff says how they differ from tidy ones. What a
# module needs of this repository is taken from here, whatever is published: go mod tidy
# does not read go.work, and go.mod has no replace, which `go install PROGRAM@VERSION` refuses.
set -euo pipefail
cd "$(dirname "$0")/.."
diff=
if [ "$1" = -diff ]; then
	diff=-diff
	shift
fi
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
for folder; do
	echo "tidying $folder"
	if [ ! -e "$folder/go.work" ]; then
		go -C "$folder" mod tidy $diff
		continue
	fi
	cp "$folder"/go.{mod,sum} "$scratch"
	go mod edit -replace "github.com/admitkit/admitkit=$PWD" "$scratch/go.mod"
	GOWORK=off go -C "$folder" mod tidy $diff -modfile="$scratch/go.mod"
	go mod edit -dropreplace github.com/admitkit/admitkit "$scratch/go.mod"
	[ -n "$diff" ] || cp "$scratch"/go.{mod,sum} "$folder"
done
