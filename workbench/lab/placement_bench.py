"""Part of `workbench bench tiers`: the same requests over the same tiers, each placement policy.

Texts of some pages are asked for by Zipf's law; what no tier has is computed and stored, as a row
that leaves HBM is. Each page has an attention mass of its own, drawn once. Counted after the first
half: pages found in DRAM, the share of the mass asked for that lay there, and bytes the disk took.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from workbench.cache.placement import PageFacts
from workbench.clock import RealClock
from workbench.config import TierSettings
from workbench.engine.builtin import builtin_registry
from workbench.lab.figures import Figure
from workbench.settings.tiers import PLACEMENTS
from workbench.spatial.hierarchy.hierarchy import Hierarchy

Progress = Callable[[str], None]
BLOCK_TOKENS = 16
COMPUTE_S = 1e-3  # a token: about what the default model takes on two cores
ZIPF = 1.0
POLL_S = 10.0


@dataclass(frozen=True)
class PlacementPlan:
    """Sizes; DRAM and disk hold so much of all pages there are."""

    num_texts: int = 200
    text_pages: int = 8
    num_requests: int = 1000
    page_kib: int = 64
    dram_share: float = 0.15
    disk_share: float = 0.5


QUICK = PlacementPlan(num_texts=30, num_requests=120, page_kib=8)


@dataclass
class Found:
    """What one policy's requests found, in pages and attention mass, and what the disk took."""

    num_pages: int = 0
    num_dram: int = 0
    num_disk: int = 0
    mass: float = 0.0
    dram_mass: float = 0.0
    written_bytes: int = 0


def measure_placement(progress: Progress, plan: PlacementPlan) -> list[Figure]:
    """Each built-in policy over the same requests."""
    figures = []
    for name in PLACEMENTS:
        found = _replay(name, plan)
        figures += _figures(name, found, plan)
        progress(
            f"placement {name}: {found.num_dram / found.num_pages:.3f} of the pages in DRAM, "
            f"{found.written_bytes / 2**20:.0f} MiB written to disk"
        )
    return figures


def _replay(name: str, plan: PlacementPlan) -> Found:
    draw = np.random.default_rng(0)
    ranks = np.arange(1, plan.num_texts + 1, dtype=np.float64) ** -ZIPF
    asked = draw.choice(plan.num_texts, plan.num_requests, p=ranks / ranks.sum())
    masses = draw.lognormal(-4.0, 1.0, (plan.num_texts, plan.text_pages)).clip(0.0, 1.0)
    page_bytes, total = plan.page_kib * 1024, plan.num_texts * plan.text_pages
    settings = TierSettings(
        dram_mib=plan.dram_share * total * page_bytes / 2**20,
        disk_mib=plan.disk_share * total * (page_bytes + 4096) / 2**20,
    )
    found = Found()
    with Hierarchy(settings, page_bytes, RealClock(), lambda kind, data: None) as tiers:
        tiers.mover.placer.recompute_s = lambda num_tokens: COMPUTE_S * num_tokens
        tiers.mover.placer.choose(builtin_registry().create("placement", name))
        for number, text in enumerate(asked.tolist()):
            if number == plan.num_requests // 2:
                found, written = Found(), _written(tiers)
            _ask(tiers, found, text, masses[text], page_bytes)
        found.written_bytes = _written(tiers) - written
    return found


def _ask(tiers: Hierarchy, found: Found, text: int, masses: np.ndarray, page_bytes: int) -> None:
    """Load what the tiers have of a text, compute the rest, and let all of it leave HBM again."""
    keys = [(text * len(masses) + page).to_bytes(32, "little") for page in range(len(masses))]
    job_id = tiers.submit_load(keys)
    results = tiers.poll()
    while not any(result.job_id == job_id for result in results):
        tiers.wait_io(POLL_S)
        results += tiers.poll()
    result = next(each for each in results if each.job_id == job_id)
    for tier, mass in zip(result.tiers, masses.tolist(), strict=True):
        found.num_pages += 1
        found.num_dram += tier == "G2"
        found.num_disk += tier == "G3"
        found.mass += mass
        found.dram_mass += mass * (tier == "G2")
    tiers.complete_load(job_id)
    for page in reversed(range(len(keys))):  # a text's tail leaves HBM first
        facts = PageFacts(BLOCK_TOKENS, page * BLOCK_TOKENS, float(masses[page]))
        tiers.store(keys[page], np.full(page_bytes, page, np.uint8), 1, None, facts)
    tiers.wait_io(POLL_S)


def _written(tiers: Hierarchy) -> int:
    return tiers.stats().tiers[1].stored_bytes


def _figures(name: str, found: Found, plan: PlacementPlan) -> list[Figure]:
    said = (
        f"tiers.policy = {name}: {plan.num_requests // 2} requests for {plan.text_pages} pages of "
        f"{plan.num_texts} texts by Zipf's law, DRAM for {plan.dram_share:.0%} and disk for "
        f"{plan.disk_share:.0%} of all pages"
    )
    disk = f"{found.num_disk / found.num_pages:.3f} on disk, the others computed"
    return [
        Figure(
            name=f"placement_dram_share_{name}",
            value=found.num_dram / found.num_pages,
            note=f"{said}; {disk}",
        ),
        Figure(
            name=f"placement_dram_mass_{name}",
            value=found.dram_mass / found.mass,
            note=f"{said}; share of the attention mass asked for that lay in DRAM",
        ),
        Figure(
            name=f"placement_disk_written_{name}",
            value=found.written_bytes / 2**20,
            unit="MiB",
            note=said,
        ),
    ]
