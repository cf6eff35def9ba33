"""Does fp16 train like fp32? Verdicts derived from a document of `tcbench.core.numerics`, pure functions all."""
