"""The `exo-celery` command, thin: parse, call one function, print. Exit codes: 0, 1, 2 usage, 69, 75, 78, 130."""

import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import click

from exo_celery import access, cluster
from exo_celery.cli_downloads import ON_A_NODE
from exo_celery.cli_keys import keys
from exo_celery.errors import ConfigurationError, ExoError, InvalidRequestError, ModelLoadingError, UnavailableError
from exo_celery.local import show
from exo_celery.local.demo import demo as run_demo
from exo_celery.local.join import Invitation
from exo_celery.local.join import invite as invite_node
from exo_celery.local.join import join as join_cluster
from exo_celery.local.layout import CELERY, gunicorn
from exo_celery.local.redis_server import LOOPBACK
from exo_celery.local.rest import Rest
from exo_celery.local.run import run as run_prompts
from exo_celery.local.up import Wanted
from exo_celery.local.up import up as run_up
from exo_celery.placement.snapshot import answers
from exo_celery.records.base import Record
from exo_celery.records.instance import PlacementRequest
from exo_celery.settings import load
from exo_celery.store.client import TRANSIENT

EX_UNAVAILABLE, EX_TEMPFAIL, EX_CONFIG, INTERRUPTED = 69, 75, 78, 130
EXIT_CODES: Final = {UnavailableError: EX_UNAVAILABLE, ModelLoadingError: EX_TEMPFAIL, ConfigurationError: EX_CONFIG}
PASSED_ON: Final = {"ignore_unknown_options": True, "allow_interspersed_args": False}


class Commands(click.Group):
    """A group whose errors are sentences and exit codes."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; say what is wrong instead of showing where."""
        try:
            return super().invoke(ctx)
        except ExoError as error:
            click.echo(f"error: {error}", err=True)
            ctx.exit(next((code for kind, code in EXIT_CODES.items() if isinstance(error, kind)), 1))
        except TRANSIENT as error:
            click.echo(f"error: Redis does not answer: {error}; is EXO_REDIS_URL right?", err=True)
            ctx.exit(EX_UNAVAILABLE)
        except KeyboardInterrupt:
            ctx.exit(INTERRUPTED)


@click.group(cls=Commands)
@click.version_option(package_name="exo_celery")
def main() -> None:
    """One language model on the machines you own: a ring of Celery workers."""


for command in (keys, *ON_A_NODE):
    main.add_command(command)


@main.command()
@click.option("--nodes", default=3, show_default=True, type=click.IntRange(1, 64), help="How many node workers.")
@click.option("--no-demo", is_flag=True, help="Start without the demo model.")
@click.option("--port", type=click.IntRange(0, 65535), help="Port of the web, 0 for any; else a free one.")
@click.option("--data-dir", type=click.Path(file_okay=False, path_type=Path), help="Where everything is kept.")
@click.option("--host", default=LOOPBACK, help="This machine's address in the network, for other machines to join.")
def up(nodes: int, no_demo: bool, port: int | None, data_dir: Path | None, host: str) -> None:
    """Run a whole cluster on this machine until Ctrl-C."""
    folder = (data_dir or load().data_dir / "up").absolute()
    wanted = Wanted(folder, nodes, port, not no_demo, host)
    ended_by = run_up(wanted, os.environ, partial(click.echo, err=True), lambda url: click.echo(f"ready {url}"))
    sys.exit(INTERRUPTED if ended_by is signal.SIGINT else 0)


@main.command()
@click.option(
    "--data-dir",
    default=Path(".exo/demo"),
    show_default=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Where the demo's cluster lives; made anew each time.",
)
def demo(data_dir: Path) -> None:
    """Show the main job: place a model on a ring of nodes and ask it something."""
    run_demo(data_dir.absolute(), os.environ)


@main.command(context_settings=PASSED_ON)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def node(arguments: Sequence[str]) -> None:
    """Run this machine's node worker; what follows goes to `celery worker`."""
    become(*CELERY, "worker", "-l", "INFO", *arguments)


@main.command()
def invite() -> None:
    """Print the command that makes another machine a node of this cluster."""
    click.echo(invite_node(load()))


@main.command()
@click.argument("redis_url")
@click.option("--namespace", default="exo", show_default=True, help="The cluster's namespace.")
@click.option("--code", help="The one-time code that `exo-celery invite` printed.")
@click.option("--secret-file", type=click.Path(path_type=Path), help="The cluster's secret, copied from a node.")
@click.option("--data-dir", type=click.Path(file_okay=False, path_type=Path), help="Where this node keeps its things.")
def join(redis_url: str, namespace: str, code: str | None, secret_file: Path | None, data_dir: Path | None) -> None:
    """Make this machine a node of the cluster at REDIS_URL and run it until Ctrl-C.

    Run it again, without the code, to start the node again.
    """
    invitation = Invitation(redis_url, namespace, code, secret_file, data_dir)
    os.environ.update(join_cluster(invitation, os.environ))
    become(*CELERY, "worker", "-l", "INFO")


@main.command()
@click.option("--port", type=click.IntRange(1, 65535), help="Port, instead of EXO_WEB_PORT.")
@click.option("--host", default=LOOPBACK, show_default=True, help="Address to listen at.")
def web(port: int | None, host: str) -> None:
    """Run the web server of a cluster: REST, OpenAI's API, pages. Off loopback it needs API keys."""
    if host != LOOPBACK and not access.keys_exist(cluster.open_cluster()):
        raise ConfigurationError(
            f"{host} is not loopback and there are no API keys, so nobody could be let in: make one with "
            "`exo-celery keys create --name you --scope admin`, and name the host in EXO_ALLOWED_HOSTS"
        )
    become(*gunicorn(port or load().web_port, host))


@main.command()
@click.argument("prompts", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("-o", "--output", required=True, type=click.Path(dir_okay=False, path_type=Path), help="The results.")
@click.option("--model", help="The model of all lines that name none.")
@click.option("--max-tokens", type=click.IntRange(min=1), help="For all lines that do not say it themselves.")
@click.option("--window", default=64, show_default=True, type=click.IntRange(1, 500), help="Jobs in flight at once.")
@click.option("--url", help="Address of the web, instead of EXO_WEB_URL.")
def run(prompts: Path, output: Path, model: str | None, max_tokens: int | None, window: int, url: str | None) -> None:
    """Answer a file of PROMPTS: a line is a text, or JSON with prompt or messages.

    Stopped and run again it goes on where it was; lines that failed are tried again.
    """
    settings = load()
    rest = Rest(url or settings.web_url or f"http://{LOOPBACK}:{settings.web_port}", settings.api_key)
    defaults = {name: value for name, value in (("model", model), ("max_tokens", max_tokens)) if value is not None}
    tally = run_prompts(prompts, output, rest, window, defaults)
    click.echo(f"{tally.done} lines, {tally.failed} of them failed; results in {output}", err=True)
    if tally.failed:
        sys.exit(1)


@main.command()
@click.argument("model", required=False)
@click.option(
    "--snapshot",
    type=click.File(encoding="utf-8", errors="replace"),
    help="A cluster that is written down, JSON or JSON lines; - reads standard input.",
)
@click.option("--dry-run", is_flag=True, help="Decide and explain, place nothing.")
@click.option("--sharding", type=click.Choice(["auto", "pipeline", "tensor"]), default="auto")
@click.option("--min-nodes", type=click.IntRange(min=1), default=1, show_default=True)
@click.option("--max-nodes", type=click.IntRange(min=1))
@click.option("--require", multiple=True, metavar="NODE", help="A node that must be in the ring.")
@click.option("--exclude", multiple=True, metavar="NODE", help="A node that must not be in the ring.")
@click.option("--prefer", type=click.Choice(["most-downloaded", "ready-soonest"]), default="most-downloaded")
@click.option("--replicas", type=click.IntRange(min=1), default=1, show_default=True, help="Instances, all or none.")
@click.option("--keep-alive", type=float, metavar="SECONDS", help="Unload after so long without work; else never.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per case.")
def place(
    model: str | None,
    snapshot: Any,
    dry_run: bool,
    as_json: bool,
    require: tuple[str, ...],
    exclude: tuple[str, ...],
    **asked: Any,
) -> None:
    """Place MODEL, or decide where it would go; with --snapshot without a cluster."""
    if (model is None) == (snapshot is None):
        raise click.UsageError("give either MODEL or --snapshot FILE")
    if snapshot:
        for answer in answers(snapshot.read()):
            click.echo(compact(answer) if as_json else show.answer(answer))
        return
    request = placement_request(model=model, required_nodes=require, excluded_nodes=exclude, **asked)
    here = cluster.open_cluster()
    found = cluster.preview(here, request) if dry_run else cluster.place(here, request)
    click.echo(compact(found) if as_json else show.rings(found))


def placement_request(**asked: Any) -> PlacementRequest:
    """Return what is asked of placement.

    Raises:
        InvalidRequestError: a value is not of its form.
    """
    try:
        return PlacementRequest.model_validate(asked)
    except ValueError as error:
        raise InvalidRequestError(f"that cannot be placed: {error}") from error


def compact(document: dict[str, Any]) -> str:
    """Return JSON on one line."""
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"))


def become(*argv: str) -> None:
    """Replace this process by a command."""
    sys.stdout.flush()
    os.execv(argv[0], argv)  # noqa: S606  # no shell is wanted


# Lists: one command each, under `exo-celery` and under `celery -A exo_celery exo`.


@click.group("exo", cls=Commands)
def celery_exo() -> None:
    """Show what exo_celery knows: nodes, models, downloads, instances, jobs, events."""


def listing(name: str, columns: Sequence[str], read: Callable[[cluster.Cluster], Sequence[Any]]) -> None:
    """Add a command that prints a list as a table or as JSON, as the REST route of the same name answers it."""

    @click.command(name, help=f"List the {name}.")
    @click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
    def command(as_json: bool) -> None:
        rows = [plain(row) for row in read(cluster.open_cluster())]
        if as_json:
            click.echo(json.dumps({name: rows}, indent=2, ensure_ascii=False))
        else:
            show.table(columns, rows)

    main.add_command(command)
    celery_exo.add_command(command)


def plain(row: Record | dict[str, Any]) -> dict[str, Any]:
    """Return a record as JSON values; prompts stay out of lists."""
    return row.model_dump(mode="json", exclude={"request"}) if isinstance(row, Record) else row


listing(
    "nodes", ("id", "alive", "ram_available_bytes", "ram_total_bytes", "disk_free_bytes", "backends"), cluster.nodes
)
listing("models", ("id", "storage_bytes", "n_layers", "hidden_size", "context_length"), cluster.models)
listing("downloads", ("node", "model", "status", "downloaded_bytes", "total_bytes", "error"), cluster.downloads)
listing("instances", ("id", "model", "status", "epoch", "ring", "running_jobs", "note", "error"), cluster.instances)
listing("jobs", ("id", "model", "state", "attempt", "finish_reason"), lambda here: cluster.jobs(here)[0])
listing("events", ("at", "kind", "text"), cluster.latest_events)
