# Sourced by setup.sh: installs what the locks say from wherever pip would take it. Expects `python`; uv must be on the PATH.

die() { printf 'setup: %s\n' "$*" >&2; exit 1; }

use_pips_sources() {
  local pip=("$python" -m pip)
  "${pip[@]}" --version >/dev/null 2>&1 || pip=(.venv-uv/bin/pip)  # Debian's Python has none unless it is asked for
  eval "$("${pip[@]}" config list 2>/dev/null | "$python" infra/setup/pip_settings.py)"
}

# tried <command…>: run uv and keep what it says for `failed`.
log=setup.log
tried() { "$@" 2>"$log"; }

# failed <what>: say in a line what could not be had, and end.
failed() {
  local reason
  reason=$({ grep -m1 -E '^(error:|ERROR:|  ×)' "$log" || tail -n1 "$log"; grep -E '^ *(Caused by|cause|╰─▶):?' "$log" | tail -n1; } | tr -s ' \n' ' ') || true  # not every error has a cause
  die "$1 could not be installed: ${reason:0:400}(all of it: $PWD/$log). Look at the network, and at pip's settings, which are used: index-url, extra-index-url, find-links, no-index, cert, proxy."
}

# synced <folder> <project> <uv flags…>: make the environment what the project's lock says.
synced() {
  local folder=$1 project=$2
  shift 2
  if [ -z "${UV_DEFAULT_INDEX:-}${UV_INDEX_URL:-}${UV_NO_INDEX:-}" ]; then
    UV_PROJECT_ENVIRONMENT="$PWD/$folder" tried \
      uv sync --quiet --frozen --inexact --compile-bytecode --python "$python" --project "$project" "$@" && return
    [ -n "${UV_INDEX:-}${UV_EXTRA_INDEX_URL:-}${UV_FIND_LINKS:-}" ] || failed "$folder"
  fi
  # A lock names files of the index that it was made from. Elsewhere the same files are found by name, version and hash.
  local requirements install=(uv pip install --quiet --compile-bytecode --no-deps --python "$folder/bin/python")
  if [ -n "${UV_NO_INDEX:-}" ]; then install+=(--no-index); fi
  requirements=$(mktemp --suffix .txt)
  tried uv export --quiet --frozen --no-emit-project --project "$project" --output-file "$requirements" "${@/--no-install-package/--no-emit-package}" || failed "$folder"
  [ -x "$folder/bin/python" ] || tried uv venv --quiet --python "$python" "$folder" || failed "$folder"
  install+=(--require-hashes --requirement "$requirements")
  # First without asking a later index for what an earlier one has: it may not be reachable.
  tried "${install[@]}" --index-strategy first-index || tried "${install[@]}" || failed "$folder"
  rm -f "$requirements"
  if grep -q '^\[build-system\]' "$project/pyproject.toml" && [[ " $* " != *" --only-group "* ]]; then
    tried uv pip install --quiet --no-deps --python "$folder/bin/python" --editable "$project" || failed "$folder"
  fi
}
