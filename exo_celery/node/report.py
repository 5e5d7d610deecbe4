"""What this worker says of itself: `celery inspect` and the download hashes answer from here."""

from typing import Any

from exo_celery.node import hosted


def downloads() -> dict[str, Any]:
    """Return the downloads of this node as its hashes say them now, and the files of those that are running."""
    if not hosted.AGENTS:
        return what_i_serve()
    here = hosted.agent()
    files = {model: transfer.files for model, transfer in here.downloads.transfers.copy().items()}
    told = [download.model_dump(mode="json") for download in here.downloads.current()]
    return {"node": here.node_id, "downloads": told, "files": files}


def node() -> dict[str, Any]:
    """Return this node's record, measured now."""
    return hosted.agent().describe().model_dump(mode="json") if hosted.AGENTS else what_i_serve()


def shards() -> dict[str, Any]:
    """Return the shards that this node holds."""
    if not hosted.AGENTS:
        return what_i_serve()
    return {"node": hosted.agent().node_id, "shards": hosted.agent().shards.describe()}


def refresh() -> str:
    """Report what the disk holds, in a thread of the agent's; say what will happen."""
    if not hosted.AGENTS:
        return "a serving worker holds no downloads"
    hosted.agent().boot_report()
    return f"{hosted.agent().node_id} is looking at its disks and will write its download hashes"


def what_i_serve() -> dict[str, Any]:
    """Return what a serving worker is: it holds no models, its node worker does."""
    here = hosted.serving()
    return {"serving": here.instance, "model": here.model, "running_jobs": len(here.held), "ring": here.ring}
