#!/usr/bin/env bash
# Debian's nginx into .cache/nginx (or $BATCHCLIENT_NGINX_DIR), unpacked and not installed: 1 MB, a
# second.
# Does nothing where an nginx is on the path.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
folder=${BATCHCLIENT_NGINX_DIR:-$root/.cache/nginx}

if command -v nginx >/dev/null || "$folder/usr/sbin/nginx" -v 2>/dev/null; then
    exit 0
fi
if ! command -v apt-get >/dev/null || ! command -v dpkg-deb >/dev/null; then
    echo "nginx.sh: no nginx here, and no apt-get to fetch one: install it, or its tests are left out." >&2
    exit 3
fi

mkdir -p "$folder"
cd "$folder"
apt-get download --quiet nginx || { apt-get update --quiet && apt-get download --quiet nginx; }
dpkg-deb -x nginx_*.deb .
rm nginx_*.deb
usr/sbin/nginx -v
