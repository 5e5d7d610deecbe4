"""Records as Redis hashes with plain fields, so that `redis-cli hgetall` reads like the record."""

import json
from collections.abc import Mapping
from typing import Any, TypeVar

from exo_celery.records.base import Record

R = TypeVar("R", bound=Record)


def encode(record: Record, *, without: frozenset[str] = frozenset()) -> dict[str, str]:
    """Return the record's fields as text: numbers and words bare, lists and objects as JSON, None as ''."""
    return {name: text(value) for name, value in record.model_dump(mode="json").items() if name not in without}


def text(value: Any) -> str:
    """Return one value as it stands in a hash."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, list | dict):
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return str(value)


def decode(cls: type[R], fields: Mapping[str, str]) -> R:
    """Read a record back; fields that the record does not know are left out."""
    return cls.model_validate({n: value(cls, n, t) for n, t in fields.items() if keep(cls, n, t)})


def keep(cls: type[Record], name: str, stored: str) -> bool:
    """Tell whether a stored field says something: '' stands for None except in a text field."""
    field = cls.model_fields.get(name)
    return field is not None and (stored != "" or field.annotation is str)


def value(cls: type[Record], name: str, stored: str) -> Any:
    """Return a stored text as the field's raw value, for pydantic to check."""
    if cls.model_fields[name].annotation is not str and stored[:1] in ("[", "{"):
        return json.loads(stored)
    return stored
