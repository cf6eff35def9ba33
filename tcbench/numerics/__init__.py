"""Does fp16 train like fp32? `worker` is the process that trains, `gradients` counts magnitudes, `judgement` and
`equivalence` derive verdicts from a document of `tcbench.core.numerics`, `parity` holds rungs against tolerances.
"""
