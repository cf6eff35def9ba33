"""Runs scenarios: plan, runner, gate, baselines, revisions and forecast, from a scenario to records."""
