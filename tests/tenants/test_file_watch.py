"""A change of a file is seen however it is made, and only once it is over."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest

from app.tenants import file_watch
from app.tenants.file_watch import FileWatch, Pace

QUICK = Pace(poll_seconds=0.2, look_seconds=0.01, quiet_seconds=0.15)


class Seen:
    """The contents of a file at each change that was reported."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._news = asyncio.Condition()
        self.contents: list[str | None] = []

    async def follow(self, watch: FileWatch) -> None:
        async with aclosing(watch.changes()) as changes:
            async for _ in changes:
                async with self._news:
                    there = self._path.exists()
                    self.contents.append(self._path.read_text() if there else None)
                    self._news.notify_all()

    async def until(self, content: str | None) -> None:
        async with asyncio.timeout(20), self._news:
            await self._news.wait_for(lambda: self.contents[-1:] == [content])


@asynccontextmanager
async def watching(path: Path, pace: Pace = QUICK) -> AsyncIterator[Seen]:
    seen = Seen(path)
    watch = FileWatch(path, pace)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(seen.follow(watch))
        await asyncio.sleep(0.05)
        yield seen
        task.cancel()


def rename_over(path: Path, content: str) -> None:
    fresh = path.with_suffix(".new")
    fresh.write_text(content)
    fresh.replace(path)


def rename_away_and_write(path: Path, content: str) -> None:
    """What vim does by default."""
    path.replace(path.with_suffix(".yaml~"))
    path.write_text(content)


def write_in_place(path: Path, content: str) -> None:
    path.write_text(content)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "tenants.yaml"
    path.write_text("old\n")
    return path


@pytest.mark.parametrize("change", [rename_over, rename_away_and_write, write_in_place])
async def test_a_change_is_seen_however_it_is_made(path, change):
    async with watching(path) as seen:
        for content in ("one\n", "two\n", "without a line's end"):
            change(path, content)
            await seen.until(content)
    assert seen.contents == ["one\n", "two\n", "without a line's end"]


async def test_the_swap_of_a_link_two_folders_up_is_seen(tmp_path):
    """Kubernetes: tenants.yaml -> ..data/tenants.yaml, and `..data` is replaced by a rename."""
    for version in ("1", "2"):
        (tmp_path / f"..v{version}").mkdir()
        (tmp_path / f"..v{version}" / "tenants.yaml").write_text(f"{version}\n")
    (tmp_path / "..data").symlink_to("..v1")
    (tmp_path / "tenants.yaml").symlink_to("..data/tenants.yaml")
    async with watching(tmp_path / "tenants.yaml") as seen:
        (tmp_path / "..data_tmp").symlink_to("..v2")
        (tmp_path / "..data_tmp").replace(tmp_path / "..data")
        await seen.until("2\n")
    assert seen.contents == ["2\n"]


async def test_half_of_a_file_is_not_shown(path):
    """Each state of a slow writer is a file with a line's end, and none but the last counts."""
    async with watching(path) as seen:
        with path.open("w") as file:
            for number in range(8):
                file.write(f"{number}\n")
                file.flush()
                await asyncio.sleep(0.05)
        await seen.until("".join(f"{number}\n" for number in range(8)))
    assert len(seen.contents) == 1


async def test_a_replaced_file_that_does_not_end_is_given_time(path):
    async with watching(path) as seen:
        rename_over(path, "tenants: [")
        await asyncio.sleep(0.05)
        with path.open("a") as file:
            file.write("]\n")
        await seen.until("tenants: []\n")
    assert len(seen.contents) == 1


async def test_a_file_that_is_gone_is_told_and_its_return_too(path):
    async with watching(path) as seen:
        path.unlink()
        await seen.until(None)
        path.write_text("back\n")
        await seen.until("back\n")


async def test_nothing_is_told_of_the_neighbours(path):
    async with watching(path) as seen:
        for number in range(5):
            path.with_name("other").write_text(str(number))
            await asyncio.sleep(0.05)
    assert seen.contents == []


async def test_a_change_before_the_watch_runs_is_not_missed(path):
    watch = FileWatch(path, QUICK)
    rename_over(path, "new\n")
    seen = Seen(path)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(seen.follow(watch))
        await seen.until("new\n")
        task.cancel()


@pytest.mark.parametrize("error", [OSError(28, "no space left"), RuntimeError("no notices here")])
async def test_without_the_systems_notices_it_looks_by_itself(path, monkeypatch, error):
    def broken(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(file_watch, "awatch", broken)
    async with watching(path) as seen:
        rename_over(path, "new\n")
        await seen.until("new\n")


async def test_a_folder_that_is_replaced_is_found_again(tmp_path):
    folder = tmp_path / "mounted"
    folder.mkdir()
    path = folder / "tenants.yaml"
    path.write_text("old\n")
    async with watching(path) as seen:
        folder.rename(tmp_path / "before")
        folder.mkdir()
        path.write_text("new\n")
        await seen.until("new\n")


async def test_the_watch_ends_when_it_is_cancelled(path):
    """And soon, though a thread waits for the system's notices."""
    async with asyncio.timeout(10):
        async with watching(path, Pace(poll_seconds=60)):
            pass
