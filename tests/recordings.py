"""Recordings for tests: two steps of two phases, with what a GPU did of them."""

from tcbench.core.recording import Activity, ApiCall, HostSpan, Recording, Title

TITLE = Title(label="fp16, batch size 64", device="cuda:0", device_name="Tesla V100", batch_size=64)
MAIN, OTHER = 100, 200
STEP, STEM, DALI = 7, 13, 21
"""Streams: the steps', one that only the other thread launches on within steps, the input's."""


def host(first: int = 5) -> tuple[HostSpan, ...]:
    """Steps of 1000 ns: forward in the first 400, backward in the next 500."""
    spans = []
    for n in range(2):
        begin, number = n * 1000, first + n
        spans += [
            HostSpan("phase", "forward", number, "forward", begin, begin + 400),
            HostSpan("phase", "backward", number, "backward", begin + 400, begin + 900),
            HostSpan("step", "step", number, None, begin, begin + 1000),
        ]
    return tuple(spans)


def recording(**changes) -> Recording:
    fields = {
        "thread": MAIN,
        "phases": ("forward", "backward"),
        "spans": host(),
        "calls": (
            ApiCall("cudaLaunchKernel", MAIN, 1, 100, 110),
            ApiCall("cudaLaunchKernel", OTHER, 2, 500, 510),
            ApiCall("cudaLaunchKernel", OTHER, 3, 520, 530),
            ApiCall("cudaMemcpyAsync", MAIN, 4, 1100, 1110),
            ApiCall("cudaLaunchKernel", MAIN, 5, 950, 955),
        ),
        "activities": (
            Activity("kernel", "conv", STEP, 1, 700, 800),
            Activity("kernel", "dgrad", STEP, 2, 800, 900),
            Activity("kernel", "jpeg", DALI, 3, 800, 900),
            Activity("copy", "memcpy HtoD", STEP, 4, 1200, 1300, 4096),
            Activity("kernel", "between phases", STEP, 5, 1000, 1010),
            Activity("kernel", "of nobody", STEP, 99, 1400, 1410),
        ),
    }
    return Recording(**(fields | changes))
