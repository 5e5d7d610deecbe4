"""Fields of untrusted JSON, read one by one, so that an error names the field, what was found and what is right."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final

from exo_celery.errors import InvalidRequestError

MOST_BYTES: Final = 10**18  # an exabyte; more is a slip
MOST_COUNT: Final = 10**6
MOST_CHARACTERS: Final = 200
MISSING: Final = object()
TEXT: Final = f"a text of 1 to {MOST_CHARACTERS} characters"


def wrong(path: str, asked: str, found: Any) -> InvalidRequestError:
    """Return the error of a field."""
    shown = repr(found)
    return InvalidRequestError(f"must be {asked}, found {shown[:80]}", param=path)


def is_text(value: Any) -> bool:
    """Tell whether a value is a text that can be written down: JSON also lets halves of a surrogate pair through."""
    return (
        isinstance(value, str)
        and 0 < len(value) <= MOST_CHARACTERS
        and not any("\ud800" <= letter <= "\udfff" for letter in value)
    )


def readable(name: str) -> str:
    """Return a key as it can stand in a message."""
    return name if is_text(name) and name.isprintable() else repr(name)[:MOST_CHARACTERS]


@dataclass(frozen=True, slots=True)
class Fields:
    """One JSON object and where it stands."""

    values: dict[str, Any]
    path: str = ""

    def get(self, name: str, kind: type, asked: str, default: Any = MISSING) -> Any:
        """Return a field of a type; a missing or null one is the default, if there is one."""
        value = self.values.get(name)
        if value is None and default is not MISSING:
            return default
        if name not in self.values:
            raise InvalidRequestError(f"is missing: it must be {asked}", param=self.path + name)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise wrong(self.path + name, asked, value)
        return value

    def number(self, name: str, default: Any = MISSING, *, least: int = 0, most: int = MOST_BYTES) -> Any:
        """Return a whole number between two bounds."""
        asked = f"a whole number from {least} to {most}"
        try:
            value = self.get(name, int, asked, default)
        except ValueError as error:  # repr of an integer of thousands of digits
            raise InvalidRequestError(f"must be {asked}, found a larger one", param=self.path + name) from error
        if name in self.values and value is not None and not least <= value <= most:
            raise wrong(self.path + name, asked, value)
        return value

    def speed(self, name: str) -> float | None:
        """Return bytes per second, or None where they were never measured."""
        value = self.values.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= MOST_BYTES:
            raise wrong(self.path + name, f"bytes per second above 0, at most {MOST_BYTES}", value)
        return float(value)

    def flag(self, name: str) -> bool:
        """Return true or false; missing is false."""
        return bool(self.get(name, bool, "true or false", False))

    def text(self, name: str, default: Any = MISSING) -> str:
        """Return a text that is not empty."""
        value = self.get(name, str, TEXT, default)
        if not is_text(value):
            raise wrong(self.path + name, TEXT, value)
        return str(value)

    def one_of(self, name: str, allowed: Collection[str], default: str) -> Any:
        """Return one of a few words."""
        asked = f"one of {', '.join(allowed)}"
        value = self.get(name, str, asked, default)
        if value not in allowed:
            raise wrong(self.path + name, asked, value)
        return value

    def texts(self, name: str, default: tuple[str, ...] = ()) -> tuple[str, ...]:
        """Return a list of texts."""
        values = self.get(name, list, "a list of texts", list(default))
        for at, value in enumerate(values):
            if not is_text(value):
                raise wrong(f"{self.path}{name}[{at}]", TEXT, value)
        return tuple(values)

    def object(self, name: str, default: Any = MISSING) -> "Fields":
        """Return an object."""
        return Fields(self.get(name, dict, "an object", default), f"{self.path}{readable(name)}.")

    def objects(self, name: str) -> list["Fields"]:
        """Return a list of objects."""
        values = self.get(name, list, "a list of objects")
        path = self.path + readable(name)
        for at, value in enumerate(values):
            if not isinstance(value, dict):
                raise wrong(f"{path}[{at}]", "an object", value)
        return [Fields(value, f"{path}[{at}].") for at, value in enumerate(values)]
