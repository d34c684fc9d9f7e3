"""One cluster for a module of scenarios, made whole again after each."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from magnetar.testing.admin_calls import call, keep_everything
from magnetar.testing.chaos import ENVIRONMENT
from magnetar.testing.cluster import Cluster, ClusterPlan
from tests.integration.cluster.workbench import Scenario


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """3 ZooKeepers, 4 bookies, 2 brokers; E3 Qw2 Qa2, and E3 Qw2 Qa1 in the namespace `public/fragile`."""
    plan = ClusterPlan(bookies=4, brokers=2, environment=ENVIRONMENT)
    with Cluster(tmp_path_factory.mktemp("cluster"), plan) as cluster:
        web = cluster.web_url()
        call(web, "PUT", "/namespaces/public/exact", {})
        call(web, "PUT", "/namespaces/public/fragile", {})
        call(
            web,
            "POST",
            "/namespaces/public/fragile/persistence",
            {"bookkeeperEnsemble": 3, "bookkeeperWriteQuorum": 2, "bookkeeperAckQuorum": 1},
        )
        for namespace in ("public/exact", "public/fragile"):
            call(web, "POST", f"/namespaces/{namespace}/deduplication", True)
            keep_everything(web, namespace)
        yield cluster


@pytest.fixture
def cluster(shared: Cluster) -> Iterator[Cluster]:
    """The shared one; whatever a test has broken is repaired behind it."""
    yield shared
    shared.mend_all()
    for node in shared.nodes:
        if node.alive():
            node.resume()
    shared.start([node for node in shared.keepers if not node.alive()])
    shared.start([node for node in shared.roles if not node.alive()])


@pytest.fixture
def scenario(cluster: Cluster, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Scenario]:
    """A topic of the test's own, under load."""
    name = re.sub("[^a-z0-9]+", "-", request.node.name.removeprefix("test_"))[-60:].strip("-")
    with Scenario.start(cluster, tmp_path, name) as scenario:
        yield scenario
