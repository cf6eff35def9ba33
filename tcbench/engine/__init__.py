"""All that happens inside a trial: a cell's session is built and measured. No other room imports a framework."""
