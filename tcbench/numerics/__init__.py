"""Does fp16 train like fp32? What is asked of a training process, what it answers, and the document that is kept.

`form` owns the structures and their JSON, `runner` the processes, `worker` what happens in one, `patterns` the images.
Statistics and verdicts are derived in `tcbench.analysis`.
"""
