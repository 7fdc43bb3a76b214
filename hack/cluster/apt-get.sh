#!/usr/bin/env bash
# apt-get with $@. A machine that has just booted updates itself: this waits five
# minutes for the locks that another holds. apt-get has an option for dpkg's own,
# and none for those of its lists and archives.
set -euo pipefail
export DEBIAN_FRONTEND=noninteractive LC_ALL=C
log=$(mktemp)
trap 'rm -f "$log"' EXIT
until apt-get -q -o DPkg::Lock::Timeout=300 "$@" 2>&1 </dev/null | tee "$log"; do
	grep -q 'Could not get lock' "$log" && ((SECONDS < 300)) || exit 1
	sleep 2
done
