#!/usr/bin/env bash
# Build llama.cpp's llama-server for this machine's CPU into .cache/llama/ (or
# $BATCHCLIENT_LLAMA_DIR), unless one of the same version is there. No distribution packages it, but
# the source of llama-cpp-python holds all of llama.cpp. A venv beside it (tools/) writes the GGUF
# model, and brings cmake and ninja where the machine has none.
# The build needs a C++ compiler: 80 MB to load; about 5 minutes on 2 cores, once.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
out=${BATCHCLIENT_LLAMA_DIR:-$root/.cache/llama}
version=0.3.36
sha256=832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e
# -O1 takes half as long to build as -O3, and the model of the tests is tiny.
flags=(-DCMAKE_BUILD_TYPE=Release "-DCMAKE_CXX_FLAGS_RELEASE=-O1 -DNDEBUG" -DBUILD_SHARED_LIBS=OFF -DGGML_NATIVE=ON
    -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_UI=OFF)
tools=(gguf==0.19.0 numpy==2.4.6)

mkdir -p "$out"
out=$(cd "$out" && pwd)
# One build at a time: two test runs may start together.
exec 9>"$out/lock"
flock 9

python=${PYTHON:-python3}
if [[ ! -f $out/tools/complete || $(<"$out/tools/complete") != "${tools[*]}" ]]; then
    "$python" -m venv --clear "$out/tools"
    "$out/tools/bin/python" -m pip --disable-pip-version-check install --quiet "${tools[@]}"
    echo "${tools[*]}" >"$out/tools/complete"
fi

# The stamp is written last, so a binary without it is unfinished.
stamp=$out/complete
wanted="$version ${flags[*]}"
if [[ -x $out/llama-server && -f $stamp && $(<"$stamp") == "$wanted" ]] && "$out/llama-server" --version >/dev/null 2>&1; then
    echo "$out/llama-server: complete"
    exit 0
fi
if ! command -v c++ >/dev/null; then
    echo "llama_server.sh: a C++ compiler (c++) is missing: install one, or leave out the llama.cpp suite." >&2
    exit 3
fi

started_s=$SECONDS
sdist=$out/llama_cpp_python-$version.tar.gz
if ! echo "$sha256  $sdist" | sha256sum --check --status 2>/dev/null; then
    "$python" -m pip --disable-pip-version-check download --quiet --no-deps --no-binary llama-cpp-python -d "$out" "llama-cpp-python==$version"
    echo "$sha256  $sdist" | sha256sum --check --quiet
fi
if ! command -v cmake >/dev/null || ! command -v ninja >/dev/null; then
    "$out/tools/bin/python" -m pip --disable-pip-version-check install --quiet cmake ninja
    PATH=$out/tools/bin:$PATH
fi
rm -rf "$out/source" "$out/build"
mkdir -p "$out/source"
tar -xzf "$sdist" -C "$out/source" --strip-components=1 "llama_cpp_python-$version/vendor/llama.cpp"
build() {
    cmake -S "$out/source/vendor/llama.cpp" -B "$out/build" -G Ninja "${flags[@]}" \
        && cmake --build "$out/build" --target llama-server -j "${JOBS:-$(nproc)}"
}
if ! build >"$out/build.log" 2>&1; then
    tail -40 "$out/build.log" >&2
    echo "llama_server.sh: the build failed; its whole log is $out/build.log" >&2
    exit 1
fi
cp "$out/build/bin/llama-server" "$out/llama-server"
rm -rf "$out/source" "$out/build"
echo "$wanted" >"$stamp"
echo "$out/llama-server: built in $((SECONDS - started_s)) s"
