# Sourced by the other scripts: a virtual environment that is built once and left alone until what it was
# built from changes. Usage: ensure_environment DIRECTORY FILE... ; the caller defines `install`, which is
# run with $python set to the environment's interpreter. Sets $python.

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"

say() { printf '%s\n' "$*" >&2; }

find_python() {
  local candidate
  for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11 python}; do
    if "$candidate" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      command -v "$candidate"
      return
    fi
  done
  say "polychoir needs Python 3.11 or newer with its venv module (on Debian and Ubuntu: python3-venv)."
  say "None was found; PYTHON=/path/to/python names one."
  return 1
}

fingerprint() { # of files and of the place, since an editable install holds paths
  local hasher
  hasher='import hashlib, sys; print(hashlib.sha256(b"".join(open(f, "rb").read() for f in sys.argv[2:]) + sys.argv[1].encode()).hexdigest())'
  "$1" -c "$hasher" "$root" "${@:2}"
}

ensure_environment() {
  local directory="$1" base wanted
  shift
  python="$directory/bin/python"
  if [ ! -f "$directory/built" ] || ! "$python" -c '' 2>/dev/null; then
    base="$(find_python)"
    say "Making ${directory#"$root"/} (once; this takes a minute or more) ..."
    rm -f "$directory/built"
    "$base" -m venv --clear "$directory"
  fi
  wanted="$(fingerprint "$python" "$@")"
  if [ "$(cat "$directory/built" 2>/dev/null)" != "$wanted" ]; then
    rm -f "$directory/built" # so that an interrupted installation is not taken for a finished one
    install
    printf '%s\n' "$wanted" > "$directory/built"
  fi
}

pip_install() { "$python" -m pip install --quiet --disable-pip-version-check --no-input "$@" </dev/null; }
