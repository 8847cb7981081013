"""Copies between a simulated device and host memory: when they end, and who waits for them."""

from __future__ import annotations

from typing import Any

import pytest

from app.engine.launch import prepare_environment

pytestmark = [
    pytest.mark.filterwarnings("default"),  # vLLM and what it imports warn of many things
    pytest.mark.timeout(300),  # importing it takes its time on a busy machine
]

BLOCK_SECONDS = 0.5


@pytest.fixture(scope="module", autouse=True)
def _environment() -> None:
    prepare_environment()


@pytest.fixture
def transfers() -> Any:
    from app.engine.simulated_transfers import SimulatedTransfers

    return SimulatedTransfers(seconds_per_block=BLOCK_SECONDS, bytes_per_block=100, workers=2)


def jobs(
    *,
    loads: dict[int, int] | None = None,
    stores: dict[int, int] | None = None,
    flush: set[int] | None = None,
) -> Any:
    """What one step brings: numbers of jobs with their blocks; job 7 belongs to request r7."""
    from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import (
        OffloadingConnectorMetadata,
        TransferJob,
    )
    from vllm.v1.kv_offload.base import GPULoadStoreSpec, LoadStoreSpec

    def job(number: int, blocks: int, *, load: bool) -> TransferJob:
        device = GPULoadStoreSpec(list(range(blocks)), group_sizes=[blocks], block_indices=[0])
        host = LoadStoreSpec()
        source, target = (host, device) if load else (device, host)
        return TransferJob(req_id=f"r{number}", src_spec=source, dst_spec=target)

    return OffloadingConnectorMetadata(
        load_jobs={n: job(n, blocks, load=True) for n, blocks in (loads or {}).items()},
        store_jobs={n: job(n, blocks, load=False) for n, blocks in (stores or {}).items()},
        jobs_to_flush=flush,
    )


def ended(transfers: Any, by: float) -> set[int]:
    report = transfers.done(by)
    return set() if report is None else set(report.kv_connector_worker_meta.completed_jobs)


def step(transfers: Any, metadata: Any, *, now: float, ends_at: float) -> float | None:
    waits_until: float | None = transfers.before_step(metadata, now)
    transfers.after_step(metadata, ends_at)
    return waits_until


def test_a_load_takes_its_time_from_when_it_is_asked_for(transfers: Any) -> None:
    assert step(transfers, jobs(loads={1: 4}), now=10, ends_at=11) is None
    assert ended(transfers, 11.9) == set()
    report = transfers.done(12)
    assert report.finished_recving == {"r1"}
    assert transfers.done(100) is None


def test_a_store_begins_when_its_step_has_ended(transfers: Any) -> None:
    step(transfers, jobs(stores={1: 4}), now=10, ends_at=20)
    assert ended(transfers, 21.9) == set()
    report = transfers.done(22)
    assert set(report.kv_connector_worker_meta.completed_jobs) == {1}
    assert report.finished_recving is None


def test_copies_of_one_direction_queue_and_those_of_the_other_do_not(transfers: Any) -> None:
    step(transfers, jobs(loads={1: 4, 2: 4}, stores={3: 4}), now=10, ends_at=10)
    assert ended(transfers, 12) == {1, 3}
    assert ended(transfers, 14) == {2}


def test_a_step_waits_for_the_stores_of_blocks_it_takes_over(transfers: Any) -> None:
    step(transfers, jobs(stores={1: 4, 2: 4, 3: 4}), now=10, ends_at=10)
    assert step(transfers, jobs(flush={1, 2}), now=11, ends_at=14) == 14
    assert ended(transfers, 14) == {1, 2}


def test_a_store_that_must_end_before_its_own_step_begins_at_once(transfers: Any) -> None:
    assert step(transfers, jobs(stores={1: 4}, flush={1}), now=10, ends_at=30) == 12
    assert ended(transfers, 12) == {1}
    assert ended(transfers, 100) == set()


def test_a_step_waits_for_no_job_that_has_ended(transfers: Any) -> None:
    step(transfers, jobs(stores={1: 2}), now=10, ends_at=10)
    assert ended(transfers, 11) == {1}
    assert step(transfers, jobs(flush={1}), now=12, ends_at=12) is None


def test_a_job_is_reported_for_every_worker_with_its_bytes(transfers: Any) -> None:
    step(transfers, jobs(loads={1: 4}, stores={2: 3}), now=0, ends_at=0)
    report = transfers.done(10).kv_connector_worker_meta
    assert report.completed_jobs == {1: 2, 2: 2}
    assert (report.transfer_stats.load.bytes, report.transfer_stats.load.time) == (400, 2.0)
    assert (report.transfer_stats.store.bytes, report.transfer_stats.store.time) == (300, 1.5)
