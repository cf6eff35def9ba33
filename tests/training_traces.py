"""Small traces of training, made by hand."""

from tcbench.core.recording import Activity, ApiCall
from tcbench.core.training_trace import TrainingTrace, UserRange

MAIN, AUTOGRAD = (1, 1), (1, 2)


def launch(number, call_ns, begin_ns, end_ns, name="k", stream=7, thread=MAIN, device=0):
    """Return a launch of 10 ns and its work."""
    call = ApiCall("cudaLaunchKernel", thread[1], number, call_ns, call_ns + 10, thread[0])
    return call, Activity("kernel", name, stream, number, begin_ns, end_ns, device=device, process=thread[0])


def make_trace(launches, ranges=(), **changes):
    """Return the trace of launches and of the main thread's ranges."""
    fields = {
        "source": "pytorch",
        "device_name": "GPU",
        "begin_ns": 0,
        "end_ns": 10_000,
        "activities": tuple(sorted((work for _, work in launches), key=lambda work: work.begin_ns)),
        "calls": tuple(call for call, _ in launches if call is not None),
        "ranges": tuple(UserRange(name, MAIN, begin, end) for name, begin, end in ranges),
        "operators": {},
    }
    return TrainingTrace(**(fields | changes))
