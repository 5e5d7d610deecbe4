"""`exo-celery download | cancel | delete | verify NODE MODEL`: what is wished of one model on one node."""

from collections.abc import Callable
from typing import Final

import click

from exo_celery import cluster
from exo_celery.cli_keys import Model
from exo_celery.records.download import Download


def on_a_node(name: str, text: str, act: Callable[[cluster.Cluster, str, str], Download]) -> click.Command:
    """Return a command that does as the REST route of the same name: it leaves a wish that the node works off."""

    @click.command(name, help=text)
    @click.argument("node")
    @click.argument("model", type=Model())
    def command(node: str, model: str) -> None:
        seen = act(cluster.open_cluster(), node, model)
        now = f"{seen.status}, {seen.downloaded_bytes} of {seen.total_bytes} bytes"
        click.echo(f"{node} is asked to {name} {model} (now {now}); `exo-celery downloads` shows how it goes")

    return command


ON_A_NODE: Final = (
    on_a_node("download", "Get MODEL on NODE: it goes on by itself until it is whole.", cluster.start_download),
    on_a_node("cancel", "Stop getting, or verifying, MODEL on NODE; its bytes are kept.", cluster.cancel_download),
    on_a_node("delete", "Delete MODEL from NODE.", cluster.delete_download),
    on_a_node("verify", "Hash MODEL on NODE again; wrong files are removed.", cluster.verify_download),
)
