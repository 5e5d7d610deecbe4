"""`exo-celery keys`: make, list and revoke API keys. It talks to Redis itself, so nobody can lock themselves out."""

import json
import re
from typing import Final

import click

from exo_celery import access, cluster
from exo_celery.access import Terms
from exo_celery.local import show
from exo_celery.node import trust, webhook
from exo_celery.records.access import Scope
from exo_celery.records.base import checked_model_id

COLUMNS: Final = ("id", "name", "scopes", "models", "rate_per_minute", "expires_at", "last_used_at", "revoked_at")
UNIT_SECONDS: Final = {"m": 60, "h": 3600, "d": 86_400}


class Duration(click.ParamType[float]):
    """A span of time as people write it: 90m, 12h, 30d; converted to seconds."""

    name = "duration"

    def convert(self, value: str | float, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Read a span of time."""
        found = re.fullmatch(r"([1-9][0-9]{0,4})([mhd])", str(value))
        if not found:
            self.fail(f"{value!r} is no span of time: write for example 90m, 12h or 30d", param, ctx)
        return float(int(found[1]) * UNIT_SECONDS[found[2]])


class Model(click.ParamType[str]):
    """A model id."""

    name = "model"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Check a model id."""
        try:
            return checked_model_id(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


@click.group()
def keys() -> None:
    """Make, list and revoke API keys, for whoever does not work on the machine that runs the web."""


@keys.command()
@click.option("--name", required=True, help="Whose it is, or what for.")
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    required=True,
    type=click.Choice([str(scope) for scope in Scope]),
    help="infer: answers of /v1; submit: jobs, files, batches; admin: everything. May be repeated.",
)
@click.option("--model", "models", multiple=True, type=Model(), help="Only this model; may be repeated.")
@click.option("--expires", type=Duration(), help="For how long it is good: 90m, 12h, 30d.")
@click.option("--rate", default=0, type=click.IntRange(min=0), help="Requests a minute; 0 sets no limit.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def create(
    name: str, scopes: tuple[str, ...], models: tuple[str, ...], expires: float | None, rate: int, as_json: bool
) -> None:
    """Make a key and print it, once and never again."""
    terms = Terms(name, tuple(Scope(scope) for scope in scopes), models, expires or 0.0, rate)
    key, secret = access.create_key(cluster.open_cluster(), terms)
    if as_json:
        click.echo(json.dumps(key.model_dump(mode="json") | {"key": secret}, indent=2))
        return
    click.echo(f"{key.id} ({key.name}) is for {access.names(key.scopes)}; this is shown only now:", err=True)
    click.echo(secret)


@keys.command("list")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def list_keys(as_json: bool) -> None:
    """List the keys, without what they are."""
    found = [key.model_dump(mode="json") for key in access.list_keys(cluster.open_cluster())]
    if as_json:
        click.echo(json.dumps({"keys": found}, indent=2, ensure_ascii=False))
    else:
        show.table(COLUMNS, found)


@keys.command()
@click.argument("named", metavar="ID_OR_NAME")
def revoke(named: str) -> None:
    """Refuse a key from now on; its jobs go on."""
    for key in access.revoke_key(cluster.open_cluster(), named):
        click.echo(f"{key.id} ({key.name}) is revoked")


@keys.command("webhook")
def webhook_key() -> None:
    """Print the key by which a receiver checks the signatures of webhooks."""
    here = cluster.open_cluster()
    secret = trust.cluster_secret(here.settings, here.redis)
    click.echo(webhook.shown(trust.purpose_key(secret, "webhook")))
