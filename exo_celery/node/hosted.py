"""What this process hosts: an agent, or a serving worker. Imports neither, so that `celery inspect` starts at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from exo_celery.node.agent import Agent
    from exo_celery.node.serving import Serving

AGENTS: list[Agent] = []
SERVINGS: list[Serving] = []


def agent() -> Agent:
    """Return this node worker's agent."""
    return AGENTS[0]


def serving() -> Serving:
    """Return what this serving worker serves."""
    return SERVINGS[0]
