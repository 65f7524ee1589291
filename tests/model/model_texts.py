"""Texts of the comparison with transformers."""

PROMPTS = (
    "The capital of France is",
    "def fibonacci(n):\n    ",
    "Once upon a time, in a village by the sea,",
    "The three laws of thermodynamics are",
    "Q: What is 12 + 30?\nA:",
    "In 1969, the first human",
    "Water boils at 100 degrees because",
    "Dear committee, I am writing to",
)
TOKENIZER_TEXTS = (
    "",
    " ",
    "Hello, world!",
    "  two  spaces\n\n\tand a tab",
    "don't we'll I'm they've",
    "12345 6.78 2026-11-29",
    "naïve café, Zürich, Ελλάδα, 日本語テキスト, 한국어",
    "🙂👩‍👩‍👧‍👦 emoji",
    "x = {'a': [1, 2, 3]}  # comment\n",
    "<|im_start|>user\nhi<|im_end|>\n",
    "a\u0301 \u200b\ufeff",
)
LONG = (
    "A paged cache keeps the keys and values of attention in blocks of equal size. A request owns "
    "a table that maps its logical positions to physical blocks, as an operating system maps "
    "virtual pages to frames. Blocks that hold the same beginning of two prompts are stored once "
    "and counted by reference. When memory runs short, the scheduler preempts a request, frees its "
    "blocks and computes them again later, or moves them to a slower tier and back. "
)
MESSAGES = (
    {"role": "user", "content": "What is a page table?"},
    {"role": "assistant", "content": "A map from virtual to physical pages."},
    {"role": "user", "content": "And a KV cache?"},
)
