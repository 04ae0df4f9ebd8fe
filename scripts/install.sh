#!/usr/bin/env bash
# Makes .venv with one of the locked sets (locks/NAME.txt) and this checkout in it.
# Nothing is done when that set is already installed as locked.
#
#   scripts/install.sh SET        SET: up (engine and router), dev, engine, router, sim, operator
#
# PYTHON           the interpreter, 3.11 or newer (default: python3)
# TORCH_INDEX_URL  another package index for torch, such as one with CPU-only wheels
set -euo pipefail
cd "$(dirname "$0")/.."

name=${1:?"usage: scripts/install.sh SET"}
lock=locks/$name.txt
python=${PYTHON:-python3}
venv=.venv
uv=$venv/tools/bin/uv

fail() { printf 'install: %s\n' "$1" >&2; exit 2; }

[ -f "$lock" ] || fail "there is no $lock; sets are: $(ls locks/*.txt | xargs -n1 basename -s .txt | tr '\n' ' ')"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null ||
  fail "$python is not Python 3.11 or newer; set PYTHON to one that is."

stamp=$venv/.installed
wanted="$name $(cat "$lock" pyproject.toml | sha256sum | cut -d' ' -f1) ${TORCH_INDEX_URL:-}"
# The development set holds every other one.
if [ -f "$stamp" ] && { [ "$(cat "$stamp")" = "$wanted" ] || [ "$name" = up ] && grep -q '^dev ' "$stamp"; }; then
  exit 0
fi

if [ ! -x $venv/bin/python ]; then
  "$python" -m venv $venv 2>/dev/null || {
    rm -rf $venv
    fail "$python cannot make a virtual environment; on Debian: apt-get install python3-venv"
  }
fi
[ -x $uv ] || $venv/bin/python -m pip install --quiet --disable-pip-version-check \
  --target $venv/tools --require-hashes -r locks/uv.txt

if grep -q '^torch==' "$lock" && ! $venv/bin/python -c 'import torch' 2>/dev/null; then
  if [ -n "${TORCH_INDEX_URL:-}" ]; then
    echo "Installing torch from $TORCH_INDEX_URL."
  else
    echo "Installing torch with its CUDA libraries: about 3 GB to download the first time."
    echo "For a smaller, CPU-only torch set TORCH_INDEX_URL to an index that has it, and run again."
  fi
fi

rm -f "$stamp"
# Compiled here, once and on every core: torch alone takes 2 s longer to import from its sources,
# and where PYTHONDONTWRITEBYTECODE is set it would be compiled anew by every process.
export UV_COMPILE_BYTECODE=1
if [ -n "${TORCH_INDEX_URL:-}" ]; then
  awk -f locks/other_torch.awk "$lock" > $venv/requirements.txt
  $uv pip install --python $venv/bin/python --index "$TORCH_INDEX_URL" \
    --index-strategy unsafe-best-match -r $venv/requirements.txt
else
  $uv pip sync --python $venv/bin/python "$lock"
fi
$uv pip install --quiet --python $venv/bin/python --no-deps --editable .
$venv/bin/python -m compileall -q api engine router operator
case $name in
  up|dev|router) $venv/bin/python -m kvasir_router.wire.long_bodies.body_scan ;;  # with a C compiler, if one is here
esac
echo "$wanted" > "$stamp"
