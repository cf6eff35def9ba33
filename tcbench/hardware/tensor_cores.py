"""The generations of NVIDIA's Tensor Cores, with their GPUs and number formats. Standard library only.

Source: "CUDA Programming Guide", appendix "Compute Capabilities", data types of Tensor Cores by compute capability; for
Volta, "Tesla V100 GPU Architecture" (2017)."""

from dataclasses import dataclass

FORMATS = ("fp16", "tf32", "bf16", "fp8")
"""The formats for training networks, in the order of their introduction."""

Capability = tuple[int, int]


@dataclass(frozen=True)
class Generation:
    """A generation of Tensor Cores. `capabilities`: the compute capabilities of the GPUs that have it."""

    number: int
    architecture: str
    capabilities: tuple[Capability, ...]
    formats: tuple[str, ...]


_GENERATIONS = (
    Generation(1, "Volta", ((7, 0),), FORMATS[:1]),
    Generation(2, "Turing", ((7, 5),), FORMATS[:1]),
    Generation(3, "Ampere", ((8, 0), (8, 6)), FORMATS[:3]),
    Generation(4, "Ada Lovelace", ((8, 9),), FORMATS),
    Generation(4, "Hopper", ((9, 0),), FORMATS),
    Generation(5, "Blackwell", ((10, 0), (10, 3), (12, 0)), FORMATS),
)


def generation_of(capability: Capability) -> Generation | None:
    """Return the generation of Tensor Cores for a compute capability; None without Tensor Cores or if unknown."""
    return next((generation for generation in _GENERATIONS if capability in generation.capabilities), None)


def oldest_with(fmt: str) -> Capability:
    """Return the lowest compute capability with Tensor Cores for a format."""
    return next(generation.capabilities[0] for generation in _GENERATIONS if fmt in generation.formats)
