"""/openapi.json, made from what the views declare, so that it cannot say anything else than they do."""

import inspect
import re
from importlib.metadata import version
from typing import Any, Final

from flask import Flask
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from werkzeug.routing import Rule

from exo_celery.records.base import MODEL_ID_SCHEMA
from web.answers import ErrorAnswer
from web.operation import Operation
from web.urls import CONVERTERS

REF: Final = "#/components/schemas/{model}"
ERRORS: Final = {
    400: "A field is missing, wrong or unknown; `param` names it. Malformed JSON is a 400, too.",
    401: "The API key is missing, unknown, revoked or expired.",
    403: "The guard did not let the request in.",
    404: "It does not exist; the message lists what does.",
    405: "An id in the path is none, so that it reads as another path.",
    409: "The state of things does not allow it now; the message says what stands in the way, with numbers.",
    410: "The job was cancelled while its client waited.",
    413: "The body is too large.",
    415: "The body is not declared as JSON, or as a form where a file is sent.",
    422: "The Idempotency-Key was used for another request.",
    429: "The API key has used up its requests of this minute; Retry-After says when to ask again.",
    500: "The server failed.",
    503: "Not now: Redis, a node or the model is not up yet. Retry-After may say when to ask again.",
    507: "The files of all callers fill their quota.",
}
PARAMETER: Final = re.compile(r"<(?:([^:>]+):)?([^>]+)>")
Declared = list[tuple[Rule, str, Operation, str]]


def document(app: Flask) -> dict[str, Any]:
    """Return the OpenAPI 3.1 description of every declared route."""
    declared = operations(app)
    names, definitions = schemas(declared)
    paths: dict[str, Any] = {}
    for rule, method, operation, summary in declared:
        path = PARAMETER.sub(r"{\2}", rule.rule)
        described = {
            "operationId": rule.endpoint.replace(".", "_"),
            "summary": summary,
            "parameters": path_parameters(rule) + query_parameters(operation),
            "responses": responses(operation, names),
        }
        if sent := operation.body or operation.form:
            kind = "application/json" if operation.body else "multipart/form-data"
            content = {kind: {"schema": names[sent, "validation"]}}
            described["requestBody"] = {"required": True, "content": content}
        paths.setdefault(path, {})[method] = described
    info = {"title": "exo_celery", "version": version("exo_celery")}
    components = {"schemas": definitions, "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}}
    # None is needed by whoever comes straight from the machine itself.
    security: list[dict[str, Any]] = [{}, {"key": []}]
    return {"openapi": "3.1.0", "info": info, "security": security, "paths": paths, "components": components}


def operations(app: Flask) -> Declared:
    """Return the declared routes of an application: rule, method, declaration, summary."""
    found: Declared = []
    for rule in sorted(app.url_map.iter_rules(), key=lambda rule: rule.rule):
        view = app.view_functions[rule.endpoint]
        if operation := getattr(view, "operation", None):
            summary = (inspect.getdoc(view) or "").partition("\n")[0]
            for method in sorted((rule.methods or set()) - {"HEAD", "OPTIONS"}):
                found.append((rule, method.lower(), operation, summary))
    return found


def schemas(declared: Declared) -> tuple[dict[tuple[Any, str], dict[str, Any]], dict[str, Any]]:
    """Return the references by model and direction, and the definitions that they point to."""
    wanted: dict[tuple[Any, str], None] = {(ErrorAnswer, "serialization"): None}
    for _, _, operation, _ in declared:
        if sent := operation.body or operation.form:
            wanted[sent, "validation"] = None
        if is_model(operation.answer):
            wanted[operation.answer, "serialization"] = None
    references, definitions = models_json_schema(list(wanted), ref_template=REF)  # type: ignore[arg-type]
    return references, definitions["$defs"]  # type: ignore[return-value]


def is_model(answer: Any) -> bool:
    """Tell whether an answer is a record; the others are plain text or any object."""
    return isinstance(answer, type) and issubclass(answer, BaseModel)


def path_parameters(rule: Rule) -> list[dict[str, Any]]:
    """Describe the ids in a path."""
    return [
        {"name": name, "in": "path", "required": True, "schema": id_schema(kind)}
        for kind, name in PARAMETER.findall(rule.rule)
    ]


def id_schema(kind: str) -> dict[str, Any]:
    """Return what an id in a path looks like; where any text is taken, the answer tells whether it is one."""
    if kind == "model_id":
        return MODEL_ID_SCHEMA
    return {"type": "string", "pattern": f"^{CONVERTERS[kind].regex}$"} if kind in CONVERTERS else {"type": "string"}


def query_parameters(operation: Operation) -> list[dict[str, Any]]:
    """Describe the fields of a query string."""
    if not operation.query:
        return []
    schema = operation.query.model_json_schema(ref_template=REF)
    known = schema.get("$defs", {})
    required = schema.get("required", [])
    return [
        {"name": name, "in": "query", "required": name in required, "schema": inlined(field, known)}
        for name, field in schema["properties"].items()
    ]


def inlined(schema: Any, known: dict[str, Any]) -> Any:
    """Return a schema with its references replaced by what they mean: queries are flat, it cannot recur."""
    if isinstance(schema, list):
        return [inlined(part, known) for part in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return inlined(known[schema["$ref"].rpartition("/")[2]], known)
    return {name: inlined(part, known) for name, part in schema.items()}


def responses(operation: Operation, names: dict[tuple[Any, str], dict[str, Any]]) -> dict[str, Any]:
    """Describe the answers of a route, every error it may give included."""
    answer = operation.answer
    schema = names[answer, "serialization"] if is_model(answer) else plain(answer)
    content = {operation.media_type: {"schema": schema}}
    if operation.streams:
        content["text/event-stream"] = {"schema": {"type": "string"}}
    good = {"description": "As asked.", "content": content}
    with_body = (400, 413, 415) if operation.body or operation.form else (400,) if operation.query else ()
    error = {"application/json": {"schema": names[ErrorAnswer, "serialization"]}}
    bad = sorted({401, 403, 429, 500, *with_body, *operation.errors})
    return {str(operation.status): good} | {
        str(status): {"description": ERRORS[status], "content": error} for status in bad
    }


def plain(answer: Any) -> dict[str, Any]:
    """Return the schema of an answer that is no record."""
    return {"type": "string"} if answer is str else {"type": "object"}
