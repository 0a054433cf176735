"""Who is let in, and what the others are told. A step takes 1 ms and 10 us a token."""

from __future__ import annotations

import pytest

from polychoir.engine.admission import admit, predicted_ttfa_s
from polychoir.engine.core import EngineCore
from polychoir.engine.cost import StepCost
from polychoir.engine.scheduler import Scheduler
from polychoir.engine.sequence import Sequence, Urgency
from polychoir.errors import Overloaded
from polychoir.types import Chunk, Terms, Work
from support.engines import Clock, CountingRunner, limits, row

COST = StepCost(host_s=1e-3, per_token_s=1e-5)
LISTENER = Terms("interactive")


def speech(*tokens, steps=32, seconds=2.0):
    return [Chunk(index, "", Work(one, steps), None, estimated_s=seconds) for index, one in enumerate(tokens)]


class House:
    """Arrivals on a virtual clock; each step takes what the curve says."""

    def __init__(self, cost=COST, **changes):
        values = {"max_num_seqs": 256, "max_num_batched_tokens": 2_000, "max_resident_seqs": 1_024, **changes}
        self.clock, self.runner, self.ended = Clock(), CountingRunner(), []
        self.scheduler = Scheduler(limits(**values), cost)
        self.core = EngineCore(self.scheduler, self.runner, self.clock, self.ended.append)
        self.cost = cost
        self.rows = 0

    def ask(self, chunks, terms=LISTENER):
        """Let in, or raises; ids of the rows."""
        wanted = admit(self.scheduler, chunks, terms, self.clock.now)
        ids = []
        for chunk, (urgency, deadline) in zip(chunks, wanted, strict=True):
            self.core.add(
                Sequence(
                    self.rows, self.rows, chunk, terms.tier, self.clock.now, terms.tenant, urgency, deadline
                )
            )
            ids.append(self.rows)
            self.rows += 1
        return ids

    def run(self, until):
        while self.clock.now < until:
            self.core.step()
            if not self.runner.pending:
                self.clock.now = until
                return
            self.clock.now += self.cost.seconds(self.runner.pending[0].tokens)
            self.runner.finish()
            self.core.step()

    def ttfa(self, seq_id):
        (end,) = [one for one in self.ended if one.sequence.seq_id == seq_id]
        return end.at - end.sequence.arrived_at


def test_an_idle_engine_lets_anybody_in_however_slow_it_is():
    for cost in (COST, StepCost(host_s=2.0, per_token_s=1e-3)):
        house = House(cost)
        assert house.ask(speech(100, 300)) == [0, 1]


@pytest.mark.parametrize("tokens", [1, 10])
def test_a_listener_alone_is_let_in_whatever_the_settings(tokens):
    """The playback of so long a request would run dry on any reading of so small a step; nobody is harmed."""
    house = House(max_num_batched_tokens=tokens)
    assert len(house.ask(speech(100, *[900] * 20, seconds=0.1))) == 21
    with pytest.raises(Overloaded):
        house.ask(speech(100))


def test_the_prediction_is_right_for_an_idle_engine():
    house = House()
    chunk = speech(100)[0]
    assert predicted_ttfa_s(house.scheduler, chunk, 0.0) == pytest.approx(32 * 2e-3 + 1e-3)
    (one,) = house.ask([chunk])
    house.run(1.0)
    assert house.ttfa(one) == pytest.approx(32 * 2e-3)


def test_listeners_beyond_the_target_are_refused_and_the_rest_are_in_time():
    house = House()
    let_in, refused = [], 0
    for _ in range(60):
        try:
            let_in += house.ask(speech(100))
        except Overloaded:
            refused += 1
    assert len(let_in) > 3 and refused > 5
    house.run(5.0)
    assert max(house.ttfa(one) for one in let_in) <= 0.3


def test_after_the_time_that_was_said_there_is_room():
    house = House()
    with pytest.raises(Overloaded) as caught:
        while True:
            house.ask(speech(100))
    said = caught.value.retry_after_s
    assert 0.05 <= said < 0.3
    house.run(0.5 * said)
    if said > 0.06:  # the least that is ever said
        with pytest.raises(Overloaded):
            house.ask(speech(100))
    house.run(1.3 * said)
    house.ask(speech(100))


def test_nobody_is_let_in_whose_playback_would_run_dry():
    """The first chunks fit; what comes after them is more than the device can do."""
    house = House()
    with pytest.raises(Overloaded):
        for _ in range(100):
            house.ask(speech(10, *[900] * 5, seconds=0.5))
            house.run(house.clock.now + 0.05)
    house.run(60.0)
    heard = {}
    for end in sorted(house.ended, key=lambda one: one.sequence.seq_id):
        request, chunk = end.sequence.seq_id // 6, end.sequence.chunk
        heard.setdefault(request, end.at)
        assert end.at <= heard[request] + 1e-9, "it came after the audio before it had ended"
        heard[request] = max(heard[request], end.at) + chunk.estimated_s


def test_standard_requests_wait_and_do_not_keep_listeners_out():
    house = House()
    for _ in range(200):
        house.ask(speech(300, 300), Terms("standard", timeout_s=600.0))
    assert house.ask(speech(100)) == [400]
    house.run(2.0)
    assert house.ttfa(400) <= 0.3


def test_a_standard_request_that_could_not_be_done_in_its_time_is_refused():
    house = House()
    for _ in range(200):
        house.ask(speech(300, 300), Terms("standard"))
    house.ask(speech(300), Terms("standard", timeout_s=100.0))
    with pytest.raises(Overloaded, match="within 1 s") as caught:
        house.ask(speech(300), Terms("standard", timeout_s=1.0))
    work = 200 * 600 * 32 + 300 * 33
    assert caught.value.retry_after_s == pytest.approx(work / COST.pace(2_000) - 1.0, rel=0.1)


def test_jobs_are_let_in_whatever_the_load():
    house = House()
    for _ in range(300):
        house.ask(speech(300), Terms("batch"))
    assert house.scheduler.waiting_by_tier["batch"] == 300


def test_what_continues_is_never_refused():
    house = House(queue_limit=1)
    house.ask(speech(100))
    house.ask(speech(100, 100), Terms("interactive", more=True))
    assert house.rows == 3


def test_a_full_queue_refuses_its_own_tier_only():
    scheduler = Scheduler(limits(queue_limit=3), COST)
    for number in range(3):
        scheduler.add(row(number, tokens=100, steps=1_000))
    with pytest.raises(Overloaded, match="standard queue is full") as caught:
        admit(scheduler, speech(10), Terms(), 0.0)
    one_of_three = 100 * 1_000 / COST.pace(100)
    assert caught.value.retry_after_s == pytest.approx(one_of_three)
    assert [urgency for urgency, _ in admit(scheduler, speech(10), Terms("batch"), 0.0)] == [Urgency.IDLE]


def test_a_request_larger_than_the_bound_is_taken_by_an_empty_queue():
    scheduler = Scheduler(limits(queue_limit=3))
    admit(scheduler, speech(*[10] * 10), Terms(), 0.0)
    scheduler.add(row(0))
    with pytest.raises(Overloaded):
        admit(scheduler, speech(10, 10, 10), Terms(), 0.0)


def test_chunks_of_a_listener_are_wanted_by_when_they_are_heard():
    found = admit(Scheduler(limits(), COST), speech(10, 10, 10), LISTENER, 100.0)
    assert found == [
        (Urgency.FIRST, pytest.approx(100.3)),
        (Urgency.LISTENING, pytest.approx(101.75)),
        (Urgency.LISTENING, pytest.approx(103.75)),
    ]


def test_what_follows_a_first_chunk_is_wanted_when_that_has_been_heard():
    rest = speech(10, 10, 10)[1:]
    found = admit(Scheduler(limits(), COST), rest, Terms("interactive", more=True, heard_s=1.5), 100.0)
    assert found == [(Urgency.LISTENING, pytest.approx(101.25)), (Urgency.LISTENING, pytest.approx(103.25))]
