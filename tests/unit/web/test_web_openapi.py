"""/openapi.json says what the routes do."""

import json
import re
from typing import Any

from flask.testing import FlaskClient


def document(client: FlaskClient) -> dict[str, Any]:
    body: dict[str, Any] = client.get("/openapi.json").json
    return body


def test_every_rest_route_is_described(client: FlaskClient) -> None:
    described = {(path, method) for path, item in document(client)["paths"].items() for method in item}
    routes = {
        (re.sub(r"<(?:[^:>]+:)?([^>]+)>", r"{\1}", rule.rule), method.lower())
        for rule in client.application.url_map.iter_rules()
        for method in rule.methods - {"HEAD", "OPTIONS"}
        if rule.rule.startswith(("/api", "/v1"))
    }
    assert len(routes) > 15
    assert routes <= described


def test_every_reference_points_somewhere(client: FlaskClient) -> None:
    described = document(client)
    references = set(re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(described)))
    assert "ErrorAnswer" in references
    assert references <= set(described["components"]["schemas"])


def test_bodies_document_their_refusals(client: FlaskClient) -> None:
    for path, item in document(client)["paths"].items():
        for operation in item.values():
            assert operation["summary"].endswith("."), path
            if "requestBody" in operation:
                assert {"400", "413", "415"} <= set(operation["responses"]), path


def test_supported_values_are_shown(client: FlaskClient) -> None:
    chat = document(client)["components"]["schemas"]["ChatRequest"]
    assert chat["properties"]["n"]["enum"] == [1, None]
    assert chat["additionalProperties"] is False
    assert set(chat["required"]) == {"model", "messages"}


def test_operation_ids_are_unique(client: FlaskClient) -> None:
    ids = [one["operationId"] for item in document(client)["paths"].values() for one in item.values()]
    assert len(ids) == len(set(ids))
