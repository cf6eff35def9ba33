"""Training runs for `tcbench numerics`: accuracy, histograms of gradients, and the distances of configs from fp32."""
