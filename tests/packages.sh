#!/bin/sh
# Installs the Debian packages that the tests use, where they are missing and we may.
set -eu

missing=""
need() { # COMMAND PACKAGE
    command -v "$1" >/dev/null 2>&1 || missing="$missing $2"
}
need g++ g++
need bash bash
need mount mount
need setpriv util-linux
need unshare util-linux
need nsenter util-linux
need hostname hostname
need ip iproute2
need prometheus prometheus
need promtool prometheus
need prometheus-alertmanager prometheus-alertmanager
need chromium chromium
need curl curl
need valgrind valgrind

[ -n "$missing" ] || exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    # shellcheck disable=SC2086 # a list of words
    exec apt-get install -y -qq --no-install-recommends $missing
fi
echo "tests/packages.sh: please install:$missing" >&2
exit 1
