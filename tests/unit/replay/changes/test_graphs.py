"""The step from a CUDA graph: new step times worked out by hand. Times in ns."""

from __future__ import annotations

from diagnose.replay.change import Assume
from diagnose.replay.changes.graphs import CudaGraph
from diagnose.replay.model import Kind
from tests.unit.replay.changes.jobs import Job, after, because, changed, step_of


def launching(kernels: int = 4, *, thread: str = "main") -> Job:
    """Steps of ``kernels`` x 10 us: 7 us of host work and 3 of launching for a kernel of 2 us."""
    job = Job()
    for step in range(2):
        previous = None
        for number in range(kernels):
            on = thread if number else "main"
            launch = job.call(work=7_000, takes=3_000, thread=on)
            # One after the other, so that the pause between them is seen.
            begin = 3.2 * (step * kernels + number)
            job.kernel("small", 2_000, by=launch, lag=5_000, pause=1_200, at=(begin, 2))
            if previous is not None and on != "main" and number == 1:
                job.waits_for(previous, launch, lag=1_000)
            previous = launch
        job.next_step()
    return job


def test_one_launch_for_all_kernels() -> None:
    """40 a step by launching. From a graph of 4 the host takes 7 + 2.5 + 4 x 0.06, the GPU
    4 x 2 + 3 pauses of 0.7 and one of 1.2 between graphs: 11.3."""
    model = launching().model()
    assert step_of(model) == 40_000
    assert after(model, CudaGraph()) == 4 * 2_000 + 3 * 700 + 1_200


def test_the_host_before_the_first_launch_stays() -> None:
    """With 1 kernel the host is the limit: 7 + 2.56; with least gain 7 + 5.2; with most gain
    nothing stays of the 7, as no data was loaded: 2.501, so the GPU with its 3.2 is."""
    model = launching(1).model()
    assert step_of(model) == 10_000
    assert after(model, CudaGraph()) == 7_000 + 2_500 + 60
    assert after(model, CudaGraph(), Assume.LEAST) == 7_000 + 5_000 + 200
    assert after(model, CudaGraph(), Assume.MOST) == 2_000 + 1_200


def test_pauses_stay_for_the_least_gain() -> None:
    model = launching().model()
    found = [changed(model, CudaGraph(), one).operations.pause_ns[:4].tolist() for one in Assume]
    assert found == [[1_200] * 4, [1_200, 700, 700, 700], [1_200, 400, 400, 400]]


def test_pauses_that_were_not_seen_are_those_of_graphs() -> None:
    """Kernels of 2 us every 10 us, as they are launched: their pause of 1.2 us is assumed."""
    job = Job()
    for number in range(4):
        launch = job.call(work=7_000, takes=3_000, at=(10 * number, 3))
        job.kernel("small", 2_000, by=launch, lag=5_000, pause=1_200, at=(10 * number + 5, 2))
    model = job.model()
    found = [changed(model, CudaGraph(), one).operations.pause_ns.tolist() for one in Assume]
    assert found == [[1_200] * 4, [1_200, 500, 500, 500], [1_200, 250, 250, 250]]


def test_work_of_other_threads_is_captured_too() -> None:
    """The backward pass on its own thread: its calls and the handoff to it take nothing."""
    model = launching(thread="backward").model()
    assert after(model, CudaGraph()) == 4 * 2_000 + 3 * 700 + 1_200
    found = changed(model, CudaGraph())
    kinds = found.dependencies.kind
    assert found.dependencies.lag_ns[kinds == Kind.HANDOFF].tolist() == [0, 0]
    launches = found.dependencies.from_node[kinds == Kind.LAUNCH] - found.num_ops
    assert launches.tolist() == [0, 0, 0, 0, 4, 4, 4, 4]


def test_a_wait_of_the_host_splits_the_graph() -> None:
    """Two kernels, a wait for the second, one more kernel: two graphs a step."""
    job = Job()
    for _ in range(2):
        job.kernel("a", 2_000, by=job.call(work=7_000, takes=3_000))
        second = job.kernel("b", 2_000, by=job.call(work=7_000, takes=3_000))
        wait = job.call("cudaStreamSynchronize", work=100, takes=200, waits=True)
        job.waits_for(second, wait, lag=50)
        job.kernel("c", 2_000, by=job.call(work=7_000, takes=3_000))
        job.next_step()
    model = job.model()
    found = changed(model, CudaGraph(), Assume.LIKELY)
    launches = found.dependencies.from_node[found.dependencies.kind == Kind.LAUNCH] - found.num_ops
    assert launches.tolist() == [0, 0, 3, 4, 4, 7]
    assert found.calls.waits.tolist() == model.calls.waits.tolist()
    # The first graph is launched after 7 of work; its kernels end 4 later (no pauses here); the
    # host returns 0.05 after that, works 7 and launches the second for 2.56.
    assert step_of(found) == 7_000 + 4_000 + 50 + 7_000 + 2_560


def test_copies_from_the_host_stay_outside() -> None:
    job = Job()
    job.copy("HtoD (Pinned -> Device)", 500, by=job.call("cudaMemcpyAsync", work=100, takes=3_000))
    for _ in range(2):
        job.kernel("a", 2_000, by=job.call(work=7_000, takes=3_000))
    found = changed(job.model(), CudaGraph())
    assert found.calls.work_ns.tolist() == [100, 7_000, 0]
    assert found.calls.call_ns.tolist() == [3_000, 2_500 + 120, 0]


def test_pauses_as_in_graphs_that_were_recorded() -> None:
    job = Job()
    graph = job.call("cudaGraphLaunch", takes=5_000)
    for pause in (900, 500, 500, 600):
        job.kernel("a", 2_000, by=graph, pause=pause)
    for _ in range(2):
        job.kernel("b", 2_000, by=job.call(takes=3_000), pause=1_300)
    found = changed(job.model(), CudaGraph())
    assert found.operations.pause_ns.tolist() == [900, 500, 500, 600, 1_300, 500]


def test_what_comes_from_graphs_already() -> None:
    job = Job()
    job.kernel("a", 2_000, by=job.call("cudaGraphLaunch"))
    assert because(job.model(), CudaGraph()).endswith("from CUDA graphs already")
    job = Job()
    job.kernel("a", 2_000)
    assert because(job.model(), CudaGraph()) == "no launch of the replayed steps is known"
