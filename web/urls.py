"""Ids in paths: what cannot be one does not match, so it never reaches a key or a folder name."""

from typing import Final

from flask import Flask
from werkzeug.routing import BaseConverter, ValidationError

from exo_celery.records.base import MODEL_ID, checked_model_id
from exo_celery.settings import NODE_ID


class ModelIdConverter(BaseConverter):
    """`<model_id:model>`: org/name, its slash written plainly or as %2F."""

    regex = MODEL_ID.pattern
    part_isolating = False

    def to_python(self, value: str) -> str:
        """Check what the pattern alone cannot."""
        try:
            return checked_model_id(value)
        except ValueError as error:
            raise ValidationError from error


class NodeIdConverter(BaseConverter):
    """`<node_id:node>`."""

    regex = NODE_ID.pattern


class RecordIdConverter(BaseConverter):
    """`<record_id:job_id>`: ids that we make ourselves."""

    regex = r"[A-Za-z0-9_-]{1,64}"


CONVERTERS: Final = {
    "model_id": ModelIdConverter,
    "node_id": NodeIdConverter,
    "record_id": RecordIdConverter,
}


def install(app: Flask) -> None:
    """Teach the application's routes our ids."""
    app.url_map.converters.update(CONVERTERS)
