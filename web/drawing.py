"""The picture of a cluster: where its nodes stand and which rings run through them. PURE."""

import math
from dataclasses import dataclass
from typing import Any, Final

from exo_celery.records.node import NodeView

WIDTH: Final = 720
HEIGHT: Final = 340
LABEL: Final = 44  # room for a name and a line below each node
RADIUS_X: Final = 250
RADIUS_Y: Final = 100
COLOURS: Final = 6  # ring-0 … ring-5 in app.css


@dataclass(frozen=True)
class Spot:
    """A node's place; `used` is its used memory in percent."""

    node: NodeView
    x: float
    y: float
    used: int


@dataclass(frozen=True)
class Ring:
    """An instance's way through its nodes, as SVG points; a single node has one point."""

    instance: dict[str, Any]
    colour: int
    points: str
    centre: Spot | None


@dataclass(frozen=True)
class Picture:
    """All of it."""

    spots: list[Spot]
    rings: list[Ring]
    width: int = WIDTH
    height: int = HEIGHT


def picture(nodes: list[NodeView], instances: list[dict[str, Any]]) -> Picture:
    """Place the nodes on an ellipse and draw each instance's ring through those that are there."""
    spots = [spot(node, at, len(nodes)) for at, node in enumerate(nodes)]
    by_id = {one.node.id: one for one in spots}
    rings = []
    for number, instance in enumerate(instances):
        way = [by_id[rank["node"]] for rank in instance["ring"] if rank["node"] in by_id]
        if way:
            points = " ".join(f"{one.x:.1f},{one.y:.1f}" for one in way)
            rings.append(Ring(instance, number % COLOURS, points, way[0] if len(way) == 1 else None))
    return Picture(spots, rings)


def spot(node: NodeView, at: int, of: int) -> Spot:
    """Return a node's place: alone in the middle, else on the ellipse, the first one on the left."""
    angle = math.pi + 2 * math.pi * at / of
    reach = 0 if of == 1 else 1
    x = WIDTH / 2 + reach * RADIUS_X * math.cos(angle)
    y = HEIGHT / 2 - LABEL / 2 + reach * RADIUS_Y * math.sin(angle)
    return Spot(node, x, y, used_percent(node))


def used_percent(node: NodeView) -> int:
    """Return how much of a node's memory is in use; 0 where it is not known."""
    if node.ram_available_bytes is None or not node.ram_total_bytes:
        return 0
    return max(0, min(100, 100 - 100 * node.ram_available_bytes // node.ram_total_bytes))
