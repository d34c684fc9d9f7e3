"""Schemas over HTTP."""

from __future__ import annotations

import json

import httpx
import pytest

from tests.unit.admin.conftest import Platform

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture
def http(shared: Platform) -> httpx.AsyncClient:
    return shared.http


@pytest.fixture
def base(space: str) -> str:
    return f"/admin/v2/schemas/{space}/t"


FIRST = '{"type":"record","name":"R","fields":[{"name":"a","type":"string"}]}'
SECOND = (
    '{"type":"record","name":"R","fields":[{"name":"a","type":"string"},'
    '{"name":"b","type":["null","int"],"default":null}]}'
)
OTHER = '{"type":"record","name":"R","fields":[{"name":"c","type":"int"}]}'


async def test_versions_come_and_go(http: httpx.AsyncClient, base: str) -> None:
    assert (await http.get(f"{base}/schema")).status_code == 404
    first = {"type": "AVRO", "schema": FIRST, "properties": {"p": "q"}}
    assert (await http.post(f"{base}/schema", json=first)).json() == {"version": {"version": 0}}
    assert (await http.post(f"{base}/schema", json=first)).json() == {"version": {"version": 0}}
    second = {"type": "AVRO", "schema": SECOND}
    assert (await http.post(f"{base}/version", json=second)).json() == {"version": -1}
    assert (await http.post(f"{base}/compatibility", json=second)).json() == {
        "compatibility": True,
        "schemaCompatibilityStrategy": "FULL",
    }
    assert (await http.post(f"{base}/schema", json=second)).json() == {"version": {"version": 1}}
    told = (await http.get(f"{base}/schema")).json()
    assert (told["version"], told["type"], told["data"], told["properties"]) == (1, "AVRO", SECOND, {})
    told = (await http.get(f"{base}/schema/0")).json()
    assert (told["version"], told["data"], told["properties"]) == (0, FIRST, {"p": "q"})
    assert [each["version"] for each in (await http.get(f"{base}/schemas")).json()["getSchemaResponses"]] == [
        0,
        1,
    ]
    kept = [{"ledgerId": -1, "entryId": -1, "version": version} for version in (0, 1)]
    assert (await http.get(f"{base}/metadata")).json() == {"info": kept[1], "index": kept}
    assert (await http.post(f"{base}/version", json=first)).json() == {"version": 0}
    other = {"type": "AVRO", "schema": OTHER}
    assert (await http.post(f"{base}/compatibility", json=other)).json()["compatibility"] is False
    assert (await http.post(f"{base}/schema", json=other)).status_code == 409
    assert (await http.delete(f"{base}/schema")).status_code == 200
    for path in ("schema", "schema/0", "schemas", "schema/9", "schema/-1"):
        assert (await http.get(f"{base}/{path}")).status_code == 404


async def test_rest_may_register_where_producers_may_not(
    http: httpx.AsyncClient, base: str, space: str
) -> None:
    await http.post(f"/admin/v2/namespaces/{space}/isAllowAutoUpdateSchema", json=False)
    await http.post(f"{base}/schema", json={"type": "AVRO", "schema": FIRST})
    answer = await http.post(f"{base}/schema", json={"type": "AVRO", "schema": SECOND})
    assert answer.json() == {"version": {"version": 1}}


async def test_key_and_value(http: httpx.AsyncClient, base: str) -> None:
    text = json.dumps({"key": json.loads(FIRST), "value": ""})
    answer = await http.post(f"{base}/schema", json={"type": "KEY_VALUE", "schema": text})
    assert answer.status_code == 200, answer.text
    told = (await http.get(f"{base}/schema")).json()
    assert told["type"] == "KEY_VALUE"
    assert json.loads(told["data"]) == {"key": json.loads(FIRST), "value": ""}


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (None, 400),
        ({}, 400),
        ({"type": "SPANISH", "schema": ""}, 422),
        ({"type": "AVRO", "schema": "{"}, 422),
        ({"type": "AVRO", "schema": "{}"}, 422),
        ({"type": "KEY_VALUE", "schema": "1"}, 422),
        ({"type": 7}, 422),
        ({"type": "AVRO", "schema": {"type": "record"}}, 400),
    ],
)
async def test_what_is_no_schema(http: httpx.AsyncClient, base: str, body: object, status: int) -> None:
    answer = await http.post(f"{base}/schema", json=body)
    assert answer.status_code == status, answer.text
    assert (await http.get(f"{base}/schema")).status_code == 404


async def test_booleans_have_the_name_that_java_reads(http: httpx.AsyncClient) -> None:
    base = "/admin/v2/schemas/public/default/truth/schema"
    for name in ("BOOLEAN", "BOOL"):
        assert (await http.post(base, json={"type": name, "schema": "", "properties": {}})).status_code == 200
    assert (await http.get(base)).json()["type"] == "BOOLEAN"
    assert (await http.get(base)).json()["version"] == 0
