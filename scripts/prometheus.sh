#!/usr/bin/env bash
# Debian's prometheus and promtool into .cache/prometheus (or $BATCHCLIENT_PROMETHEUS_DIR), unpacked
# and not installed: 90 MB, some seconds.
# Does nothing where both are on the path.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
folder=${BATCHCLIENT_PROMETHEUS_DIR:-$root/.cache/prometheus}

if command -v prometheus >/dev/null && command -v promtool >/dev/null; then
    exit 0
fi
if "$folder/usr/bin/prometheus" --version >/dev/null 2>&1 && "$folder/usr/bin/promtool" --version >/dev/null 2>&1; then
    exit 0
fi
if ! command -v apt-get >/dev/null || ! command -v dpkg-deb >/dev/null; then
    echo "prometheus.sh: no Prometheus here, and no apt-get to fetch one: install it, or its tests are left out." >&2
    exit 3
fi

mkdir -p "$folder"
cd "$folder"
if ! { apt-get download --quiet prometheus || { apt-get update --quiet && apt-get download --quiet prometheus; }; }; then
    echo "prometheus.sh: Debian's prometheus could not be fetched: install it, or its tests are left out." >&2
    exit 3
fi
dpkg-deb -x prometheus_*.deb .
rm prometheus_*.deb
usr/bin/prometheus --version
