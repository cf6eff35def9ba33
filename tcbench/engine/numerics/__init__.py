"""Training to an end and looking at gradients on the way, and how far configs are from fp32. `worker` is the process
that trains, `gradients` counts magnitudes."""
