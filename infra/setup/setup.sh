#!/usr/bin/env bash
# Makes .venv (main), .venv-kernels (what cells can import) and .venv-engine (SGLang) from their locks. Run again, it does nothing
# unless a lock changed, or the Python that kernels would get.
#
# PYTHON is the Python to make them with, python3 without it. Kernels get Python 3.12 where there is one, on the PATH or made by
# pyenv or uv: they share more memory there, and take less of a core. A 3.12 that they have stays.
#
# NBRL_SETUP_DEVICE says for which machine: cpu, cuda, or auto (as without it), which installs the CUDA builds where nvidia-smi
# finds a GPU. An image for machines with GPUs is built with cuda on a machine that has none. With --dry-run nothing is
# installed: it prints which locks would be used.
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${PYTHON:-python3}
. infra/setup/packages.sh

say() { if [ -t 1 ]; then printf '\033[1m%s\033[0m\n' "$*"; else echo "$*"; fi; }

"$python" -c 'import sys; raise SystemExit(not (3, 11) <= sys.version_info[:2] < (3, 13))' ||
  die "needs Python 3.11 or 3.12; set PYTHON=/path/to/python3.11 and run again."

has_compiler() {
  local headers='import os, sysconfig; raise SystemExit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))'
  command -v "${CC:-cc}" >/dev/null && "$python" -c "$headers"
}

# Kernels see all of the folder to which their Python was installed: it must not be one with users' files.
fit_for_kernels='
import bz2, ctypes, lzma, os, sqlite3, ssl, sys, zlib
base, home = (os.path.realpath(each) + "/" for each in (sys.base_prefix, os.path.expanduser("~")))
if "%d.%d" % sys.version_info[:2] not in sys.argv[1:] or home.startswith(base) or base.endswith("/.local/"):
    raise SystemExit(1)
print(os.path.realpath(sys._base_executable))'
# What they have already stays while there is nothing better, whoever runs this and with whatever PATH.
kernels_python() {
  local each had=.venv-kernels/bin/python
  for each in $had "$python" python3.12 "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.12.*/bin/python3.12 \
    "${XDG_DATA_HOME:-$HOME/.local/share}"/uv/python/cpython-3.12.*-linux-x86_64-gnu/bin/python3.12; do
    "$each" -c "$fit_for_kernels" 3.12 2>/dev/null && return
  done
  $had -c "$fit_for_kernels" 3.11 2>/dev/null || "$python" -c 'import os, sys; print(os.path.realpath(sys._base_executable))'
}

kernels=$(kernels_python)

case "${1:-}" in
  "") dry= ;;
  --dry-run) dry=1 ;;
  *) die "does not know $1; it takes --dry-run or nothing" ;;
esac

gpu=
case "${NBRL_SETUP_DEVICE:-auto}" in
  auto) if command -v nvidia-smi >/dev/null && nvidia-smi -L >/dev/null 2>&1; then gpu=1; fi ;;
  cuda) gpu=1 ;;
  cpu) ;;
  *) die "NBRL_SETUP_DEVICE is '$NBRL_SETUP_DEVICE'; set it to cpu, cuda or auto, or leave it out." ;;
esac
engine=infra/engine/environment
if [ -n "$gpu" ]; then engine=infra/engine/cuda; fi
if [ -n "$dry" ]; then
  torch="the CPU"
  if [ -n "$gpu" ]; then torch="CUDA, infra/setup/torch-cuda.txt"; fi
  echo ".venv from uv.lock, torch for $torch"
  echo ".venv-kernels from uv.lock, with $kernels"
  echo ".venv-engine from $engine/uv.lock"
  exit 0
fi

if ! command -v bwrap >/dev/null; then
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    say "installing bubblewrap"
    apt-get install -y -qq bubblewrap >/dev/null 2>&1 || { apt-get update -qq && apt-get install -y -qq bubblewrap >/dev/null; } ||
      die "bubblewrap could not be installed by apt-get: install it and run again."
  else
    die "bubblewrap is missing: install it (Debian: sudo apt-get install bubblewrap) and run again."
  fi
fi

if [ -n "$gpu" ] && ! { command -v c++ >/dev/null && has_compiler; }; then
  die "SGLang and torch compile kernels for a GPU, with a C++ compiler and Python's headers: install them (Debian: sudo apt-get install g++ python3-dev) and run again."
fi

stamp=$({ cat pyproject.toml uv.lock "$engine/uv.lock" infra/setup/*.*; echo "$gpu"; } | sha256sum | cut -d' ' -f1)
made() { [ "$(cat "$1/.nbrl-setup" 2>/dev/null)" = "$2" ]; }
made .venv "$stamp" && made .venv-kernels "$stamp $kernels" && made .venv-engine "$stamp" && exit 0

if ! command -v uv >/dev/null; then
  say "installing uv"
  "$python" -m venv .venv-uv || die "python -m venv does not work: install it (Debian: sudo apt-get install python3-venv) and run again."
  tried .venv-uv/bin/pip install -q 'uv>=0.9' || failed uv
  PATH="$PWD/.venv-uv/bin:$PATH"
fi
use_pips_sources

# The build of torch that suits the machine, of which the locks say the version alone.
with_torch() {
  local install=(uv pip install --quiet --compile-bytecode --no-deps --reinstall-package torch --python "$1/bin/python")
  if ! "$1/bin/python" -c "import torch; raise SystemExit(bool(torch.version.cuda) != bool('$gpu'))" 2>/dev/null; then
    if [ -n "$gpu" ]; then
      # Links of pip's may name a CPU build, which uv takes for a newer version.
      tried env -u UV_FIND_LINKS "${install[@]}" --requirement infra/setup/torch-cuda.txt ||
        tried "${install[@]}" --requirement infra/setup/torch-cuda.txt || failed torch
    else
      # Where pip is told to look, or else from the PyTorch project's own index.
      local cpu=torch==2.13.0+cpu
      if [ -n "${UV_NO_INDEX:-}" ]; then install+=(--no-index); fi
      tried "${install[@]}" $cpu || tried "${install[@]}" $cpu --index https://download.pytorch.org/whl/cpu || failed "torch's CPU build"
    fi
  fi
  "$1/bin/python" -c 'import torch' || die "torch does not import in $1; remove the folder and run again."
}

# NVIDIA's packages as the toolkit that SGLang compiles kernels with, and the kernels of its start.
with_toolkit() {
  local engine=$1 cuda kind kinds
  cuda=$(realpath "$engine"/lib/python3*/site-packages/nvidia/cu13)
  ln -sfn lib "$cuda/lib64"
  ln -sfn libcudart.so.13 "$cuda/lib/libcudart.so"
  kinds=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | sort -u) || kinds=
  for kind in ${kinds:-9.0}; do
    say "compiling SGLang's kernels for GPUs of the kind $kind"
    CUDA_HOME=${CUDA_HOME:-$cuda} PATH="$PWD/$engine/bin:$PATH" tried "$engine/bin/python" infra/engine/environment/kernels.py "$kind" ||
      die "SGLang's kernels do not compile for GPUs of the kind $kind; what the compiler said is in $PWD/$log."
  done
}

make_main() {
  local extras=(--all-extras)
  if ! has_compiler; then
    say "there is no C compiler with Python's headers, so the extra gym (reasoning-gym) is left out"
    extras+=(--no-extra gym)
  fi
  synced .venv . "${extras[@]}" --no-install-package torch
  with_torch .venv
  .venv/bin/python infra/setup/databases.py || die "the databases that new homes begin with could not be made; see above."
}

make_kernels() {
  [ "$(realpath .venv-kernels/bin/python 2>/dev/null)" = "$kernels" ] || rm -rf .venv-kernels
  python=$kernels synced .venv-kernels . --only-group kernels
  if [ -d sandbox/inside ]; then .venv-kernels/bin/python -m compileall -q sandbox/inside; fi  # an image gets the code later
}

make_engine() {
  if [ -n "$gpu" ]; then
    synced .venv-engine "$engine"  # the torch that SGLang's kernels were built for, and its CUDA libraries
    with_toolkit .venv-engine
  else
    synced .venv-engine "$engine" --no-install-package torch
    with_torch .venv-engine
  fi
}

# The three share nothing but uv's cache, which takes several at once. What one of them says of uv is in a log of its own.
waits=()
# begin <folder> <what> <stamp> <function>: begin to make an environment, unless it is as its stamp says.
begin() {
  made "$1" "$3" && return
  say "making $1 ($2)"
  (
    trap - INT  # which a shell ignores in what it does beside
    SECONDS=0 log=setup$1.log
    "$4"
    echo "$3" >"$1/.nbrl-setup"
    rm -f "$log"
    say "made $1 in $SECONDS s"
  ) &
  waits+=($!)
}
begin .venv main "$stamp" make_main
begin .venv-kernels "what cells can import, with $("$kernels" --version)" "$stamp $kernels" make_kernels
begin .venv-engine SGLang "$stamp" make_engine
# Until they are made: how long it takes, and what has come onto the disk.
free() { df -m --output=avail . | tail -1; }
before=$(free) due=$((SECONDS + 15))
while [ -n "$(jobs -rp)" ]; do
  sleep 1
  if [ $SECONDS -ge $due ]; then
    due=$((SECONDS + 15))
    say "  $SECONDS s, $((before - $(free))) MB more on the disk"
  fi
done
failures=0
for each in "${waits[@]}"; do wait "$each" || failures=$((failures + 1)); done
[ $failures = 0 ] || exit 1
rm -f setup.log  # that of uv itself
