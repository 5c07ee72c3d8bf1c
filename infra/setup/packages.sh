# Sourced by setup.sh: installs what the locks say from wherever pip would take it. Expects `python`; uv must be on the PATH.

die() { printf 'setup: %s\n' "$*" >&2; exit 1; }

use_pips_sources() {
  local pip=("$python" -m pip)
  "${pip[@]}" --version >/dev/null 2>&1 || pip=(.venv-uv/bin/pip)  # Debian's Python has none unless it is asked for
  eval "$("${pip[@]}" config list 2>/dev/null | "$python" infra/setup/pip_settings.py)"
}

# installed <what> <command…>: run uv; where it fails, say in a line what could not be had.
installed() {
  local what=$1 log reason
  shift
  log=$(mktemp)
  if "$@" 2>"$log"; then rm -f "$log"; return; fi
  reason=$({ grep -m1 -E '^(error:|  ×)' "$log" || tail -n1 "$log"; grep -E '^ *(Caused by|cause|╰─▶):?' "$log" | tail -n1; } | tr -s ' \n' ' ')
  cp "$log" setup.log && rm -f "$log"
  die "$what could not be installed: ${reason:0:400}(all of it: $PWD/setup.log). Look at the network, and at pip's settings, which are used: index-url, extra-index-url, find-links, cert, proxy."
}

# synced <folder> <project> <uv flags…>: make the environment what the project's lock says.
synced() {
  local folder=$1 project=$2 requirements
  shift 2
  if [ -z "${UV_DEFAULT_INDEX:-}${UV_INDEX_URL:-}" ]; then
    UV_PROJECT_ENVIRONMENT="$PWD/$folder" installed "$folder" \
      uv sync --quiet --frozen --inexact --compile-bytecode --python "$python" --project "$project" "$@"
    return
  fi
  # A lock names files of the index that it was made from. Elsewhere the same files are found by name, version and hash.
  requirements=$(mktemp --suffix .txt)
  installed "$folder" uv export --quiet --frozen --no-emit-project --project "$project" --output-file "$requirements" "${@/--no-install-package/--no-emit-package}"
  [ -x "$folder/bin/python" ] || installed "$folder" uv venv --quiet --python "$python" "$folder"
  installed "$folder" uv pip install --quiet --compile-bytecode --no-deps --require-hashes --python "$folder/bin/python" --requirement "$requirements"
  rm -f "$requirements"
  if grep -q '^\[build-system\]' "$project/pyproject.toml"; then
    installed "$folder" uv pip install --quiet --no-deps --python "$folder/bin/python" --editable "$project"
  fi
}
