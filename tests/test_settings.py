"""Settings: what is accepted, what is refused by name, and that their documents tell the truth."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from app.settings import PREFIX, Settings, SettingsError, check, load_settings

ROOT = Path(__file__).parent.parent


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder without a `.env`, and an environment without settings."""
    monkeypatch.chdir(tmp_path)
    for name in Settings.model_fields:
        monkeypatch.delenv(PREFIX + name.upper(), raising=False)
    return tmp_path


def test_the_environment_wins_over_the_file(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (elsewhere / ".env").write_text("FAIRGATE_PORT=8001\nFAIRGATE_DRAIN_SECONDS=5\n")
    monkeypatch.setenv("FAIRGATE_PORT", "8002")
    settings = load_settings()
    assert (settings.port, settings.drain_seconds) == (8002, 5)


@pytest.mark.parametrize("where", ["environment", "file"])
def test_an_unknown_name_is_refused_with_the_nearest_known_one(
    where: str, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if where == "environment":
        monkeypatch.setenv("FAIRGATE_DRAIN_SECOND", "5")
    else:
        (elsewhere / ".env").write_text("FAIRGATE_DRAIN_SECOND=5\n")
    (problem,) = check()
    assert "FAIRGATE_DRAIN_SECOND" in problem
    assert "did you mean FAIRGATE_DRAIN_SECONDS?" in problem


def test_every_problem_is_listed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIRGATE_PORT", "high")
    monkeypatch.setenv("FAIRGATE_DRAIN_SECONDS", "-1")
    monkeypatch.setenv("FAIRGATE_NOTHING", "1")
    problems = check()
    assert len(problems) == 3
    assert {problem.split(":")[0] for problem in problems} == {
        "FAIRGATE_PORT",
        "FAIRGATE_DRAIN_SECONDS",
        "FAIRGATE_NOTHING",
    }


def test_a_file_in_another_encoding_is_one_readable_problem(elsewhere: Path) -> None:
    (elsewhere / ".env").write_bytes(b"FAIRGATE_PORT=\xff\xfe")
    assert check() == [".env is not UTF-8: save it as UTF-8"]


def test_variables_of_others_are_left_alone(elsewhere: Path) -> None:
    (elsewhere / ".env").write_text("HF_TOKEN=x\n")
    assert check() == []


def test_one_port_for_both_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIRGATE_PORT", "9000")
    with pytest.raises(SettingsError, match="FAIRGATE_OPS_PORT"):
        load_settings()


def test_origins_are_a_list_with_commas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIRGATE_ALLOWED_ORIGINS", "https://a.example, http://b:3000 ,")
    assert load_settings().allowed_origins == ("https://a.example", "http://b:3000")


@pytest.mark.parametrize("origin", ["a.example", "https://a.example/path", "*", "null"])
def test_an_origin_that_is_none_is_refused(origin: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIRGATE_ALLOWED_ORIGINS", origin)
    (problem,) = check()
    assert origin in problem


def test_secrets_are_masked_where_settings_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIRGATE_CACHE_SALT", "canary-salt")
    settings = load_settings()
    assert "canary-salt" not in str(settings.shown())
    assert "canary-salt" not in repr(settings)


def documented() -> dict[str, str]:
    """Every setting that `.env.example` names, with the default that it gives."""
    lines = (ROOT / ".env.example").read_text().splitlines()
    found = (re.fullmatch(r"# ?(FAIRGATE_[A-Z_]+)=(.*)", line) for line in lines)
    return {match[1]: match[2] for match in found if match}


def test_the_example_file_names_every_setting_with_its_default() -> None:
    expected = {}
    for name, field in Settings.model_fields.items():
        default = field.default
        text = "" if default in (None, ()) else str(default)
        expected[PREFIX + name.upper()] = text.lower() if isinstance(default, bool) else text
    assert documented() == expected


def test_the_example_file_describes_every_setting_in_the_words_of_the_code() -> None:
    text = " ".join((ROOT / ".env.example").read_text().replace("#", " ").split())
    for name, field in Settings.model_fields.items():
        assert field.description, name
        assert " ".join(field.description.split()) in text, name
