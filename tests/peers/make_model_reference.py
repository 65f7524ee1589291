"""Write tests/model/reference.npz with transformers' answers; run in the peers' environment.

    .venv-peers/bin/python tests/peers/make_model_reference.py PATH_OF_THE_DEFAULT_GGUF

It keeps, for the real model in fp32, 512 tokens of a text with 64 columns, the log-sum-exp and the
best token of each row of logits, the greedy tokens of 8 prompts, the ids of texts and of a chat;
and, for each tiny folder, all logits.
"""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "model"), str(ROOT / "peers")]

from logits_transformers import greedy, load, logits_of  # noqa: E402
from model_texts import LONG, MESSAGES, PROMPTS, TOKENIZER_TEXTS  # noqa: E402
from tiny_folders import CASES, TOKENS, write_case  # noqa: E402


def main() -> None:
    """Compute and write everything."""
    out: dict[str, np.ndarray] = {}
    network, tokenizer = load(sys.argv[1])
    ids = tokenizer.encode(LONG * 8, add_special_tokens=False)[:512]
    logits = logits_of(network, ids)
    out["long_ids"] = np.array(ids)
    out["long_columns"] = logits[:, :: logits.shape[1] // 64][:, :64]
    out["long_lse"] = torch.from_numpy(logits).logsumexp(-1).numpy()
    out["long_best"] = logits.argmax(-1)
    for index, text in enumerate(PROMPTS):
        prompt = tokenizer.encode(text, add_special_tokens=False)
        out[f"prompt_{index}"] = np.array(prompt)
        out[f"greedy_{index}"] = np.array(greedy(network, prompt, 64))
    texts = [tokenizer.encode(text, add_special_tokens=False) for text in TOKENIZER_TEXTS]
    out["text_ids"] = np.array(json.dumps(texts))
    chat = tokenizer.apply_chat_template(list(MESSAGES), tokenize=False, add_generation_prompt=True)
    out["chat_ids"] = np.array(tokenizer.encode(chat, add_special_tokens=False))
    with tempfile.TemporaryDirectory() as folder:
        for case in CASES:
            tiny, _ = load(str(write_case(Path(folder) / case, case)))
            out[f"tiny_{case}"] = logits_of(tiny, TOKENS)
    np.savez_compressed(ROOT / "model" / "reference.npz", **out)


if __name__ == "__main__":
    main()
