"""May a batch begin? Every line needs a name of its own and a known model, else nothing is run, told by line numbers.

What else may be wrong with a request is its own line's affair: it ends as a refusal in the error file.
"""

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from exo_celery.errors import InvalidRequestError
from exo_celery.openai.lines import Line, read, refused
from exo_celery.records.batch import BatchError

MAX_LINES: Final = 50_000
MAX_ERRORS: Final = 100  # who has more to mend sees enough
LINES_PER_SIGN: Final = 500


@dataclass
class Findings:
    """What validation has seen: lines of each model, and errors."""

    lines: dict[str, int] = field(default_factory=dict)
    errors: list[BatchError] = field(default_factory=list)


def validate(
    lines: Iterable[Line], endpoint: str, known: set[str], sign_of_life: Callable[[], None] = lambda: None
) -> Findings:
    """Check all lines, one at a time; `known` are the models that have a card.

    Stops at a hundred errors. Of custom ids it keeps a digest, so fifty thousand of them take a few MB.
    """
    found = Findings()
    seen: dict[bytes, int] = {}
    for line in lines:
        if line.number % LINES_PER_SIGN == 0:
            sign_of_life()
        if not line.text:
            continue
        try:
            check(line, endpoint, known, seen, found)
        except InvalidRequestError as error:
            told = BatchError(code=error.code, message=error.message, param=error.param, line=line.number)
            found.errors.append(told)
        if len(found.errors) == MAX_ERRORS:
            return found
        if sum(found.lines.values()) > MAX_LINES:
            message = f"the file has more than {MAX_LINES} requests: split it into several batches"
            return Findings(errors=[BatchError(code="too_many_requests", message=message, line=line.number)])
    if not found.lines and not found.errors:
        found.errors.append(BatchError(code="empty_file", message="the file has no requests: put one on each line"))
    return found


def check(line: Line, endpoint: str, known: set[str], seen: dict[bytes, int], found: Findings) -> None:
    """Count a line, or refuse it.

    Raises:
        InvalidRequestError: the line cannot be read, its custom_id came before, or nobody knows its model.
    """
    asked = read(line, endpoint)
    digest = hashlib.blake2b(asked.custom_id.encode(), digest_size=16).digest()
    first = seen.setdefault(digest, line.number)
    if first != line.number:
        message = f"custom_id: {asked.custom_id[:80]!r} is that of line {first} already; each must be unique"
        raise refused("duplicate_custom_id", message, "custom_id")
    model = asked.body.model
    if model not in known:
        listed = ", ".join(sorted(known)[:10]) or "none yet"
        raise refused("model_not_found", f"model {model[:200]!r} is not known here; known: {listed}", "body.model")
    found.lines[model] = found.lines.get(model, 0) + 1
