"""Where settings come from, and how a wrong one is refused (A §2, §11)."""

from __future__ import annotations

from pathlib import Path

import pytest

from topicsd import settings
from topicsd.settings import SettingsError


@pytest.fixture(autouse=True)
def no_environment(monkeypatch):
    import os

    for name in [name for name in os.environ if name.startswith("TOPICS_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def toml(tmp_path):
    def write(text: str) -> Path:
        path = tmp_path / "topicsd.toml"
        path.write_text(text)
        return path

    return write


def test_without_any_source_the_documented_defaults_hold():
    chosen = settings.load()
    assert (chosen.host, chosen.port, chosen.workers, chosen.data_dir) == ("127.0.0.1", 4000, 1, Path("data"))
    assert (chosen.max_batch_records, chosen.max_record_bytes, chosen.max_body_bytes) == (10_000, 1 << 20, 64 << 20)
    assert (chosen.max_meta_bytes, chosen.max_tag_bytes, chosen.max_node_bytes) == (16 << 10, 256, 128)
    assert (chosen.max_topics, chosen.max_routers, chosen.max_watch_sessions) == (100_000, 10_000, 10_000)
    assert (chosen.max_sse_connections, chosen.max_sse_connections_per_key, chosen.max_inflight_per_key) == (10_000, 1000, 1000)
    assert (chosen.max_total_bytes, chosen.drain_ms, chosen.group_commit_ms) == (0, 10_000, 5)


def test_a_flag_wins_over_a_variable_that_over_the_file_that_over_the_default(monkeypatch, toml):
    config = toml("port = 1\nworkers = 2\ndrain_ms = 3\n")
    monkeypatch.setenv("TOPICS_PORT", "11")
    monkeypatch.setenv("TOPICS_WORKERS", "12")
    chosen = settings.load({"port": 21, "host": None}, config)
    assert (chosen.port, chosen.workers, chosen.drain_ms, chosen.host) == (21, 12, 3, "127.0.0.1")


@pytest.mark.parametrize(
    "name, text",
    [
        ("TOPICS_PORT", "abc"), ("TOPICS_PORT", "65536"), ("TOPICS_PORT", "-1"), ("TOPICS_WORKERS", "0"), ("TOPICS_WORKERS", "32"),
        ("TOPICS_PROBE_AUTH", "maybe"), ("TOPICS_MAX_TOPICS", "-1"), ("TOPICS_MAX_TOPICS", "1048577"), ("TOPICS_GROUP_COMMIT_MS", "1.5"),
        ("TOPICS_MAX_TAG_BYTES", "65536"), ("TOPICS_LOG_LEVEL", "loud"), ("TOPICS_FRONT", "apache"),
    ],
)  # fmt: skip
def test_a_bad_value_is_refused_by_the_name_of_its_variable(monkeypatch, name, text):
    monkeypatch.setenv(name, text)
    with pytest.raises(SettingsError, match=name):
        settings.load()


def test_a_bad_flag_is_refused_by_the_name_of_the_flag():
    with pytest.raises(SettingsError, match="--drain-ms"):
        settings.load({"drain_ms": -1})


@pytest.mark.parametrize(
    "text, told", [("prt = 5", "prt"), ("port = ", "topicsd.toml"), ("port = 'x'", "TOPICS_PORT"), ("api_keys = 'k'", "TOPICS_API_KEYS_FILE")]
)
def test_a_bad_file_is_refused(toml, text, told):
    with pytest.raises(SettingsError, match=told):
        settings.load(config=toml(text))


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(SettingsError, match="nowhere"):
        settings.load(config=tmp_path / "nowhere")


def test_an_empty_variable_is_as_good_as_none(monkeypatch):
    monkeypatch.setenv("TOPICS_PORT", "")
    assert settings.load().port == 4000


def test_zero_topics_means_the_table_s_hard_maximum(monkeypatch):
    monkeypatch.setenv("TOPICS_MAX_TOPICS", "0")
    assert settings.load().topics_max == 1 << 20


def test_misspelt_variables_are_named():
    assert settings.unknown_variables({"TOPICS_PROT": "1", "TOPICS_PORT": "1", "TOPICS_API_KEYS_FILE": "x", "HOME": "/"}) == ["TOPICS_PROT"]


def test_taking_the_keys_removes_them_from_the_environment():
    environ = {"TOPICS_API_KEYS": "secret", "TOPICS_PORT": "1"}
    assert settings.take_api_keys(environ) == "secret"
    assert environ == {"TOPICS_PORT": "1"}


def test_keys_may_stand_in_a_file_one_a_line(tmp_path):
    path = tmp_path / "keys"
    path.write_text("one:read\n\n two \n")
    environ = {"TOPICS_API_KEYS_FILE": str(path)}
    assert settings.take_api_keys(environ) == "one:read,two"
    assert environ == {}


def test_a_key_file_that_is_missing_or_empty_or_beside_the_variable_is_refused(tmp_path):
    empty = tmp_path / "empty"
    empty.write_text("\n")
    for environ in (
        {"TOPICS_API_KEYS_FILE": str(tmp_path / "nowhere")},
        {"TOPICS_API_KEYS_FILE": str(empty)},
        {"TOPICS_API_KEYS_FILE": str(empty), "TOPICS_API_KEYS": "k"},
    ):
        with pytest.raises(SettingsError, match="TOPICS_API_KEYS_FILE"):
            settings.take_api_keys(environ)
