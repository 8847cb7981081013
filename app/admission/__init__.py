"""Who goes next, and how much at once.

This room decides which waiting request the engine gets next, so that every tenant gets its share
however the others behave. It knows no web, no vLLM and no settings; only `dispatcher.py` awaits.

The rules
---------
**Service.** What a tenant got is counted in tokens at their prices: 1 for a token of a prompt, 2
for one of an answer (`rules.py`). A prompt is charged when it is handed to the engine, an answer as
it is made. Nothing is guessed: what a request will cost is not known before, and is not charged
before. Prompt tokens that the prefix cache had are given back at the first token, but for a tenth.
A prompt that never reached the engine is given back whole; what was made for a client that left is
not.

**Counters.** Each tenant has a counter in each class of work: its service divided by its weight
(`account.py`). The tenant with work and the lowest counter is next, and of its requests the first
(`band.py`). That is start-time fair queueing (Goyal, Vin, Cheng: SIGCOMM'96) with a cost that is
charged while it is served, which makes it the virtual token counter of Sheng et al. (OSDI'24).

**Time.** A band's virtual time V is the counter of whoever was dispatched last, as it was just
before; it never falls. A tenant that gets work after having none is lifted: its counter becomes V
if it was lower. So silence banks no service, and debt is kept. This happens whenever the queue was
empty, also while something of the tenant still runs: one long answer must not bank credit either.
At its `running` limit a tenant is as good as without work: it is not next, and is lifted when it
may run again. When everything is idle, V moves to the highest counter: a new busy period starts.

**Classes.** Interactive and batch work are two bands. Between them the same rule holds: each band
has a counter, divided by the band's weight, 10 to 1 as a default. "Interactive first, but a
twentieth for batch" is the weights 19 to 1 (`BandWeights.strict`). Tenants of weight 0 are the
background: served only while no other tenant has eligible work, equal among themselves, in a tenth
of the places.

**How much at once.** The policy (`policy.py`) is asked about the one request that is next. If
something stands in its way, nobody passes it: a large request must not starve behind small ones. In
the way may be the number of sequences; the KV cache, by the most that it is expected to hold at any
later moment (`kv_peak.py`), with lengths learned per tenant (`lengths.py`); the pace of prompts;
and a small reserve of places. The last two do not concern *light* tenants: those that were lifted
lately, and so used less than their share, for a few turns. That is how a quiet tenant's request
goes in at the engine's next step beside any flood.

**Pace.** What starts together ends together, and starts together again; meanwhile prompts slow
everyone's next token. So while others decode, as many prompts a step are handed over as keep the
engine full, and no more (`pacing.py`).

**Refusals.** A request is refused before any work is spent on it if its tenant's queue is full, or
if its predicted wait is longer than it may wait; what waits in vain expires (`gate.py`,
`forecast.py`). The time to come back counts what others of the tenant were promised. A tenant is
told that the server is overloaded only where one with nothing queued or running would be refused as
well.

The bound
---------
Let f have weight w_f, L be the longest prompt, and M_f the most output tokens that requests of f in
the engine still have to make, at any moment: at most the places it holds times the longest answer.

    U_f = (1 * L + 2 * M_f) / w_f

*Lemma.* At any time, for two tenants f and g of one band that have work and may run,
C_f - C_g <= U_f.

*Proof.* Look at the last dispatch of f, at time s. Just before it C_f was the lowest counter, so
C_f(s) <= C_g(s) if g had work then; and if g got work later, it was lifted to at least V >= C_f(s).
Since s, f was charged the one prompt that it handed over, and output of what it has in the engine:
together at most U_f. And C_g has not fallen. (Before its first dispatch f has just been lifted:
then C_f = V, and V <= C_g always: a dispatch takes the lowest counter, and whoever joins is
lifted.)

*Theorem.* Over any time in which f and g both have work and may run, |W_f / w_f - W_g / w_g| <=
U_f + U_g, whatever everyone else does. The difference does not grow with time: over an hour the
shares are exact to a few requests. No order that does not interrupt answers can do better than half
of it (Sheng et al., theorem 4.8).

*Nobody starves.* Who arrives with counter V waits while others with counters not above its own are
served: all of them together get at most the sum over j of w_j * (U_j + U_f) until its turn.

*Refunds.* Counters fall by refunds. They add what g was given back since s, at most its prompts
that had no first token yet at s, to what C_f - C_g may be; and V may be above an eligible counter
by what that was given back.

*Proven* means more than this page: `tests/admission/checker.py` recomputes every counter by the
book and checks the lemma, for every pair, after every event of thousands of random lives, with
refunds, aborts, limits and expiry. It is tight: gaps of 99 % and more of the bound occur.

What is not promised
--------------------
- Between the classes the bound is that of their weights, not that of tenants: a tenant's batch work
  and its chat have a counter each. A light interactive tenant may use the reserve out of turn
  between the bands, never within one.
- A change of weight counts from then on; the bound holds between changes.
- Shares are guarantees under pressure, not ceilings: what one does not use, the others get.
- A place is not taken back: the bound contains what is in the engine. A smaller window is a smaller
  bound.
- Predictions are no promises. With less than a second of backlog measured, nobody is refused for
  one.
- Engine steps are counted for all data-parallel ranks together.

One request's way: `Dispatcher.turn()` -> `Scheduler.submit()` -> `Gate` (may it wait?) -> `Ledger`
(whose turn is it?) -> policy and `Window` (does it fit?) -> granted -> `first_token`, `tokens` ->
`end`. Everything that happens is an event (`events.py`) for metrics and logs.
"""
