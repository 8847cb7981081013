"""What a decision costs with 10,000 tenants and 100,000 waiting.

`python -m tests.admission.bench_ledger` prints it.
Medians of many single measurements, in microseconds, on the machine that is printed.
"""

# ruff: noqa: T201 - it prints

from __future__ import annotations

import gc
import platform
import random
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter_ns

from app.admission.events import Event
from app.admission.ledger import Ledger
from app.admission.policy import Capacity, Fair
from app.admission.rules import Rules
from app.admission.scheduler import Scheduler
from app.admission.tenant_share import TenantShare
from app.admission.ticket import State, Ticket

TENANTS, WAITING, ROUNDS = 10_000, 100_000, 20_000
SEQUENCES = 256


class Count:
    """An observer that does the least."""

    def __init__(self) -> None:
        self.events = 0

    def on_event(self, event: Event) -> None:
        self.events += 1


def tickets(rng: random.Random) -> Iterator[Ticket]:
    """Endless, over all tenants in turn."""
    number = 0
    while True:
        number += 1
        yield Ticket(
            tenant=f"t{number % TENANTS}",
            work_class="batch" if number % 7 == 0 else "interactive",
            request_id=str(number),
            prompt_tokens=rng.randrange(20, 4000),
            max_output_tokens=rng.randrange(16, 512),
            arrived_seconds=0.0,
        )


def median_us(rounds: int, action: Callable[[], object]) -> float:
    """Of single calls."""
    samples = []
    for _ in range(rounds):
        start = perf_counter_ns()
        action()
        samples.append(perf_counter_ns() - start)
    return statistics.median(samples) / 1e3


def ledger_us() -> float:
    """Pick the next tenant, take its ticket, charge the prompt and 16 tokens of output."""
    rng = random.Random(1)
    ledger = Ledger(Rules())
    for number in range(TENANTS):
        ledger.set_share(TenantShare(id=f"t{number}", weight=rng.choice((1, 2, 4)), running=None))
    for ticket, _ in zip(tickets(rng), range(WAITING), strict=False):
        ticket.state = State.WAITING
        ledger.push(ledger.account(ticket.tenant, ticket.work_class), ticket, 0.0)

    def pick_and_charge() -> None:
        account = next(ledger.heads())
        ledger.dispatch(account)
        ledger.charge_output(account, 16)

    return median_us(ROUNDS, pick_and_charge)


def decision_us(kv_tokens: int) -> tuple[float, int]:
    """A place is free: pick, window, KV peak, grant and event, and that nobody else fits."""
    rng = random.Random(2)
    observer = Count()
    scheduler = Scheduler(
        Capacity(sequences=SEQUENCES, kv_tokens=kv_tokens),
        policy=Fair(prompt_tokens_per_step=1 << 40),
        rules=Rules(queued_total=2 * WAITING),
        observer=observer,
    )
    for number in range(TENANTS):
        scheduler.set_tenant(
            TenantShare(id=f"t{number}", queued=None, running=None, wait_seconds=1e9)
        )
    source = tickets(rng)
    running: list[Ticket] = []
    for ticket, _ in zip(source, range(WAITING + SEQUENCES), strict=False):
        scheduler.submit(ticket, 0.0)
        running += scheduler.pump(0.0)
    now = 0.0
    samples = []
    for turn in range(ROUNDS):
        now += 0.001
        ended = running.pop(rng.randrange(len(running)))
        scheduler.first_token(ended, 0, now)
        scheduler.tokens(ended, rng.randrange(1, ended.max_output_tokens + 1), now)
        if turn % 16 == 0:
            scheduler.stepped(now)
        scheduler.submit(next(source), now)
        scheduler.end(ended, "finished", now)
        start = perf_counter_ns()
        granted = scheduler.pump(now)
        samples.append(perf_counter_ns() - start)
        running += granted
    return statistics.median(samples) / 1e3, len(running)


def main() -> None:
    """Print the machine and the medians."""
    model = platform.processor()
    cpus = Path("/proc/cpuinfo")
    if cpus.exists():
        names = [line for line in cpus.read_text().splitlines() if line.startswith("model name")]
        model = names[0].split(":")[1].strip() if names else model
    gc.freeze()
    print(f"{platform.system()} {platform.machine()}, {model}, Python {platform.python_version()}")
    print(f"{TENANTS} tenants, {WAITING} waiting, medians of {ROUNDS}")
    print(f"pick and charge: {ledger_us():.2f} us (at most 5)")
    for name, kv_tokens in (("ample", 100_000_000), ("the limit", 300_000)):
        cost, running = decision_us(kv_tokens)
        print(f"whole decision, KV cache {name}, {running} running: {cost:.1f} us (at most 40)")


if __name__ == "__main__":
    main()
