"""Whose key it is, while the file changes under load."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from app.errors import InvalidApiKey
from app.tenants import registry as registry_module
from app.tenants.file import TenantsFileError
from app.tenants.file_watch import Pace
from app.tenants.keys import key_hash
from app.tenants.model import Tenants
from app.tenants.registry import Registry, ReloadResult
from app.web.caller import Keys

QUICK = Pace(poll_seconds=0.2, look_seconds=0.01, quiet_seconds=0.1)


def file_of(*tenants: str, weight: float = 1) -> str:
    """Each tenant's key is `key of ID`; all have the same weight."""
    lines = [
        f"- {{id: {id_}, keys: ['{key_hash(f'key of {id_}')}'], weight: {weight}}}\n"
        for id_ in tenants
    ]
    return "tenants:\n" + "".join(lines)


class House:
    """A registry and what it told."""

    def __init__(self, path: Path, pace: Pace = QUICK) -> None:
        self.path = path
        self.changes: list[tuple[Tenants, Tenants]] = []
        self.reloads: list[tuple[ReloadResult, Sequence[str]]] = []
        self._news = asyncio.Event()
        self.registry = Registry(path, self._changed, self._reloaded, pace=pace)

    def _changed(self, old: Tenants, new: Tenants) -> None:
        assert self.registry.tenants is new
        self.changes.append((old, new))

    def _reloaded(self, result: ReloadResult, problems: Sequence[str]) -> None:
        self.reloads.append((result, problems))
        self._news.set()

    @property
    def results(self) -> list[str]:
        return [result for result, _ in self.reloads]

    def knows(self, key: str | None) -> str | None:
        try:
            return self.registry.tenant_of(key).id
        except InvalidApiKey:
            return None

    def replace(self, text: str) -> None:
        fresh = self.path.with_suffix(".new")
        fresh.write_text(text)
        fresh.replace(self.path)

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(self.registry.watch())
            await asyncio.sleep(0.05)
            yield
            task.cancel()

    async def until(self, count: int) -> None:
        """Until this many readings were reported."""
        async with asyncio.timeout(30):
            while len(self.reloads) < count:
                self._news.clear()
                await self._news.wait()


@pytest.fixture
def house(tmp_path: Path) -> House:
    path = tmp_path / "tenants.yaml"
    path.write_text(file_of("acme", "ops"))
    return House(path)


def test_a_registry_is_what_the_door_asks(house):
    keys: Keys = house.registry
    assert not keys.anonymous
    assert keys.tenant_of("key of acme").id == "acme"


@pytest.mark.parametrize(
    "key",
    [
        pytest.param(None, id="none"),
        pytest.param("", id="empty"),
        pytest.param("key of acme ", id="a space too many"),
        pytest.param("KEY OF ACME", id="capitals"),
        pytest.param("na\xefve", id="a byte of latin-1"),
        pytest.param("na\xc3\xafve", id="UTF-8 read as latin-1"),
        pytest.param("\u201ckey of acme\u201d", id="smart quotes"),
        pytest.param("\U0001f511", id="an emoji"),
        pytest.param("\ud83d", id="half a surrogate pair"),
        pytest.param("\x00", id="a zero"),
        pytest.param("k" * 65536, id="64 KiB"),
        pytest.param(key_hash("key of acme"), id="the hash itself"),
    ],
)
def test_any_other_key_is_nobodys(house, key):
    with pytest.raises(InvalidApiKey) as caught:
        house.registry.tenant_of(key)
    assert not key or key not in caught.value.message


@pytest.mark.parametrize("key", ["na\xefve", "k" * 65536])
def test_no_hash_makes_a_key_of_what_no_client_can_send_safely(tmp_path, key):
    """Two clients may write the same letter beyond ASCII as different bytes."""
    path = tmp_path / "tenants.yaml"
    path.write_text(f"tenants: [{{id: acme, keys: ['{key_hash(key)}']}}]\n")
    assert House(path).knows(key) is None


def test_without_a_good_file_there_is_no_registry(tmp_path):
    with pytest.raises(TenantsFileError, match="cannot be read"):
        House(tmp_path / "none.yaml")
    (tmp_path / "bad.yaml").write_text("tenants:\n- {id: a}\n")
    with pytest.raises(TenantsFileError, match=r"bad.yaml:2: a tenant without keys"):
        House(tmp_path / "bad.yaml")


async def test_a_new_file_counts_at_once(house):
    house.replace(file_of("acme", "fresh"))
    await house.registry.reload()
    assert [house.knows(f"key of {id_}") for id_ in ("acme", "ops", "fresh")] == [
        "acme",
        None,
        "fresh",
    ]
    ((old, new),) = house.changes
    assert (old.gone_since(new), new.gone_since(old)) == (["fresh"], ["ops"])
    assert house.reloads == [("loaded", ())]


async def test_whoever_holds_a_tenant_keeps_it(house):
    """A running request goes on as it began."""
    held = house.registry.tenant_of("key of ops")
    house.replace(file_of("acme"))
    await house.registry.reload()
    assert held.id == "ops"
    assert house.knows("key of ops") is None


async def test_a_key_may_move_from_one_tenant_to_another(house):
    text = file_of("ops") + f"- {{id: other, keys: ['{key_hash('key of acme')}']}}\n"
    house.replace(text)
    await house.registry.reload()
    assert house.knows("key of acme") == "other"


async def test_a_bad_file_changes_nothing_and_is_reported_once(house):
    before = house.registry.tenants
    house.replace("tenants:\n- {id: acme}\n")
    for _ in range(3):
        await house.registry.reload()
    assert house.registry.tenants is before
    assert house.changes == []
    ((result, problems),) = house.reloads
    assert result == "failed"
    assert problems == [
        "tenants.yaml:2: a tenant without keys: say `keys: []` if nobody shall use it"
    ]


async def test_a_file_that_is_gone_changes_nothing_and_is_reported_once(house):
    house.path.unlink()
    await house.registry.reload()
    await house.registry.reload()
    assert house.knows("key of acme") == "acme"
    assert house.results == ["failed"]


async def test_a_known_content_is_not_reported(house):
    house.replace(house.path.read_text())
    await house.registry.reload()
    assert house.reloads == []


async def test_another_text_of_the_same_tenants_is_no_change(house):
    house.replace("# a note\n" + house.path.read_text())
    await house.registry.reload()
    assert house.results == ["loaded"]
    assert house.changes == []


async def test_after_a_bad_file_the_good_one_is_reported_again(house):
    """So that whoever was alarmed learns that it is over."""
    good = house.path.read_text()
    house.replace("tenants: []\n")
    await house.registry.reload()
    house.replace(good)
    await house.registry.reload()
    assert house.results == ["failed", "loaded"]
    assert house.changes == []


async def test_a_new_key_alone_is_a_change(house):
    """On the way to retiring the old one."""
    text = file_of("ops")
    text += f"- {{id: acme, keys: ['{key_hash('key of acme')}', '{key_hash('second')}']}}\n"
    house.replace(text)
    await house.registry.reload()
    assert house.knows("second") == house.knows("key of acme") == "acme"
    ((old, new),) = house.changes
    assert new.changed_since(old) == []


async def test_fifty_files_under_load_leave_no_key_unknown_and_mix_no_two_files(tmp_path):
    """Ten of them are broken; all the while requests ask for tenants that stay."""
    path = tmp_path / "tenants.yaml"
    path.write_text(file_of("a", "b", "c", weight=1))
    house = House(path)
    asked = 0

    async def load() -> None:
        nonlocal asked
        while True:
            tenants = [house.registry.tenant_of(f"key of {id_}") for id_ in "abc"]
            assert len({tenant.weight for tenant in tenants}) == 1
            asked += 1
            await asyncio.sleep(0)

    async with house.watched(), asyncio.TaskGroup() as group:
        loading = group.create_task(load())
        for number in range(1, 51):
            good = file_of("a", "b", "c", weight=1 + number)
            house.replace(good if number % 5 else good[: len(good) // 2] + "\n")
            if number % 10 == 0:
                await house.until(number)
            else:
                await house.registry.reload()
        await house.until(50)
        loading.cancel()
    assert house.results.count("failed") == 10
    assert [new.by_id["a"].weight for _, new in house.changes] == [
        1 + number for number in range(1, 51) if number % 5
    ]
    assert asked > 50


async def test_the_swap_of_kubernetes_is_followed(tmp_path):
    def publish(version: int, text: str) -> None:
        folder = tmp_path / f"..v{version}"
        folder.mkdir()
        (folder / "tenants.yaml").write_text(text)
        (tmp_path / "..data_tmp").symlink_to(folder.name)
        (tmp_path / "..data_tmp").replace(tmp_path / "..data")
        if version > 1:
            (tmp_path / f"..v{version - 1}" / "tenants.yaml").unlink()
            (tmp_path / f"..v{version - 1}").rmdir()

    publish(1, file_of("acme"))
    (tmp_path / "tenants.yaml").symlink_to("..data/tenants.yaml")
    house = House(tmp_path / "tenants.yaml")
    async with house.watched():
        for version in range(2, 8):
            publish(version, file_of("acme", f"v{version}"))
            await house.until(version - 1)
            assert house.knows("key of acme") == "acme"
            assert house.knows(f"key of v{version}") == f"v{version}"
    assert house.results == ["loaded"] * 6


async def test_a_slow_writer_never_loses_a_tenant(house):
    """Emptied, then written line by line: each state but the first is a valid file."""
    async with house.watched():
        with house.path.open("w") as file:
            for line in file_of("fresh", "ops", "acme").splitlines(keepends=True):
                file.write(line)
                file.flush()
                await asyncio.sleep(0.04)
                assert house.knows("key of acme") == "acme"
        await house.until(1)
    assert house.results == ["loaded"]
    assert set(house.registry.tenants.by_id) == {"acme", "ops", "fresh"}


async def test_a_slow_reading_does_not_overtake_a_later_one(house, monkeypatch):
    """The disk keeps the first reading back until the second is over, or cannot have begun."""
    read = registry_module._read
    second_is_over = threading.Event()
    readings = iter((1, 2))

    def slow_read(path: Path, known: bytes) -> registry_module.Read:
        number = next(readings)
        found = read(path, known)
        if number == 1:
            second_is_over.wait(0.3)
        return found

    monkeypatch.setattr(registry_module, "_read", slow_read)
    async with asyncio.TaskGroup() as group:
        house.replace(file_of("older"))
        group.create_task(house.registry.reload())
        await asyncio.sleep(0.1)
        house.replace(file_of("newer"))
        await house.registry.reload()
        second_is_over.set()
    assert house.knows("key of newer") == "newer"


async def test_the_loop_runs_on_while_thousands_of_tenants_are_read(tmp_path):
    path = tmp_path / "tenants.yaml"
    path.write_text(file_of("acme"))
    house = House(path)
    house.replace(file_of("acme", *(f"t{number}" for number in range(3000))))
    rounds = 0
    async with asyncio.TaskGroup() as group:
        reload = group.create_task(house.registry.reload())
        while not reload.done():
            rounds += 1
            await asyncio.sleep(0)
    assert len(house.registry.tenants.by_id) == 3001
    assert rounds > 20
