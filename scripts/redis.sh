#!/usr/bin/env bash
# Debian's redis-server with its two libraries into .cache/redis (or $BATCHCLIENT_REDIS_DIR),
# unpacked and not installed: 5 MB, a second. bin/redis-server there is a script that finds them.
# Does nothing where a redis-server is on the path.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
folder=${BATCHCLIENT_REDIS_DIR:-$root/.cache/redis}

if command -v redis-server >/dev/null || "$folder/bin/redis-server" --version 2>/dev/null; then
    exit 0
fi
if ! command -v apt-get >/dev/null || ! command -v dpkg-deb >/dev/null; then
    echo "redis.sh: no redis-server here, and no apt-get to fetch one: install it, or its tests are left out." >&2
    exit 3
fi

mkdir -p "$folder/bin"
cd "$folder"
packages=(redis-server redis-tools liblzf1 libjemalloc2)
apt-get download --quiet "${packages[@]}" || { apt-get update --quiet && apt-get download --quiet "${packages[@]}"; }
for package in ./*.deb; do
    dpkg-deb -x "$package" .
done
rm ./*.deb
cat >bin/redis-server <<'SCRIPT'
#!/bin/sh
here=$(cd "$(dirname "$0")/.." && pwd)
LD_LIBRARY_PATH=$(echo "$here"/usr/lib/*-linux-gnu)${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export LD_LIBRARY_PATH
exec "$here/usr/bin/redis-server" "$@"
SCRIPT
chmod +x bin/redis-server
bin/redis-server --version
