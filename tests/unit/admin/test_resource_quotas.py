"""What bundles are expected to need."""

from __future__ import annotations

from tests.unit.admin.conftest import Platform

BASE = "/admin/v2/resource-quotas"
OWN = f"{BASE}/public/default/0x00000000_0x40000000"


async def test_a_bundle_has_the_default_until_something_is_said_of_it(platform: Platform) -> None:
    http = platform.http
    assert (await http.get(BASE)).json()["msgRateIn"] == 40.0
    assert (await http.post(BASE, json={"msgRateIn": "7", "memory": 1})).status_code == 204
    assert (await http.get(OWN)).json()["msgRateIn"] == 7.0
    assert (await http.post(OWN, json={"msgRateIn": 9, "dynamic": False})).status_code == 204
    assert (await http.get(OWN)).json()["dynamic"] is False
    assert (await http.get(OWN.replace("0x00000000_0x40000000", "0x40000000_0x80000000"))).json()[
        "msgRateIn"
    ] == 7.0
    assert (await http.delete(OWN)).status_code == 204
    assert (await http.get(OWN)).json()["msgRateIn"] == 7.0
    assert (await http.get(f"{BASE}/public/default/0x0_0x1")).status_code == 412
    assert (await http.post(BASE)).status_code == 400
