#!/usr/bin/env bash
# Makes .venv-verifiers from its lock, with the Python of .venv. Run again, it does nothing unless the lock changed. What was
# installed there besides, such as packages of tasksets, stays.
set -euo pipefail
cd "$(dirname "$0")/../../../.."
PATH="$PWD/.venv-uv/bin:$PATH"
folder=.venv-verifiers project=tasks/environments/verifiers/nbrl_verifiers
python=$(realpath .venv/bin/python)
. infra/setup/packages.sh

stamp=$(cat $project/pyproject.toml $project/uv.lock $project/setup.sh infra/setup/packages.sh | sha256sum | cut -d' ' -f1)
[ "$(cat $folder/.nbrl-setup 2>/dev/null)" = "$stamp" ] && exit 0
command -v uv >/dev/null || die "uv is missing: run make setup first."
use_pips_sources
log=setup$folder.log
echo "making $folder (verifiers)"
synced $folder $project
echo "$stamp" >$folder/.nbrl-setup
rm -f "$log"
