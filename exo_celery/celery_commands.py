"""`celery -A exo_celery exo …`: Celery imports this at every start, so what lies behind it is imported when used."""

import importlib

import click


class LaterGroup(click.Group):
    """A group whose commands are those of `exo_celery.cli`, found there when somebody asks."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands."""
        return commands().list_commands(ctx)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command by its name."""
        return commands().get_command(ctx, cmd_name)

    def invoke(self, ctx: click.Context) -> object:
        """Run a command; errors are sentences and exit codes there."""
        return commands().invoke(ctx)


def commands() -> click.Group:
    """Return the group that holds the commands."""
    found = importlib.import_module("exo_celery.cli").celery_exo
    assert isinstance(found, click.Group)
    return found


exo = LaterGroup("exo", help="Show what exo_celery knows: nodes, models, downloads, instances, jobs, events.")
