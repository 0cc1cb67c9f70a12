#!/usr/bin/env bash
# Make a virtual environment of exactly what a lock file says, with this package in it, unless it is there already:
# scripts/locked_env.sh FOLDER LOCK_FILE. The package is installed editable, so that the working tree is what is tested.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=$1
requirements=$2
python=${PYTHON:-python3.11}

if ! "$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; then
    echo "locked_env.sh: $python is no Python 3.11 to 3.13; name one: PYTHON=python3.11" >&2
    exit 3
fi

# One install at a time: two test runs may start together.
mkdir -p "$root/.cache" "$(dirname "$venv")"
exec 9>"$root/.cache/$(basename "$venv")-env.lock"
flock 9

# The stamp is written last, so a venv without it is unfinished.
stamp=$venv/complete
wanted=$(cat "$requirements" "$root/pyproject.toml" "${BASH_SOURCE[0]}" | sha256sum | cut -d' ' -f1)
if [[ -f $stamp && $(<"$stamp") == "$wanted" ]] && "$venv/bin/python" -c '' 2>/dev/null; then
    echo "$venv: complete"
    exit 0
fi
if [[ -e $venv && ! -f $venv/pyvenv.cfg ]] && [[ -n $(ls -A "$venv") ]]; then
    echo "locked_env.sh: $venv is not empty and no venv: name another folder." >&2
    exit 1
fi

started_s=$SECONDS
"$python" -m venv --clear "$venv"
pip=("$venv/bin/python" -m pip --disable-pip-version-check --quiet install)
"${pip[@]}" --require-hashes --requirement "$requirements"
"${pip[@]}" --no-deps --no-build-isolation --editable "$root"

echo "$wanted" >"$stamp"
echo "$venv: installed in $((SECONDS - started_s)) s"
