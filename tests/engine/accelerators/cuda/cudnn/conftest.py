"""A cuDNN frontend that plans nothing: it writes down graphs and offers the plans that a test gives it."""

import ctypes
import types
from dataclasses import dataclass, field

import numpy as np
import pytest

from tcbench.core.cache import Cache
from tcbench.engine.accelerators.cuda.cudnn import libraries


class NotSupported(Exception):
    """Not a RuntimeError, as in the compiled frontend."""


@dataclass
class Offer:
    """A plan that the heuristic offers. `workspace_known` as on engines that say so before they are built; `fails` is
    what cuDNN says instead of building it."""

    tag: str
    workspace: int = 0
    runtime_compiled: bool = False
    notes: tuple[str, ...] = ()
    workspace_known: bool = True
    fails: str = ""
    runs: bool = True


@dataclass
class Tensor:
    settings: dict = field(default_factory=dict)

    def __getattr__(self, name):
        if not name.startswith("set_"):
            raise AttributeError(name)

        def setter(value):
            self.settings[name.removeprefix("set_")] = value
            return self

        return setter


class Names:
    """An enumeration whose members are their names."""

    def __getattr__(self, name):
        return name


class FakeFrontend:
    """A fake of the module `cudnn`. `offers`: the plans of every graph; `executed`: what ran; `settings`: each graph's
    settings."""

    Offer = Offer
    data_type = scalar_type = cuda_graph_retention = heur_mode = numerical_note = behavior_note = Names()
    cudnnGraphNotSupportedError = NotSupported  # noqa: N815

    def __init__(self):
        self.offers = [Offer("first"), Offer("second"), Offer("third")]
        self.supported = self.serializable = True
        self.refuses_to_restore = None
        self.defined = self.restored = 0
        self.built, self.executed, self.settings = [], [], []
        frontend = self

        class Graph:
            """The compiled graph, as far as tcbench uses it."""

            def __init__(self, **settings):
                frontend.settings.append(settings)
                self.tensors = []
                self.operations = []
                self.selected = None
                self.barred = set()
                self.limit = float("inf")

            def tensor(self, **settings):
                self.tensors.append(Tensor(settings))
                return self.tensors[-1]

            def tensor_scalar(self, value, kind):
                """Keeps what float32 holds exactly as that, all else as a double."""
                exact = float(np.float32(value)) == value
                return Tensor({"value": value, "kind": kind, "kept_as": "FLOAT" if exact else "DOUBLE"})

            def _does(self, operation, results, settings):
                tensors = [Tensor() for _ in range(results)]
                self.operations.append((operation, settings, tensors))
                self.tensors.extend(tensors)
                return tensors if results > 1 else tensors[0]

            def __getattr__(self, name):
                results = {
                    "batchnorm": 5,
                    "batchnorm_backward": 3,
                    "genstats": 2,
                    **dict.fromkeys(["conv_fprop", "conv_dgrad", "conv_wgrad", "matmul"], 1),
                    **dict.fromkeys(["add", "relu", "cmp_gt", "scale"], 1),
                }
                if name not in results:
                    raise AttributeError(name)
                return lambda **settings: self._does(name, results[name], settings)

            def validate(self):
                frontend.defined += 1

            def build_operation_graph(self):
                pass

            def create_execution_plans(self, modes):
                if not frontend.supported:
                    raise NotSupported("No valid engine configs\nfor this graph")

            def deselect_numeric_notes(self, notes):
                self.barred |= set(notes)

            def deselect_workspace_greater_than(self, limit):
                self.limit = limit

            def get_execution_plan_count(self):
                return len(frontend.offers)

            def get_plan_name_at_index(self, index):
                return frontend.offers[index].tag

            def get_behavior_notes_for_plan_at_index(self, index):
                return ["RUNTIME_COMPILATION"] if frontend.offers[index].runtime_compiled else []

            def get_workspace_size_plan_at_index(self, index):
                return frontend.offers[index].workspace

            def get_workspace_size(self):
                return frontend.offers[self.selected].workspace

            def build_plan_at_index(self, index):
                offer = frontend.offers[index]
                if self.barred & set(offer.notes):
                    raise NotSupported("Deselecting execution plan")
                if offer.workspace_known and offer.workspace > self.limit:
                    raise NotSupported(f"Skipping plan since workspace violation. Requires {offer.workspace}")
                if offer.fails:
                    raise NotSupported(offer.fails)
                frontend.built.append(offer.tag)
                self.selected = index

            def serialize(self, as_bytes):
                if not frontend.serializable:
                    raise RuntimeError("this engine cannot be serialized")
                uids = sorted(t.settings["uid"] for t in self.tensors if "uid" in t.settings)
                return repr((frontend.offers[self.selected].tag, uids)).encode()

            def deserialize(self, data):
                if frontend.refuses_to_restore is not None:
                    raise frontend.refuses_to_restore
                tag, uids = eval(data)
                self.selected = [offer.tag for offer in frontend.offers].index(tag)
                self.tensors = [Tensor({"uid": uid}) for uid in uids]
                frontend.restored += 1

            def _prepare_variant_pack_template(self):
                pass

            def _get_variant_pack_uids_sorted(self):
                return sorted(t.settings["uid"] for t in self.tensors if "uid" in t.settings)

            def _execute_with_raw_ptrs(self, pointers, n, workspace, handle, place=-1):
                offer = frontend.offers[self.selected if place < 0 else place]
                if not offer.runs:
                    raise RuntimeError("does not run")
                addresses = list((ctypes.c_int64 * n).from_address(pointers))
                frontend.executed.append((offer.tag, addresses, workspace, handle))

        self._pybind_module = types.SimpleNamespace(backend_graph=Graph)


@pytest.fixture
def cache(tmp_path):
    return Cache(tmp_path)


@pytest.fixture
def frontend(monkeypatch):
    fake = FakeFrontend()
    monkeypatch.setattr(libraries, "frontend", lambda: fake)
    monkeypatch.setattr(libraries, "version", lambda: "9.28.0")
    monkeypatch.setattr(libraries, "nvrtc_version", lambda: "13.0")
    monkeypatch.setattr(libraries, "frontend_version", lambda: "1.32.0")
    return fake


class FakeBench:
    """A workbench whose device times a test chooses by plan tag, in seconds."""

    def __init__(self, frontend, times):
        self.frontend = frontend
        self.times = times
        self.asked_workspace = None
        self.held = False

    def addresses(self, work):
        self.held = True
        return [1000 * (index + 1) for index in range(len(work.operands))]

    def workspace(self, n_bytes):
        self.asked_workspace = n_bytes
        return 5

    def times_s(self, run, repeats, runs_per_repeat):
        for _ in range(repeats * runs_per_repeat):
            run()
        tag = self.frontend.executed[-1][0]
        # An outlier, so that only a median gives the time that the test chose.
        return [self.times[tag]] * (repeats - 1) + [100.0]

    def release(self):
        self.held = False


@pytest.fixture
def bench(frontend):
    return lambda **times: FakeBench(frontend, times)
