#!/usr/bin/env bash
# Puts promtool, which checks the alert rules, into bin/tools, from Debian's
# package, of which nothing else is installed: no server runs afterwards. Where
# that cannot be, the test of the rules says that it was skipped.
set -euo pipefail
cd "$(dirname "$0")/.."
[ -x bin/tools/promtool ] && exit
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
[ "$(id -u)" -ne 0 ] || apt-get update -qq
(cd "$work" && apt-get download -qq prometheus && dpkg -x prometheus_*.deb .)
mkdir -p bin/tools
cp "$work/usr/bin/promtool" bin/tools/
