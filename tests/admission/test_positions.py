"""Who waits is told where it stands: on change, not too often, and cheaply."""

from __future__ import annotations

from functools import partial

from app.admission.policy import Capacity, Fixed
from app.admission.positions import FRONT
from app.admission.rules import Rules
from app.admission.scheduler import Scheduler
from app.admission.tenant_share import TenantShare
from app.admission.ticket import State, Ticket


class Queue:
    """One tenant's requests before an engine with one place."""

    def __init__(self, count: int) -> None:
        self.scheduler = Scheduler(
            Capacity(sequences=1), policy=Fixed(), rules=Rules(queued_total=10**6)
        )
        self.scheduler.set_tenant(TenantShare(id="a", queued=None, running=None, wait_seconds=1e9))
        self.now = 0.0
        self.told: list[tuple[int, int, float]] = []
        self.tickets = [self.ticket(number) for number in range(count)]
        for ticket in self.tickets:
            self.scheduler.submit(ticket, self.now)
            self.scheduler.pump(self.now)
            if ticket.state is State.WAITING:
                self.scheduler.announce(ticket, self.now)

    def ticket(self, number: int) -> Ticket:
        def tell(number: int, position: int, eta_seconds: float) -> None:
            self.told.append((number, position, eta_seconds))

        return Ticket(
            tenant="a",
            work_class="interactive",
            request_id=str(number),
            prompt_tokens=10,
            max_output_tokens=10,
            arrived_seconds=0.0,
            on_queued=partial(tell, number),
        )

    def serve(self, number: int) -> None:
        self.scheduler.tokens(self.tickets[number], 10, self.now)
        self.scheduler.end(self.tickets[number], "finished", self.now)
        self.scheduler.pump(self.now)

    def tick(self, seconds: float = 0.5) -> list[tuple[int, int]]:
        self.told.clear()
        self.now += seconds
        self.scheduler.tick(self.now)
        return [(number, position) for number, position, _ in self.told]


def test_everyone_is_told_at_once():
    queue = Queue(200)
    assert [told[:2] for told in queue.told] == [(n, n) for n in range(1, 200)]


def test_the_front_is_told_of_every_change_twice_a_second():
    queue = Queue(10)
    queue.serve(0)
    assert queue.tick(0.4) == []
    assert queue.tick(0.1) == [(n, n - 1) for n in range(2, 10)]
    assert queue.tick() == []


def test_who_leaves_moves_those_behind():
    queue = Queue(10)
    queue.scheduler.end(queue.tickets[4], "aborted", 0.0)
    assert queue.tick() == [(n, n - 1) for n in range(5, 10)]


def test_the_rest_is_told_within_five_seconds_a_part_at_a_time():
    queue = Queue(1001)
    queue.serve(0)
    seen: dict[int, int] = {}
    largest = 0
    for _ in range(11):
        told = queue.tick()
        largest = max(largest, len(told))
        seen.update(told)
    assert seen == {n: n - 1 for n in range(2, 1001)}
    assert largest <= FRONT + 1001 // 10 + 1


def test_the_expected_wait_shrinks_towards_the_front():
    queue = Queue(40)
    for number in range(20):
        queue.now += 0.5
        queue.serve(number)
        queue.scheduler.stepped(queue.now)
    queue.serve(20)
    queue.tick()
    etas = [eta for _, _, eta in queue.told]
    assert etas == sorted(etas)
    assert 0.5 * 0.5 < etas[0] < 2 * 0.5
    assert 0.5 * 9 < etas[-1] < 2 * 9


def test_a_long_queue_is_looked_at_in_slices():
    queue = Queue(20_001)
    queue.serve(0)
    assert len(queue.tick()) <= FRONT + 2_001
