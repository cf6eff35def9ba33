import pytest

from tcbench.hardware import gpus, tensor_cores


@pytest.mark.parametrize(
    ("name", "number", "architecture", "formats"),
    [
        ("V100", 1, "Volta", ("fp16",)),
        ("T4", 2, "Turing", ("fp16",)),
        ("A100", 3, "Ampere", ("fp16", "tf32", "bf16")),
        ("L40S", 4, "Ada Lovelace", ("fp16", "tf32", "bf16", "fp8")),
        ("H100", 4, "Hopper", ("fp16", "tf32", "bf16", "fp8")),
        ("B200", 5, "Blackwell", ("fp16", "tf32", "bf16", "fp8")),
    ],
)
def test_each_gpu_has_its_generation_and_formats(name, number, architecture, formats):
    cores = tensor_cores.of(gpus.load(name).compute_capability)
    assert (cores.number, cores.architecture, cores.formats) == (number, architecture, formats)


@pytest.mark.parametrize("capability", [(6, 1), (9, 9)])
def test_of_others_nothing_is_claimed(capability):
    assert tensor_cores.of(capability) is None


def test_a_format_begins_with_a_compute_capability():
    oldest = {fmt: tensor_cores.oldest_with(fmt) for fmt in tensor_cores.FORMATS}
    assert oldest == {"fp16": (7, 0), "tf32": (8, 0), "bf16": (8, 0), "fp8": (8, 9)}


def test_no_compute_capability_has_two_generations():
    capabilities = [one for generation in tensor_cores._GENERATIONS for one in generation.capabilities]
    assert capabilities == sorted(set(capabilities))
