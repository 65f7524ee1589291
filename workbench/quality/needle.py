"""A key hidden in the context, asked for after it was compressed: log-probability of its digits."""

import random

from workbench.errors import SettingError
from workbench.model.tokenizer import Tokenizer
from workbench.quality.plan import QualityPlan
from workbench.quality.texts import Window, read_texts, topic_tokens

DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)
KEY = "\n\nRemember this: the secret number of the archive is {key}.\n\n"
QUESTION = "\n\nQuestion: What is the secret number of the archive?\n"
ANSWER = "Answer: The secret number of the archive is"


def needle_windows(tokenizer: Tokenizer, plan: QualityPlan) -> list[Window]:
    """One window for each of DEPTHS: `plan.context` tokens with the key, the question, the digits.

    The digits alone are scored. With `plan.query_aware` the question stands before the context too.
    Raises SettingError when the context is too short to hold the key.
    """
    draw = random.Random(plan.seed)
    filler = _filler(tokenizer, plan)
    return [_window(tokenizer, plan, depth, str(draw.randrange(10**4, 10**5)), filler)
            for depth in DEPTHS]  # fmt: skip


def _filler(tokenizer: Tokenizer, plan: QualityPlan) -> list[int]:
    if plan.texts:
        tokens = tokenizer.encode(read_texts(plan.texts), add_special=False)
    else:
        tokens = topic_tokens(tokenizer, plan.seed, plan.context)
    return tokens


def _window(
    tokenizer: Tokenizer, plan: QualityPlan, depth: float, key: str, filler: list[int]
) -> Window:
    def encode(text: str) -> list[int]:
        return tokenizer.encode(text, add_special=False)

    begin = encode(QUESTION) if plan.query_aware else []
    hidden, question = encode(KEY.format(key=key)), encode(QUESTION + ANSWER)
    room = plan.context - len(hidden) - len(begin)
    if room < len(hidden) or len(filler) < room:
        raise SettingError(
            f"context = {plan.context} does not suit the needle: it takes {len(hidden)} tokens "
            f"beside at least as many others, and the text has {len(filler)}: choose a longer "
            "context or leave the needle out"
        )
    split = round(depth * room)
    context = [*begin, *filler[:split], *hidden, *filler[split:room]]
    answer = encode(f" {key}")
    is_digit = [any(map(str.isdigit, tokenizer.token_text(token))) for token in answer]
    lead = is_digit.index(True)
    tokens = (*context, *question, *answer)
    return Window(tokens, plan.context, len(tokens) - len(answer) + lead - 1)
