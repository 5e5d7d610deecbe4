"""Placement of a written-down cluster: one JSON object in, one answer out. Text in, records out; no file is touched."""

import json
from typing import Any

from exo_celery.errors import ExoError, InvalidRequestError
from exo_celery.placement.place import Placement, place
from exo_celery.placement.snapshot_fields import Fields, is_text, readable
from exo_celery.placement.snapshot_question import read_question


def answers(text: str) -> list[dict[str, Any]]:
    """Answer each case of a file: one JSON document, or JSON lines, where each line has its answer in order.

    Never raises for what is in the text: a line that cannot be read is answered with `ok` false and an error that names
    line and field. Empty lines are skipped.
    """
    lines = [(number, line) for number, line in enumerate(text.removeprefix("\ufeff").split("\n"), 1) if line.strip()]
    if is_one_document(lines):
        return [answer("\n".join(line for _, line in lines), lines[0][0])]
    return [answer(line, number) for number, line in lines]


def is_one_document(lines: list[tuple[int, str]]) -> bool:
    """Tell whether several lines are one document: its first line is not JSON by itself, but all of them together are.

    A document that is broken somewhere still starts with a lone bracket.
    """
    if len(lines) < 2:
        return False
    if lines[0][1].strip() in ("{", "["):
        return True
    for part, is_json in ((lines[0][1], False), ("\n".join(line for _, line in lines), True)):
        try:
            json.loads(part)
        except (ValueError, RecursionError):
            if is_json:
                return False
        else:
            return is_json
    return False


def answer(line: str, number: int = 1) -> dict[str, Any]:
    """Answer one case: `{"nodes": …}`, or a line of a case file that has it under `input`."""
    case: dict[str, Any] = {}
    try:
        fields = parse(line)
        if is_text(name := fields.values.get("case")):
            case = {"case": name}
        return case | answer_of(place(read_question(fields)))
    except ExoError as error:
        return case | refusal_of(error, number)


def parse(line: str) -> Fields:
    """Read a JSON object, keys that occur twice refused.

    Raises:
        InvalidRequestError: it is no JSON, or no object.
    """
    try:
        value = json.loads(line, object_pairs_hook=unique_keys)
    except RecursionError as error:
        raise InvalidRequestError("JSON is nested too deeply: write the case as README shows") from error
    except ValueError as error:
        raise InvalidRequestError(f"not valid JSON ({error}): write one object per line") from error
    if not isinstance(value, dict):
        raise InvalidRequestError(f"found {type(value).__name__}: write a JSON object")
    if "nodes" not in value and isinstance(inner := value.get("input"), dict):
        return Fields(inner, "input.")
    return Fields(value)


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build an object, unless a key occurs twice: one of the two values would be lost."""
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise InvalidRequestError(
            f"the key {readable(twice)} occurs twice in one object: keep one of them", param=readable(twice)
        )
    return found


def answer_of(placement: Placement) -> dict[str, Any]:
    """Render a placement."""
    return {
        "ok": True,
        "nodes": list(placement.nodes),
        "layer_counts": placement.layer_counts,
        "sharding": placement.sharding.capitalize(),
        "download_score": placement.download_score,
        "error": None,
        "why": placement.why,
        "exact": placement.exact,
        "reserved_bytes": placement.reserved_bytes,
        "decision": placement.decision,
    }


def refusal_of(error: ExoError, number: int) -> dict[str, Any]:
    """Render a refusal, or what is wrong with the case; then line and field are named."""
    found: dict[str, Any] = {"code": error.code, "message": error.message}
    if isinstance(error, InvalidRequestError):
        field = f", field {error.param}" if error.param else ""
        found = {
            "code": error.code,
            "message": f"line {number}{field}: {error.message}",
            "line": number,
            "field": error.param,
        }
    return {
        "ok": False,
        "nodes": None,
        "layer_counts": None,
        "sharding": None,
        "download_score": None,
        "error": found,
        "why": found["message"],
        "exact": error.code != "no_ring_within_bound",
        "reserved_bytes": None,
        "decision": {"rule": error.code, **error.numbers},
    }
