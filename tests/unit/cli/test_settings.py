"""Settings from a file, variables and options; and errors that name file and key."""

from __future__ import annotations

from pathlib import Path

import pytest

from magnetar.cli.errors import SettingsError
from magnetar.cli.settings.loading import load_settings, section_fields
from magnetar.cli.settings.model import PlatformSettings
from magnetar.cli.settings.pulsar_keys import TRANSLATIONS
from magnetar.cli.settings.reference import reference

ROOT = Path(__file__).resolve().parents[3]


def written(tmp_path: Path, text: str, name: str = "settings.yaml") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def test_nothing_said_means_pulsars_ports_on_loopback() -> None:
    settings = load_settings(None, {}, {})
    assert (settings.host, settings.port, settings.web_port) == ("127.0.0.1", 6650, 8080)
    assert settings.bookie.directory == Path("data/bookie")


def test_options_win_over_variables_and_variables_over_the_file(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        "port: 1\nweb_port: 1\nhost: 127.0.0.3\nbroker:\n  max_message_bytes: 2048\n  max_connections: 9\n",
    )
    variables = {"MAGNETAR_PORT": "2", "MAGNETAR_WEB_PORT": "2", "MAGNETAR_BROKER__MAX_CONNECTIONS": "7"}
    settings = load_settings(file, variables, {"port": 3, "cluster": None})
    assert (settings.port, settings.web_port, settings.host) == (3, 2, "127.0.0.3")
    assert (settings.broker.max_message_bytes, settings.broker.max_connections) == (2048, 7)


def test_directories_and_names_follow_unless_they_are_set(tmp_path: Path) -> None:
    settings = load_settings(None, {}, {"data": tmp_path, "cluster": "east"})
    assert settings.bookie.directory == tmp_path / "bookie"
    assert settings.worker.data_dir == tmp_path / "worker"
    assert settings.broker.cluster == settings.policies.cluster == settings.worker.cluster == "east"
    file = written(tmp_path, "bookie:\n  directory: /disk2\n")
    assert load_settings(file, {}, {"data": tmp_path}).bookie.directory == Path("/disk2")


def test_variables_of_other_programs_are_left_alone() -> None:
    others = {"MAGNETAR_ADMIN_URL": "http://x", "MAGNETAR_CRASH_POINT": "p", "MAGNETAR_SEED": "1"}
    assert load_settings(None, others, {}) == load_settings(None, {}, {})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("port: soon\n", r"settings.yaml: port: .*integer.*'soon'"),
        ("port: 70000\n", r"settings.yaml: port: .*65535.*70000"),
        ("bookie:\n  flush_interval_s: often\n", r"settings.yaml: bookie.flush_interval_s: .*'often'"),
        (
            "broker:\n  max_mesage_bytes: 3\n",
            r"broker.max_mesage_bytes: .*did you mean broker.max_message_bytes",
        ),
        ("prot: 1\n", r"prot: there is no such setting; did you mean port\?"),
        ("broker: 3\n", "broker: a section of settings, not 3"),
        ("port:\n  x: 1\n", "port: a single value, not a section"),
        ("worker:\n  scheduling:\n    failed_after: x\n", "worker.scheduling.failed_after: .*'x'"),
        ("log_level: loud\n", "log_level: .*'loud'"),
        ("- 1\n", "expected `key: value` lines, found list"),
        ("a: [\n", "not YAML"),
    ],
)
def test_a_wrong_setting_is_named_with_its_file(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        load_settings(written(tmp_path, text), {}, {})


def test_a_wrong_variable_or_option_is_named() -> None:
    with pytest.raises(SettingsError, match=r"variable MAGNETAR_PORT: port: .*'many'"):
        load_settings(None, {"MAGNETAR_PORT": "many"}, {})
    with pytest.raises(SettingsError, match=r"variable MAGNETAR_BROKER__NOPE: broker.nope: there is no such"):
        load_settings(None, {"MAGNETAR_BROKER__NOPE": "1"}, {})
    with pytest.raises(SettingsError, match=r"option --web-port: web_port: .*-1"):
        load_settings(None, {}, {"web_port": -1})


def test_a_file_that_is_not_there_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"nowhere.yaml: cannot be read"):
        load_settings(tmp_path / "nowhere.yaml", {}, {})


def test_an_empty_file_changes_nothing(tmp_path: Path) -> None:
    assert load_settings(written(tmp_path, "# nothing\n"), {}, {}) == load_settings(None, {}, {})


# Pulsar's files.


def test_pulsars_own_keys_are_understood(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        """# broker.conf
clusterName=east
zookeeperServers=zk1:2181,zk2:2181
brokerServicePort=16650
advertisedAddress=
managedLedgerDefaultEnsembleSize=3
managedLedgerCacheSizeMB=10
brokerDeduplicationEnabled=true
defaultRetentionTimeInMinutes=90
defaultRetentionSizeInMB=-1
maxMessagePublishBufferSizeInMB=64
activeConsumerFailoverDelayTimeMillis=250
journalDirectories=/fast/one,/fast/two
ledgerDirectories=/disks/a, /disks/b
someKeyOfAnotherWorld = 17
""",
        "broker.conf",
    )
    settings = load_settings(file, {}, {})
    assert settings.cluster == settings.broker.cluster == "east"
    assert settings.metadata_store == "zk:zk1:2181,zk2:2181"
    assert settings.port == 16650
    assert settings.entry_cache_bytes == 10 * 1024 * 1024
    assert settings.policies.ensemble_size == 3
    assert settings.policies.deduplication_enabled
    assert settings.policies.retention_time_s == 90 * 60
    assert settings.policies.retention_size_bytes == -1
    assert settings.broker.max_pending_publish_bytes == 64 * 1024 * 1024
    assert settings.bookie.journal_directories == (Path("/fast/one"), Path("/fast/two"))
    assert settings.bookie.ledger_directories == (Path("/disks/a"), Path("/disks/b"))
    variable = {"MAGNETAR_BOOKIE__LEDGER_DIRECTORIES": "/disks/c, /disks/d"}
    assert load_settings(file, variable, {}).bookie.ledger_directories == (Path("/disks/c"), Path("/disks/d"))
    assert settings.broker.failover_delay_s == 0.25


def test_errors_in_pulsars_files_name_line_and_key(tmp_path: Path) -> None:
    with pytest.raises(
        SettingsError, match=r"broker.conf:2: managedLedgerCacheSizeMB: expected a number, not 'x'"
    ):
        load_settings(written(tmp_path, "\nmanagedLedgerCacheSizeMB=x\n", "broker.conf"), {}, {})
    with pytest.raises(SettingsError, match=r"broker.conf:1: expected key=value"):
        load_settings(written(tmp_path, "what is this\n", "broker.conf"), {}, {})
    with pytest.raises(SettingsError, match=r"broker.conf:1 \(brokerServicePort\): port: "):
        load_settings(written(tmp_path, "brokerServicePort=x\n", "broker.conf"), {}, {})


def test_every_translation_leads_to_a_setting() -> None:
    for pulsar, translation in TRANSLATIONS.items():
        step: object = PlatformSettings
        for name in translation.key.split("."):
            fields = section_fields(step)
            assert name in fields, f"{pulsar} → {translation.key}"
            step = fields[name]


# The reference.


def test_the_documented_file_is_what_the_classes_say() -> None:
    documented = (ROOT / "config" / "standalone.yaml").read_text()
    assert documented == reference(), (
        "run: python -m magnetar.cli.settings.reference > config/standalone.yaml"
    )


def test_the_documented_file_holds_the_defaults(tmp_path: Path) -> None:
    file = ROOT / "config" / "standalone.yaml"
    assert load_settings(file, {}, {"data": tmp_path}) == load_settings(None, {}, {"data": tmp_path})
