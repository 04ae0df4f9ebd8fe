#!/usr/bin/env bash
# Makes .venv/engines with the engine of others that these tests run (locks/engines.txt).
#
# TORCH_INDEX_URL  another package index for torch, such as one with CPU-only wheels
set -euo pipefail
cd "$(dirname "$0")/../.."

uv=.venv/tools/bin/uv
python=.venv/engines/bin/python
[ -x $python ] || $uv venv -q --python .venv/bin/python .venv/engines
if [ -n "${TORCH_INDEX_URL:-}" ]; then
  awk -f locks/other_torch.awk locks/engines.txt > .venv/engines/requirements.txt
  $uv pip install -q --python $python --index "$TORCH_INDEX_URL" \
    --index-strategy unsafe-best-match -r .venv/engines/requirements.txt
else
  $uv pip sync -q --python $python locks/engines.txt
fi
