from tcbench.hardware import tensor_cores


def test_a_format_begins_with_a_compute_capability():
    oldest = {fmt: tensor_cores.oldest_with(fmt) for fmt in tensor_cores.FORMATS}
    assert oldest == {"fp16": (7, 0), "tf32": (8, 0), "bf16": (8, 0), "fp8": (8, 9)}


def test_no_compute_capability_has_two_generations():
    capabilities = [capability for generation in tensor_cores._GENERATIONS for capability in generation.capabilities]
    assert capabilities == sorted(set(capabilities))
