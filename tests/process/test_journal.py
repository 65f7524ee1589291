from workbench.engine.process.journal import Journal
from workbench.engine.process.protocol import (
    Announcement,
    Arrival,
    OutputBatch,
    Workload,
    WorkloadEnded,
    WorkloadStarted,
)
from workbench.request import RequestOutput, RequestSpec, SamplingParams


def spec() -> RequestSpec:
    return RequestSpec(prompt="hello", sampling=SamplingParams(seed=7, max_tokens=9))


def output(request_id: str, tokens: list[int], status: str = "running") -> OutputBatch:
    return OutputBatch(
        [
            RequestOutput(
                request_id=request_id,
                new_token_ids=tokens,
                new_text="x" * len(tokens),
                status=status,
                num_output_tokens=len(tokens),
            )
        ]
    )


def test_a_resumed_request_keeps_its_tokens_text_and_seed():
    journal = Journal()
    journal.record(Announcement("4", spec()))
    journal.record(output("4", [1, 2]))
    resumed = journal.unfinished()[0].resumed_spec()
    assert (resumed.request_id, resumed.resume_tokens, resumed.sampling.seed) == ("4", [1, 2], 7)
    journal.record(Announcement("4", resumed))  # the new process accepts it
    journal.record(output("4", [3], "finished_length"))
    entry = journal.entries["4"]
    assert (entry.token_ids, entry.text, entry.is_finished) == ([1, 2, 3], "xxx", True)
    journal.record(output("4", [9]))
    assert entry.token_ids == [1, 2, 3]
    assert journal.unfinished() == []
    assert journal.next_request_number() == 5


def test_a_fresh_start_voids_tokens_of_another_vocabulary():
    journal = Journal()
    journal.record(Announcement("1", spec()))
    journal.record(output("1", [1, 2]))
    journal.record(Announcement("1", spec(), fresh=True))
    assert journal.entries["1"].token_ids == []


def test_workloads_remember_where_they_stand():
    journal = Journal()
    plan = Workload(name="w", arrivals=[Arrival(0.0, spec())] * 3)
    journal.record(WorkloadStarted(plan))
    journal.record(Announcement("1", spec(), "w", 0))
    journal.record(Announcement("2", spec(), "w", 1))
    journal.record(output("1", [1], "finished_stopped"))
    assert journal.workloads["w"].next_index == 2
    (again,) = journal.resumed_workloads()
    assert (again.first_index, again.in_flight, again.conversations) == (2, {"2": 1}, {})
    journal.record(WorkloadEnded("w"))
    assert journal.workloads == {}


def test_old_finished_requests_are_forgotten_but_never_running_ones():
    journal = Journal(max_finished=2)
    journal.record(Announcement("1", spec()))
    for number in range(2, 8):
        journal.record(Announcement(str(number), spec()))
        journal.record(output(str(number), [1], "finished_length"))
    # trimmed when the next one is accepted
    assert list(journal.entries) == ["1", "5", "6", "7"]


def test_conversations_that_go_on_are_kept_for_a_restart():
    first = RequestSpec(messages=[{"role": "user", "content": "hi"}])
    journal = Journal()
    plan = Workload(name="w", arrivals=[Arrival(0.0, first), Arrival(0.0, first, follows=0)])
    journal.record(WorkloadStarted(plan))
    journal.record(Announcement("1", first, "w", 0))
    journal.record(output("1", [1, 2], "finished_stopped"))
    (again,) = journal.resumed_workloads()
    said = [("user", "hi"), ("assistant", "xx")]
    assert [(m["role"], m["content"]) for m in again.conversations[0]] == said
