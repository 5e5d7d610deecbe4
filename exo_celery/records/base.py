"""What all records share."""

import re
from typing import Annotated, Any, Final, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, WithJsonSchema

UNSUPPORTED: Final = "unsupported_parameter"  # the type of a validation error, and the code that callers read
MODEL_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95}")


def checked_model_id(text: str) -> str:
    """Return a model id that may stand in keys and paths: `org/name`, without `..` and `--`."""
    if not MODEL_ID.fullmatch(text) or ".." in text or "--" in text:
        raise ValueError(
            f"{text[:200]!r} is not a model id: write org/name in letters, digits, '.', '_' and single '-'"
        )
    return text


# The same in the words of JSON Schema, for /openapi.json.
MODEL_ID_SCHEMA: Final = {"type": "string", "pattern": rf"^(?!.*(--|\.\.)){MODEL_ID.pattern}$"}
ModelId = Annotated[str, AfterValidator(checked_model_id), WithJsonSchema(MODEL_ID_SCHEMA)]


class Record(BaseModel):
    """A frozen set of facts: evolve it, never change it."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    def evolve(self, **changes: Any) -> Self:
        """Return a validated copy with these fields changed."""
        return self.model_validate(self.model_dump() | changes)


class Request(BaseModel):
    """What a caller sends: strict types, unknown fields refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
