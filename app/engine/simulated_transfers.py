"""KV offload on a device that is not here: copies that take time and move nothing.

vLLM's offloading scheduler hands out jobs with each step and learns from the output of a later one
that they are done. A load starts at once, a store when the step that computed its blocks has ended;
each direction is one link that copies in order, beside the steps. A step whose blocks are still
being stored waits for that, as on a real device.
"""

from collections import deque
from dataclasses import dataclass

from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import (
    OffloadingConnectorMetadata,
    OffloadingWorkerMetadata,
    TransferJob,
)
from vllm.v1.outputs import KVConnectorOutput

from app.engine.device_timeline import Link


@dataclass(frozen=True, slots=True, kw_only=True)
class _Copy:
    job_id: int
    request_id: str
    blocks: int
    seconds: float
    ends_at: float


class SimulatedTransfers:
    """The copies of one device. `workers`: how many workers vLLM expects to report each job."""

    def __init__(self, *, seconds_per_block: float, bytes_per_block: int, workers: int) -> None:
        self._seconds_per_block = seconds_per_block
        self._bytes_per_block = bytes_per_block
        self._workers = workers
        self._load_link, self._store_link = Link(), Link()
        self._loads: deque[_Copy] = deque()
        self._stores: deque[_Copy] = deque()

    def before_step(self, metadata: OffloadingConnectorMetadata, now: float) -> float | None:
        """Start the loads, and the stores the step must wait for; says when those have ended.

        None: there are none.
        """
        for job_id, job in metadata.load_jobs.items():
            blocks = len(job.dst_spec.block_ids)
            self._loads.append(self._copy(self._load_link, (job_id, job, blocks), now))
        awaited = metadata.jobs_to_flush or ()
        for job_id, job in metadata.store_jobs.items():
            if job_id in awaited:
                self._store(job_id, job, now)
        return max((copy.ends_at for copy in self._stores if copy.job_id in awaited), default=None)

    def after_step(self, metadata: OffloadingConnectorMetadata, ended_at: float) -> None:
        """Start the other stores of a step."""
        awaited = metadata.jobs_to_flush or ()
        for job_id, job in metadata.store_jobs.items():
            if job_id not in awaited:
                self._store(job_id, job, ended_at)

    def done(self, by: float) -> KVConnectorOutput | None:
        """What has ended by then and was not reported yet; None: nothing."""
        loaded, stored = _ended(self._loads, by), _ended(self._stores, by)
        if not loaded and not stored:
            return None
        report = OffloadingWorkerMetadata()
        report.completed_jobs = {copy.job_id: self._workers for copy in (*loaded, *stored)}
        for copies, statistics in (
            (loaded, report.transfer_stats.load),
            (stored, report.transfer_stats.store),
        ):
            for copy in copies:
                statistics.record(copy.blocks * self._bytes_per_block, copy.seconds)
        return KVConnectorOutput(
            finished_recving={copy.request_id for copy in loaded} or None,
            kv_connector_worker_meta=report,
        )

    def _store(self, job_id: int, job: TransferJob, not_before: float) -> None:
        blocks = len(job.src_spec.block_ids)
        self._stores.append(self._copy(self._store_link, (job_id, job, blocks), not_before))

    def _copy(self, link: Link, work: tuple[int, TransferJob, int], not_before: float) -> _Copy:
        job_id, job, blocks = work
        seconds = blocks * self._seconds_per_block
        return _Copy(
            job_id=job_id,
            request_id=job.req_id,
            blocks=blocks,
            seconds=seconds,
            ends_at=link.copy_ends_at(not_before=not_before, seconds=seconds),
        )


def _ended(copies: deque[_Copy], by: float) -> list[_Copy]:
    ended = []
    while copies and copies[0].ends_at <= by:
        ended.append(copies.popleft())
    return ended
