"""Candidates with which a shell completes the values of options."""


def complete_scenario(incomplete: str) -> list[str]:
    """Complete the name of a scenario that comes with tcbench."""
    from tcbench.run.scenario import shipped

    return [name for name in shipped() if name.startswith(incomplete)]


def complete_config(incomplete: str) -> list[str]:
    """Complete the name of a config of a scenario that comes with tcbench."""
    from tcbench.run.scenario import load, shipped

    names = dict.fromkeys(config.name for name in shipped() for config in load(name).configs)
    return [name for name in names if name.startswith(incomplete)]


def complete_device(incomplete: str) -> list[str]:
    """Complete a device of this machine, or "auto"."""
    from tcbench.run.devices import device_selectors

    return [name for name in device_selectors() if name.startswith(incomplete)]


def complete_gpu(incomplete: str) -> list[str]:
    """Complete the name of a GPU whose data sheet comes with tcbench."""
    from tcbench.hardware.gpus import NAMES

    return [name for name in NAMES if name.lower().startswith(incomplete.lower())]


def complete_model(incomplete: str) -> list[str]:
    """Complete the name of a model that backends can build."""
    from tcbench.engine.api import known_models

    return [name for name in known_models() if name.startswith(incomplete)]
