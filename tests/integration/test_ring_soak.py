"""A short soak of a small model: nobody else's tokens change, no slot and no memory is lost."""

import random
from pathlib import Path

import pytest
from ring_group import TINY_LAYERS, ring, tiny_model
from soaking import SLOTS, different, fill_slots, resident, soak

WARM_UP = 50
REQUESTS = 80
# What malloc alone makes of a hundred requests is up to 10 MB on a process of 150. A row whose cache stayed would take
# 0.4 MB of these 80 requests' each.
GROWTH_BYTES = 16 * 2**20
# Kept prompts may fill a tenth of it: about twenty, so that warming up fills that.
MEMORY_BYTES = 64 * 2**20


@pytest.mark.parametrize(("cuts", "threads"), [((0, 3, TINY_LAYERS), 1), ((0, TINY_LAYERS), 2)], ids=["two", "alone"])
def test_a_soak(tmp_path: Path, cuts: tuple[int, ...], threads: int) -> None:
    model = tiny_model(tmp_path / "tiny")
    dice = random.Random(8)
    with ring(model, cuts, slots=SLOTS, threads=threads, memory_bytes=MEMORY_BYTES) as (group, client):
        soak(group, client, dice, WARM_UP)
        before = resident(group)
        answered = soak(group, client, dice, REQUESTS)
        assert resident(group) < before + GROWTH_BYTES
        assert len(answered) > REQUESTS * 0.5
        fill_slots(client)
        # Company changes the last bits; a tie within them may fall the other way, hardly ever.
        assert len(different(client, answered[:40])) <= 1
