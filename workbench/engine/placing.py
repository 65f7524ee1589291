"""What the tiers ask of the engine: its placement policy, what that weighs, what is left out."""

from itertools import islice
from typing import TYPE_CHECKING

from workbench.cache.keys import TierKey
from workbench.cache.placement import PlacementPolicy
from workbench.errors import SettingError
from workbench.registry import Name, Registry

if TYPE_CHECKING:
    from workbench.engine.engine import Engine

MOST_WAITING = 8  # requests whose pages count as wanted, from the head of the queue


def check_placement(registry: Registry, name: str) -> None:
    """Raise SettingError where no policy has that name."""
    known = registry.names("placement")
    if name not in known:
        raise SettingError(
            f"tiers.policy = {name!r} is no placement policy: choose one of {', '.join(known)}, "
            "or load yours first"
        )


def make_placement(registry: Registry, name: str) -> PlacementPolicy:
    """The policy called `name`; SettingError where there is none, or it cannot be built."""
    check_placement(registry, name)
    try:
        policy: PlacementPolicy = registry.create("placement", name)
        missing = [name for name in ("keep", "takers") if not callable(getattr(policy, name, None))]
    except Exception as error:
        raise SettingError(
            f"tiers.policy = {name!r} cannot be built ({type(error).__name__}: {error}): correct "
            "its class, or choose another policy"
        ) from error
    if missing:
        raise SettingError(
            f"tiers.policy = {name!r} has no method {missing[0]}: subclass PlacementPolicy, or "
            "choose another policy"
        )
    return policy


def renew_placement(engine: "Engine", changed: set[Name]) -> None:
    """Use a policy anew whose class was loaded again; SettingError where that is not possible."""
    name = engine.config.tiers.policy
    if ("placement", name) in changed:
        engine.placement = make_placement(engine.registry, name)
        bind_placement(engine)


def bind_placement(engine: "Engine") -> None:
    """Let the tiers ask the engine's policy, with the engine's own measurements."""
    placer = engine.hierarchy.mover.placer
    placer.recompute_s = engine.metrics.recompute_s
    placer.remaining = lambda: remaining_tokens(engine)
    if placer.policy is not engine.placement:
        placer.choose(engine.placement)


def bind_retrieval(engine: "Engine") -> None:
    """Which pages of a prefix are read at once, and who is told of those that come late."""
    config, retrieval = engine.config, engine.fetcher.retrieval
    retrieval.how, retrieval.share = config.tiers.retrieval, config.tiers.retrieval_share
    retrieval.sink_tokens = config.retention.sink_tokens
    retrieval.window_tokens = config.retention.window_tokens
    paged = config.cache.mode == "on" and not engine.stack.manager.contiguous
    retrieval.prefixes = config.cache.prefix_caching and paged
    retrieval.on_late = engine.retainer.came_late


def remaining_tokens(engine: "Engine") -> dict[TierKey, int]:
    """Tokens that waiting requests would compute again without a page, by its key.

    Of a prefix all from the page on, since hits end at the first hole; of a swapped request all,
    since it comes back as a whole or not at all.
    """
    manager, found = engine.stack.manager, dict[TierKey, int]()
    for request in islice(engine.scheduler.waiting, MOST_WAITING):
        record = engine.fetcher.swaps.record(request)
        if record is not None:
            wanted = dict.fromkeys(record.keys, record.num_computed_tokens)
        else:
            keys = manager.keys.row_keys(request, manager.keys.lineages[0])
            keys = keys[: manager.most_hit_pages(request)]
            wanted = {key: (len(keys) - page) * manager.block_size for page, key in enumerate(keys)}
        for key, count in wanted.items():
            found[key] = max(count, found.get(key, 0))
    return found
