"""What a running platform tells of its settings."""

from __future__ import annotations

from magnetar.cli.settings.model import build
from magnetar.cli.settings.runtime_view import told


def test_settings_are_told_under_both_names_where_they_are_the_same() -> None:
    view = told(build({"cluster": "c", "port": 7000, "functions": False, "data": "/somewhere"}))
    assert view["cluster"] == view["clusterName"] == view["broker.cluster"] == "c"
    assert view["port"] == view["brokerServicePort"] == "7000"
    assert view["functionsWorkerEnabled"] == "false"
    assert view["metadataStoreUrl"] == view["configurationMetadataStoreUrl"] == "rocksdb:/somewhere/metadata"
    assert "managedLedgerCacheSizeMB" not in view, "its unit is not ours"
    assert all(isinstance(value, str) for value in view.values())
