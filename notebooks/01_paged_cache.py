# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # A cache made of pages
#
# A language model writes one token at a time, and each new token looks back at all earlier ones.
# So that they need not be computed again, two vectors of each token are kept in every layer: its
# **key** and its **value**. This *KV cache* grows with every token, and it decides how many people
# one machine can serve.
#
# Below, a real model with 135 million weights runs in this notebook's own process. In ten minutes
# you will see how its cache is cut into pages, shared, squeezed, moved and thinned out, and what
# each of these costs. **Before each result there is a question: choose first, then run the cell.**

# %%
from lesson import FAST, Prediction, live_grid

from workbench.config import EngineConfig, replace_settings
from workbench.engine.engine import Engine
from workbench.lab.chat_texts import QUESTIONS, SYSTEM_PROMPT
from workbench.model.load import load_model
from workbench.request import RequestSpec, SamplingParams

model = load_model()  # not there yet? `workbench model fetch` brings it (98 MB)
BUDGET_MIB = 16.0 if FAST else 32.0


def make_engine(**changes):
    """An engine over the same model; `cache__k_format` names the setting `cache.k_format`."""
    settings = {"cache.hbm_budget_mib": BUDGET_MIB, "model.max_model_len": 1024}
    settings |= {name.replace("__", "."): value for name, value in changes.items()}
    return Engine(replace_settings(EngineConfig(), settings), model)


def write(num_tokens):
    """Greedy decoding of exactly so many tokens."""
    return SamplingParams(max_tokens=num_tokens, ignore_eos=True)


# %% [markdown]
# ## 1. Blocks
#
# The memory is cut into **blocks**, each with room for the keys and values of 16 tokens. A request
# takes one block, fills it, takes the next. In the grid every square is one block: outlined means
# free, coloured means in use, pale and hatched means that its request is over but the block is kept
# until the room is needed. *On a GPU this memory would be the HBM; here the CPU's memory stands in
# for it.*

# %%
engine = make_engine()
engine.add_request(
    RequestSpec(prompt="The library opens at nine, and", sampling=write(60), label="first")
)
grid = live_grid(engine, note="One request. Each square is a block of 16 tokens.")
grid.step(40)

# %%
arch, view = model.arch, engine.snapshot()
values_per_token = 2 * arch.num_layers * arch.num_kv_heads * arch.head_dim  # 2: a key and a value
block_bytes = values_per_token * 2 * 16  # 2 bytes in bf16, 16 tokens
request = view.requests[0]

print(f"a token takes {values_per_token * 2 / 1024:.1f} KiB, a block {block_bytes / 1024:.0f} KiB")
print(f"{request.num_computed_tokens} tokens lie in {request.num_pages} blocks")

assert view.classes[0].page_bytes == block_bytes
assert request.num_pages == -(-request.num_computed_tokens // 16)  # rounded up, no block more

# %% [markdown]
# ## 2. Why pages?
#
# The plain way is to reserve one long row for each request, up to the longest answer it may give.
# Here each request may write 200 tokens, and all come at once, more than there is room for.
#
# **Of the memory so reserved, how much holds nothing after the first few dozen tokens?**

# %%
reserved = Prediction(["a tenth", "about half", "two thirds or more"], bounds=[30, 65])
reserved.ask()

# %%
NUM_REQUESTS, NUM_STEPS = (8, 24) if FAST else (12, 40)


def serve_rows(allocation):
    engine = make_engine(cache__allocation=allocation)
    for index in range(NUM_REQUESTS):
        engine.add_request(
            RequestSpec(prompt=QUESTIONS[index], sampling=write(200), label=f"#{index + 1}")
        )
    grid = live_grid(engine, note=f"allocation = {allocation}, after {NUM_STEPS} steps")
    grid.step(NUM_STEPS)
    return engine.snapshot()


rows = serve_rows("contiguous")

# %%
row_waste = rows.numbers["internal_waste"].value
reserved.reveal(row_waste, f"{row_waste:.0f} % of the reserved memory is empty")
print(f"{rows.num_running} requests run, {rows.num_waiting} wait for a row that is long enough")

# %% [markdown]
# The same memory, the same requests, but a block is taken only when it is needed:

# %%
pages = serve_rows("paged")

# %%
page_waste = pages.numbers["internal_waste"].value
print(f"empty: {row_waste:.0f} % in rows, {page_waste:.0f} % in pages")
print(f"running at once: {rows.num_running} in rows, {pages.num_running} in pages")

assert row_waste > 60
assert page_waste < row_waste / 2  # what is left is the end of each last block
assert pages.num_running >= 2 * rows.num_running

# %% [markdown]
# ## 3. The same beginning is kept once
#
# Several people chat with one assistant. Each prompt begins with the same 200 tokens of
# instructions and ends with a question of its own. A full block is known by a hash of all tokens up
# to its end, so that a second request with the same beginning can point at the same blocks.
#
# **Of all the prompts' tokens together, how many does the model have to compute?**

# %%
computed = Prediction(["nearly all", "about half", "a third or less"][::-1], bounds=[0.36, 0.8])
computed.ask()

# %%
NUM_CHATS = 4 if FAST else 6


def chat(index, num_tokens=48):
    system = {"role": "system", "content": SYSTEM_PROMPT}
    question = {"role": "user", "content": QUESTIONS[index]}
    return RequestSpec(
        messages=[system, question], sampling=write(num_tokens), label=f"chat {index + 1}"
    )


engine = make_engine()
engine.add_request(chat(0))
grid = live_grid(engine, note="Squares with a double edge belong to several chats at once.")
grid.step(4)  # the first one reads its prompt ...
for index in range(1, NUM_CHATS):
    engine.add_request(chat(index))
grid.step(8)  # ... and the others find it there

# %%
view = engine.snapshot()
prompt_tokens = sum(request.num_prompt_tokens for request in view.requests)
found_tokens = sum(request.num_cached_tokens for request in view.requests)
share = 1 - found_tokens / prompt_tokens
computed.reveal(share, f"{prompt_tokens - found_tokens} of {prompt_tokens} tokens")

in_tables = sum(request.num_pages for request in view.requests)
in_memory = view.tiers[0].used_bytes // view.classes[0].page_bytes
print(f"the chats' tables list {in_tables} blocks, in memory there are {in_memory}")

shared = [request.num_shared_pages for request in view.requests]
assert min(shared) >= 12  # each chat points at the common blocks
assert found_tokens >= (NUM_CHATS - 1) * 12 * 16  # none of these tokens was computed again
assert in_memory < 0.6 * in_tables

# %% [markdown]
# ## 4. Smaller numbers
#
# A block's bytes are numbers of 16 bits. They can be kept in 8, with one scale for each token and
# head. The budget is bytes, so more blocks fit. The chats are still running; we change the format
# under their feet, and every block in use is written anew.
#
# **How many blocks will the same memory hold?**

# %%
squeezed = Prediction(
    ["about the same", "half as many again", "nearly twice as many", "more than twice"],
    bounds=[1.2, 1.7, 2.01],
)
squeezed.ask()

# %%
report = engine.apply({"cache.k_format": "int8", "cache.v_format": "int8"})
engine.start_shadow(view.requests[0].request_id)  # also compute this chat in full precision
grid = live_grid(engine, note="The same memory in int8: twice the squares, half the size.")
grid.step(8)

# %%
ratio = report.blocks_after / report.blocks_before
squeezed.reveal(ratio, f"{report.blocks_before} → {report.blocks_after} blocks ({ratio:.2f} ×)")
after, shadow = engine.snapshot(), engine.shadow.view()
print(f"{report.num_recoded_blocks} blocks written anew in {report.milliseconds:.0f} ms")
print(f"difference to full precision: KL {shadow.kl_mean:.4f} nats a token")

assert ratio >= 1.85  # not quite 2: the scales take room too
assert after.num_running == view.num_running  # nobody was thrown out
assert shadow.kl_mean < 0.05
engine.stop_shadow()

# %% [markdown]
# The **KL divergence** says how far the next-token probabilities have moved: 0 is identical, and at
# 0.01 you would hardly notice.
#
# ## 5. When it does not fit
#
# Requests grow as they write. When no block is free, the engine *preempts* one: it takes the
# request's blocks away and lets it wait. Later those tokens have to be computed once more. Or the
# blocks are **swapped**: copied to a larger, slower memory (the *DRAM tier*) and brought back when
# there is room.
#
# **With swapping, how many tokens have to be computed twice, compared to without?**

# %%
twice = Prediction(["hardly any", "about half", "just as many"], bounds=[0.3, 0.8])
twice.ask()

# %%
NUM_WRITERS, NUM_WORDS = (3, 64) if FAST else (4, 96)
TIGHT_MIB = 4.5 if FAST else 8.0


def squeeze(**changes):
    engine = make_engine(cache__hbm_budget_mib=TIGHT_MIB, **changes)
    for index in range(NUM_WRITERS):
        prompt = f"Chapter {index + 1}. {QUESTIONS[index]} " + "Long ago, in a small town, " * 4
        engine.add_request(
            RequestSpec(prompt=prompt, sampling=write(NUM_WORDS), label=f"writer {index + 1}")
        )
    grid = live_grid(engine, note="Too many writers for this memory.")
    grid.run()
    return engine.snapshot()


alone = squeeze()
swapped = squeeze(tiers__dram_mib=64.0, scheduling__preemption="swap")

# %%
again = [int(view.numbers["recomputed_tokens"].value) for view in (alone, swapped)]
preempted = [int(view.numbers["num_preemptions"].value) for view in (alone, swapped)]
dram = swapped.tiers[1]
twice.reveal(again[1] / again[0], f"{again[0]} tokens without the DRAM tier, {again[1]} with it")
print(f"preemptions: {preempted[0]} without, {preempted[1]} with")
down, up = (num_bytes / 2**20 for num_bytes in (dram.in_bytes_total, dram.out_bytes_total))
print(f"from HBM to DRAM {down:.1f} MiB, back up {up:.1f} MiB")

assert preempted[0] > 0 and again[0] > 0
assert again[1] < 0.3 * again[0]
assert up > 0  # blocks did come back

# %% [markdown]
# Nothing is free: what is not computed twice now travels twice. Which of the two is faster depends
# on the machine; in the dashboard both are figures.
#
# ## 6. What does a forgotten token cost?
#
# One can also drop tokens for good. *Sink + window* keeps the first tokens and the most recent
# ones, and frees the blocks between. Most attention falls on those it keeps.
#
# **The prompt has about 200 tokens. If only 128 stay, do the answers change?**

# %%
forgotten = Prediction(
    ["not at all (KL 0)", "measurably (KL up to 0.5)", "it talks nonsense (KL above 0.5)"],
    bounds=[1e-9, 0.5],
)
forgotten.ask()


# %%
def forget(**changes):
    engine = make_engine(**changes)
    prompt = SYSTEM_PROMPT + " A visitor asks for a book about whales. You answer:"
    name = engine.add_request(
        RequestSpec(prompt=prompt, sampling=write(16 if FAST else 32), label="reader")
    )
    engine.start_shadow(name)
    grid = live_grid(engine, note="Every token kept." if not changes else "128 tokens kept.")
    grid.run()
    return engine.shadow.view(), engine.snapshot().requests[0]


whole, whole_request = forget()
thin, thin_request = forget(
    retention__policy="sink+window", retention__budget_tokens=128, retention__window_tokens=112
)

# %%
forgotten.reveal(thin.kl_mean, f"KL {thin.kl_mean:.3f} nats a token")
print(f"dropped {thin_request.num_evicted_tokens} tokens of {thin_request.num_tokens}")
print(f"the tokens that stay hold {thin_request.kept_mass:.0%} of the attention seen so far")
print(f"same most likely token: {whole.agreement:.0%} with all, {thin.agreement:.0%} with 128")

assert whole.kl_mean == 0.0 and whole_request.num_evicted_tokens == 0  # exactly nothing changes
assert thin_request.num_evicted_tokens > 0
assert thin.kl_mean > 0.0  # every token was worth something

# %% [markdown]
# Keeping most of the *attention* is not the same as keeping the *answer*: that is why this
# workbench prints the KL beside every saving.
#
# ## What to take along
#
# | | saves | costs |
# |---|---|---|
# | pages | memory reserved for nothing | a table lookup |
# | shared prefixes | memory and computation | hashing, and only equal beginnings count |
# | int8 | half of the bytes | a little quality, some time to convert |
# | swapping to DRAM | computing again | traffic between the memories |
# | forgetting | blocks, for good | quality: measure it |
#
# **Go on:** `make app` opens the dashboard, where all of these are knobs that can be turned while
# the engine runs. Or change a number above: `cache__block_size=64` in part 1, `"int4"` in part 4, a
# budget of 64 tokens in part 6. What do you expect?
