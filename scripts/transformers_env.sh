#!/usr/bin/env bash
# Install `transformers serve` for the CPU into .transformers/ (or $BATCHCLIENT_TRANSFORMERS_VENV), unless a complete install
# of the same versions is there. 1.2 GB, about a minute.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=${BATCHCLIENT_TRANSFORMERS_VENV:-$root/.transformers}
requirements=$root/requirements/transformers.txt
torch_version=2.13.0

if ! python3.11 -c '' 2>/dev/null; then
    echo "transformers_env.sh: python3.11 is missing: install it, or leave out the transformers suite." >&2
    exit 3
fi

# One install at a time: two test runs may start together.
mkdir -p "$root/.cache" "$(dirname "$venv")"
exec 9>"$root/.cache/transformers-env.lock"
flock 9

# The stamp is written last, so a venv without it is unfinished.
stamp=$venv/complete
wanted=$(cat "$requirements" "${BASH_SOURCE[0]}" | sha256sum | cut -d' ' -f1)
if [[ -f $stamp && $(<"$stamp") == "$wanted" ]] && "$venv/bin/python" -c '' 2>/dev/null; then
    echo "$venv: complete"
    exit 0
fi
if [[ -e $venv && ! -f $venv/pyvenv.cfg ]] && [[ -n $(ls -A "$venv") ]]; then
    echo "transformers_env.sh: $venv is not empty and no venv: name another folder in BATCHCLIENT_TRANSFORMERS_VENV." >&2
    exit 1
fi

started_s=$SECONDS
python3.11 -m venv --clear "$venv"
pip=("$venv/bin/python" -m pip --disable-pip-version-check install --quiet)
# The CPU build by name, which an ordinary index may not have; on some, the plain version is a CPU build too.
"${pip[@]}" --constraint "$requirements" "torch==$torch_version+cpu" \
    || "${pip[@]}" --constraint "$requirements" "torch==$torch_version"
"${pip[@]}" --requirement "$requirements"

echo "$wanted" >"$stamp"
echo "$venv: installed in $((SECONDS - started_s)) s"
