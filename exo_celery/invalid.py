"""What is wrong with a request, from pydantic's findings to plain words: which field, what it must be, what came."""

import json
from typing import Any, Final

from pydantic import ValidationError
from pydantic_core import ErrorDetails, from_json

from exo_celery.errors import InvalidRequestError
from exo_celery.records.base import UNSUPPORTED

SHOWN_CHARACTERS: Final = 60
A_WHOLE_NUMBER: Final = "must be a whole number"
A_NUMBER: Final = "must be a number"
AN_OBJECT: Final = "must be an object"
A_LIST: Final = "must be a list"
YES_OR_NO: Final = "must be true or false"
# By pydantic's type of finding; the names in braces are of its context.
WORDS: Final = {
    "bool_parsing": YES_OR_NO,
    "bool_type": YES_OR_NO,
    "dict_type": AN_OBJECT,
    "enum": "must be {expected}",
    "finite_number": "must be a finite number",
    "float_parsing": A_NUMBER,
    "float_type": A_NUMBER,
    "greater_than": "must be more than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "int_from_float": A_WHOLE_NUMBER,
    "int_parsing": A_WHOLE_NUMBER,
    "int_parsing_size": "must be a smaller number",
    "int_type": A_WHOLE_NUMBER,
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "list_type": A_LIST,
    "literal_error": "must be {expected}",
    "model_attributes_type": AN_OBJECT,
    "model_type": AN_OBJECT,
    "none_required": "must be null",
    "string_pattern_mismatch": "must match the pattern {pattern}",
    "string_too_long": "must have at most {max_length} characters",
    "string_too_short": "must have {min_length} characters or more",
    "string_type": "must be text",
    "string_unicode": "must be text in UTF-8",
    "too_long": "must have at most {max_length} entries",
    "too_short": "must have {min_length} entries or more",
    "tuple_type": A_LIST,
}
# Nothing came, or what came is in the field's name.
WORDS_ALONE: Final = {
    "extra_forbidden": "is not known here: leave it out",
    "missing": "is missing: send it",
}
ANY_OTHER: Final = "is not what belongs here: /openapi.json describes it"


def invalid(error: ValidationError, sent: Any) -> InvalidRequestError:
    """Return the first thing that is wrong with what was sent: JSON as bytes, or values by name."""
    return finding(error.errors(include_url=False)[0], sent)


def finding(detail: ErrorDetails, sent: Any, whole: str = "the body") -> InvalidRequestError:
    """Return one of pydantic's findings as an error of ours, its field as `param`; `whole` is what was sent."""
    if detail["type"] == "json_invalid":
        return InvalidRequestError(f"{whole} is not valid JSON: {detail['ctx']['error']}")
    param = field_path(detail, from_json(sent) if isinstance(sent, bytes) else sent)
    error = InvalidRequestError(told(detail, param, whole), param=param)
    if detail["type"] == UNSUPPORTED:
        error.code = UNSUPPORTED
    return error


def told(detail: ErrorDetails, param: str | None, whole: str) -> str:
    """Return the sentence: the field, what it must be, what came."""
    name = param or whole
    if param is None and detail["type"] == "value_error":
        return sentence(detail)
    if detail["type"] in WORDS_ALONE:
        return f"{name}: {WORDS_ALONE[detail['type']]}"
    said = sentence(detail)
    shows_it = isinstance(detail["input"], str) and detail["input"][:SHOWN_CHARACTERS] in said
    return f"{name}: {said}" + ("" if shows_it else f" (got {shown(detail['input'])})")


def sentence(detail: ErrorDetails) -> str:
    """Return what a value must be: our own words for pydantic's rules, the words of our own rules as they are."""
    if detail["type"] == "value_error":
        return str(detail["ctx"]["error"])
    if detail["type"] == UNSUPPORTED:
        return detail["msg"]
    limits = {name: int(limit) if is_whole(limit) else limit for name, limit in detail.get("ctx", {}).items()}
    return WORDS.get(detail["type"], ANY_OTHER).format(**limits)


def is_whole(limit: Any) -> bool:
    """Tell whether a limit is a float that people write without a point."""
    return isinstance(limit, float) and limit.is_integer()


def shown(value: Any) -> str:
    """Return the beginning of what came, as JSON."""
    text = json.dumps(value, ensure_ascii=False, default=lambda _: "a file")
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"


def field_path(detail: ErrorDetails, body: Any) -> str | None:
    """Return where a finding lies as callers write it (`messages[0].content`), or None for the whole body.

    Pydantic's location also names branches of unions, which the caller never wrote: it is followed through the body.
    """
    path = ""
    missing = detail["type"] == "missing"
    for part in detail["loc"]:
        if isinstance(part, int) and isinstance(body, list | tuple):
            path += f"[{part}]"
            body = body[part] if part < len(body) else None
        elif isinstance(part, str) and isinstance(body, dict) and (part in body or missing):
            path += f".{part}" if path else part
            body = body.get(part)
    return path or None
