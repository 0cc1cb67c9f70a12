#!/usr/bin/env bash
# A release without its upload: scripts/release_check.sh [VERSION]
# The last commit is cloned into a temporary folder. There the source archive is made, a wheel from
# the archive and a wheel from the tree. The wheels must be equal byte for byte. Metadata and
# contents are read back, and the wheel is installed into an empty environment per extra.
# With VERSION, a fact that an upload needs and that is missing is an error; without, a line.
# Needs git, a package index, and PYTHON (3.11 to 3.14). Nothing is uploaded.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
python=$(command -v "${PYTHON:-python3.11}") || { echo "release_check.sh: name a Python: PYTHON=python3.11" >&2; exit 3; }

# What this shell says of Python's paths and of git's folders is not for the environments made here.
unset PYTHONPATH PYTHONHOME PIP_USER GIT_DIR GIT_WORK_TREE GIT_INDEX_FILE
export PYTHONNOUSERSITE=1 PYTHONDONTWRITEBYTECODE=1 NO_COLOR=1

work=$(mktemp -d "${TMPDIR:-/tmp}/batchclient-release.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

stage_s=$SECONDS
done_with() {
    echo "$1: $((SECONDS - stage_s)) s"
    stage_s=$SECONDS
}
# The environments are empty, without pip, too: the tools' pip fills them from outside.
pip() {
    local venv=$1
    shift
    "$work/tools/bin/python" -m pip --python "$venv/bin/python" --disable-pip-version-check --quiet "$@"
}

if [[ -n $(git -C "$root" status --porcelain --untracked-files=no) ]]; then
    echo "release_check.sh: changes that are not committed are not in it" >&2
fi
git clone --quiet --no-hardlinks "$root" "$work/tree"
commit=$(git -C "$work/tree" rev-parse HEAD)
echo "release of ${commit:0:12}: about 3 minutes on two shared cores"

"$python" -m venv "$work/tools"
pip "$work/tools" install --require-hashes --requirement "$work/tree/requirements/release.lock"
done_with "build requirements"

wheel_from() {
    "$work/tools/bin/python" -m pip --disable-pip-version-check --quiet wheel \
        --no-index --no-deps --no-build-isolation --no-cache-dir --wheel-dir "$2" "$1"
}
mkdir "$work/dist" "$work/from-sdist"
(cd "$work/tree" && "$work/tools/bin/python" -m hatchling build --target sdist --directory "$work/dist") \
    >"$work/said.txt" 2>&1 || { cat "$work/said.txt" >&2; exit 1; }
sdist=("$work"/dist/*.tar.gz)
tar -xzf "${sdist[0]}" -C "$work/from-sdist"
sources=("$work"/from-sdist/*)
(umask 077 && wheel_from "${sources[0]}" "$work/wheel-of-sdist")
(umask 022 && wheel_from "$work/tree" "$work/dist")
wheel=("$work"/dist/*.whl)
if ! cmp "${wheel[0]}" "$work/wheel-of-sdist/$(basename "${wheel[0]}")"; then
    echo "release_check.sh: the wheel of the source archive is another than the wheel of the tree" >&2
    exit 1
fi
done_with "archives"
wc -c "${sdist[0]}" "${wheel[0]}" | sed '$d' | awk '{n = split($2, part, "/"); printf "  %s: %.0f KB\n", part[n], $1 / 1000}'

"$work/tools/bin/validate-pyproject" "$work/tree/pyproject.toml"
"$work/tools/bin/twine" check --strict "$work"/dist/*
# Each file of src is in the wheel, and nothing else; not one names a path of this machine.
"$work/tools/bin/check-wheel-contents" --src-dir "$work/tree/src" \
    --toplevel batchclient,batchclient_script,pytest_batchclient "${wheel[0]}"
if grep -rlF -e "$work" -e "$root" "$work/from-sdist"; then
    echo "release_check.sh: these files hold a path of this machine" >&2
    exit 1
fi
done_with "metadata and contents"

version=$(sed -nE 's/^version = "(.*)"$/\1/p' "$work/tree/pyproject.toml")
for extra in none cli data httpx2 otel prometheus redis server; do
    venv=$work/$extra
    "$python" -m venv --without-pip "$venv"
    named="${wheel[0]}"
    [[ $extra == none ]] || named="$named[$extra]"
    pip "$venv" install "$named"
    pip "$venv" check >/dev/null
    "$venv/bin/python" -I "$work/tree/scripts/_release_smoke.py" "$extra" "$version"
    done_with "an empty environment, $extra"
done

# The pytest plugin is an entry point, too; pytest is no extra.
pip "$work/cli" install pytest
mkdir "$work/plugin"
printf 'def test_it(llm_server, mock_llm):\n    assert llm_server.base_url and mock_llm\n' >"$work/plugin/test_plugin.py"
(cd "$work/plugin" && "$work/cli/bin/python" -I -m pytest -q -p no:cacheprovider test_plugin.py) \
    >"$work/said.txt" 2>&1 || { cat "$work/said.txt" >&2; exit 1; }
done_with "the pytest plugin"

[[ -n ${1:-} ]] || echo "missing for an upload:"
"$work/tools/bin/python" "$work/tree/scripts/_release.py" "$@"
echo "release-check: all is well, $SECONDS s"
