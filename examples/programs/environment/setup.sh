#!/usr/bin/env bash
# Makes .venv-agents from its lock, with the Python of .venv-kernels. Run again, it does nothing unless the lock or that Python
# changed. What was installed there besides stays.
set -euo pipefail
cd "$(dirname "$0")/../../.."
PATH="$PWD/.venv-uv/bin:$PATH"
folder=.venv-agents project=examples/programs/environment
python=$(realpath .venv-kernels/bin/python)
. infra/setup/packages.sh

stamp=$({ cat $project/pyproject.toml $project/uv.lock $project/setup.sh infra/setup/packages.sh; echo "$python"; } | sha256sum | cut -d' ' -f1)
[ "$(cat $folder/.nbrl-setup 2>/dev/null)" = "$stamp" ] && exit 0
command -v uv >/dev/null || die "uv is missing: run make setup first."
use_pips_sources
log=setup$folder.log
echo "making $folder (agents of examples/programs)"
[ "$(realpath $folder/bin/python 2>/dev/null)" = "$python" ] || rm -rf $folder
synced $folder $project
echo "$stamp" >$folder/.nbrl-setup
rm -f "$log"
