"""What `tcbench list` says of scenarios and rungs on a device."""

import json

from tcbench.engine.accelerators.device import Device
from tcbench.engine.rung import Package
from tcbench.views import list as catalogue

CPU = Device("cpu", "A Processor", 2**34)


def listed(capsys) -> dict:
    catalogue.show(CPU, as_json=True)
    return json.loads(capsys.readouterr().out)


def test_a_rung_whose_backend_lacks_its_package_is_not_here(monkeypatch, capsys):
    monkeypatch.setattr(Package, "is_installed", lambda package: package.module != "torch")
    missing = {(rung["backend"], rung["name"]): rung["missing"] for rung in listed(capsys)["rungs"]}
    assert missing["chainer", "nhwc"] is None
    assert missing["torch", "nhwc"] == "needs the package torch: uv pip install torch --torch-backend=cpu"
    assert missing["torch", "tf32"] == "needs cuda"
