"""From a scenario to records: plan, runner, gate, baselines, revisions, forecast."""
