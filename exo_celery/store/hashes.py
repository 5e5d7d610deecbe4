"""Records as Redis hashes with plain fields, so that `redis-cli hgetall` reads like the record."""

import json
from collections.abc import Mapping
from functools import cache
from typing import Any, Final, TypeVar

from exo_celery.records.base import Record

JSON_STARTS: Final = ("[", "{")
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
    """Read a record back; fields that the record does not know are left out, '' stands for None but in a text field."""
    is_text = text_fields(cls)
    return cls.model_validate(
        {
            name: json.loads(stored) if stored[:1] in JSON_STARTS and not is_text[name] else stored
            for name, stored in fields.items()
            if name in is_text and (stored or is_text[name])
        }
    )


@cache
def text_fields(cls: type[Record]) -> dict[str, bool]:
    """Return the names of a record's fields, and whether each holds text that is never JSON."""
    return {name: field.annotation is str for name, field in cls.model_fields.items()}
