#!/usr/bin/env bash
# Puts a program ($2) of a Debian package ($1) into bin/tools. Nothing is installed:
# no server runs afterwards, and no package that is there is replaced.
set -euo pipefail
cd "$(dirname "$0")/.."
[ -x "bin/tools/$2" ] && exit
command -v apt-get >/dev/null || { echo "$2 is of Debian's package $1, and there is no apt-get: put one into bin/tools" >&2; exit 1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
download() (cd "$work" && apt-get download -qq "$1")
# The machine's lists of packages may be missing, or old.
download "$1" 2>/dev/null || { [ "$(id -u)" -ne 0 ] || hack/cluster/apt-get.sh update; download "$1"; }
(cd "$work" && dpkg -x "$1"_*.deb .)
mkdir -p bin/tools
cp "$(find "$work" -path "*/bin/$2" -type f)" bin/tools/
