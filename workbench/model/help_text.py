"""Text that every Python has with it: the help topics of `pydoc`, as tokens."""

import random

from workbench.errors import RequestError
from workbench.model.tokenizer import Tokenizer


def topic_tokens(
    tokenizer: Tokenizer, seed: int, count: int, *, from_end: bool = False
) -> list[int]:
    """At least `count` tokens of Python's help topics in an order drawn by `seed`, or all.

    `from_end`: the order backwards, so that two readers of a part each read different topics.
    """
    topics = _help_topics()
    names = sorted(topics)
    random.Random(seed).shuffle(names)
    tokens: list[int] = []
    for name in reversed(names) if from_end else names:
        if len(tokens) >= count:
            break
        tokens += tokenizer.encode(topics[name].strip() + "\n\n\n", add_special=False)
    return tokens


def _help_topics() -> dict[str, str]:
    try:
        from pydoc_data.topics import topics
    except ImportError as error:  # some distributions pack it apart
        raise RequestError(
            "this Python comes without its help topics (pydoc_data): name text files of your own"
        ) from error
    return topics
