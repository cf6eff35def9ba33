"""The rule by which tools/planted.py draws faults, names them, and finds them again after code has moved.

Rooms get faults in proportion to their lines of code. Within a room the kinds of edit alternate, and the lines of each
kind are drawn evenly. An edit changes a comparison, an operator, a condition, a number, a flag, an exception or a
return value, or drops a statement, an element or a keyword argument. Code that no test should check is left out:
annotations, assertions, texts, messages, logging, decorators, the looks of charts and pages, and waiting times.

A fault is named by its function and its edit, never by a line. It is searched for under its name, or the new name in
`RENAMED`, then in every function of that name in the package.
"""

from __future__ import annotations

import ast
import functools
import random
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Functions that were renamed, or whose code moved to another function. Functions that only moved need no entry.
RENAMED = [
    (
        "tcbench.engine.backends.chainer.network._tree.operation",
        "tcbench.engine.backends.chainer.network._builder.operation",
    ),
    (
        "tcbench.backends.chainer.optimizers.BatchedSGD.read",
        "tcbench.engine.backends.chainer.optimizers.BatchedSGD.use_gradients",
    ),
    ("tcbench.hardware.machine.loaded_files", "tcbench.hardware.machine.files_in_project"),
    ("tcbench.cli.app._one_line", "tcbench.show.app._one_line_usage_errors"),
    ("tcbench.views.scaling.chart._how", "tcbench.commands.run.scaling_chart._line_note"),
    ("tcbench.numerics.worker.Counting.gradients", "tcbench.engine.numerics.worker.GradientCounter.gradients"),
    ("tcbench.tracing.attribution.assemble.at", "tcbench.tracing.attribution.assemble.seconds"),
    ("tcbench.tracing.nsys.with_own", "tcbench.tracing.nsys.merge_recordings"),
    ("tcbench.backends.torch.batches.Arriving.__init__", "tcbench.engine.backends.torch.batches.TensorFeed.__init__"),
    ("tcbench.backends.own.checked", "tcbench.engine.backends.own.checked_session"),
    ("tcbench.analysis.claims._not_compared", "tcbench.analysis.claims._unmeasured_outcome"),
    ("tcbench.analysis.bottleneck._gaps", "tcbench.analysis.bottleneck._idle_gaps"),
    ("tcbench.backends.chainer.kfac.share", "tcbench.engine.backends.chainer.kfac.assign_ranks"),
    ("tcbench.backends.feeds.dali.DaliFeed._explained", "tcbench.engine.feeds.dali.DaliFeed._specific_error"),
    ("tcbench.show.charts.waterfall._Scale.of", "tcbench.commands.plot.ladder_chart._LadderScale.fit"),
    ("tcbench.analysis.diff.changed", "tcbench.commands.diff.differences.changed_cells"),
    ("tcbench.show.diff.shared_out", "tcbench.commands.diff.table.shares_are_meaningful"),
    ("tcbench.numerics.judgement.by_training", "tcbench.commands.numerics.judgement.document_evidence"),
    ("tcbench.cli.parity.hold", "tcbench.commands.numerics.parity.check_configs"),
    ("tcbench.run.numerics_runner.Runner.run", "tcbench.commands.numerics.runner.NumericsRunner.run"),
    ("tcbench.show.page.wording.why", "tcbench.show.page.wording.short_reason"),
    ("tcbench.show.charts.page.rates", "tcbench.show.charts.page.set_rate_axis"),
    ("tcbench.run.profiler.Take._behind", "tcbench.commands.profile.profiler.ProfiledTrial._nsys_command"),
    ("tcbench.run.profiler.Take._read", "tcbench.commands.profile.profiler.ProfiledTrial._read"),
    ("tcbench.present.naming.settings_apart", "tcbench.show.naming.setting_headings"),
    ("tcbench.present.naming.alone_network", "tcbench.show.naming.network_suffix"),
    ("tcbench.show.naming.apart", "tcbench.show.naming.distinguishing_settings"),
    ("tcbench.show.charts.page.Page._legend", "tcbench.show.charts.page.ChartPage._legend"),
    ("tcbench.accelerators.cuda.cupti.Activities._add", "tcbench.engine.accelerators.cuda.cupti.CuptiActivities._add"),
    ("tcbench.accelerators.cuda.prospects.of.way", "tcbench.engine.accelerators.cuda.prospects.forecast_works.way"),
    ("tcbench.accelerators.cuda.checkup._company", "tcbench.engine.accelerators.cuda.checkup._other_processes"),
    ("tcbench.backends.torch.sites.Gpu.__init__", "tcbench.engine.backends.torch.sites.GpuSite.__init__"),
    (
        "tcbench.accelerators.cpu.numpy.accelerator.NumpyAccelerator.upload",
        "tcbench.engine.accelerators.cpu.arrays.HostArrays.upload",
    ),
    (
        "tcbench.accelerators.cpu.onednn.pointwise.relu_backward.describe",
        "tcbench.engine.accelerators.cpu.onednn.pointwise._flat.flat",
    ),
    (
        "tcbench.engine.accelerators.cpu.reference.convolution._from_columns",
        "tcbench.engine.accelerators.cpu.reference.convolution.fprop.compute",
    ),
    (
        "tcbench.engine.accelerators.cpu.reference.update.update_by",
        "tcbench.engine.accelerators.cpu.reference.update.batched_update",
    ),
    ("tcbench.analysis.bisection.Search._joint", "tcbench.commands.gate.bisect.bisection.CommitSearch._joint"),
    ("tcbench.analysis.diff.Part.ratio", "tcbench.commands.diff.differences.StepPart.ratio"),
    ("tcbench.analysis.eta.Estimate.step_s", "tcbench.run.eta.TimeLeft.step_s"),
    ("tcbench.analysis.roofline.Part.intensity", "tcbench.commands.roofline.roofline.WorkPart.intensity"),
    ("tcbench.backends.chainer.numerics.training._data", "tcbench.engine.numerics.training._Session.feed"),
    ("tcbench.backends.chainer.numerics.training.train", "tcbench.engine.numerics.training._Session.optimizer_spec"),
    ("tcbench.backends.torch.session.Step.phases", "tcbench.engine.backends.session.BaseStep.phases"),
    ("tcbench.backends.torch.session._images", "tcbench.engine.backends.torch.session.TorchSession.build"),
    ("tcbench.cli.run.probe", "tcbench.run.ranks.probe_largest"),
    ("tcbench.run.cluster.executor", "tcbench.commands.submit.cluster.job_script"),
    ("tcbench.show.forecast._figures", "tcbench.commands.forecast.table.table"),
    ("tcbench.show.numerics.costs_table", "tcbench.commands.numerics.table._accuracy"),
    ("tcbench.show.numerics.costs_table", "tcbench.commands.numerics.table.costs_table.time_ratio"),
    ("tcbench.show.page.environment.section", "tcbench.commands.report.environment.environment_section"),
    ("tcbench.show.page.scaling.sentence", "tcbench.commands.run.scaling_chart.scaling_sentence"),
    ("tcbench.show.page.summary.lead", "tcbench.commands.report.summary.summary_lead"),
    ("tcbench.show.page.summary.section", "tcbench.commands.report.summary.summary_section"),
    ("tcbench.views.report.trials.section", "tcbench.commands.report.trials.trials_section"),
    ("tcbench.show.page.trials._row", "tcbench.commands.report.trials._machine"),
    ("tcbench.run.revisions.tree", "tcbench.commands.gate.revisions.check_out"),
    ("tcbench.commands.gate.bisect._ends", "tcbench.commands.gate.bisect.command._measure_ends"),
    ("tcbench.cli.bisect._not_slower", "tcbench.commands.gate.bisect.command._state_without_loss"),
    ("tcbench.run.bisect._measured", "tcbench.commands.gate.bisect.search._with_round"),
    ("tcbench.cli.comparisons.comparable", "tcbench.commands.compare.outcome.with_allowed"),
    ("tcbench.analysis.history.history", "tcbench.commands.history.history.build_history"),
]

KINDS = ("comparison", "arithmetic", "condition", "value", "statement", "part", "outcome")
# Operators as Python writes them, and their replacements.
OPERATORS: dict[type, tuple[str, type]] = {
    ast.Lt: ("<", ast.LtE), ast.LtE: ("<=", ast.Lt), ast.Gt: (">", ast.GtE), ast.GtE: (">=", ast.Gt),
    ast.Eq: ("==", ast.NotEq), ast.NotEq: ("!=", ast.Eq), ast.Is: ("is", ast.IsNot), ast.IsNot: ("is not", ast.Is),
    ast.In: ("in", ast.NotIn), ast.NotIn: ("not in", ast.In), ast.And: ("and", ast.Or), ast.Or: ("or", ast.And),
    ast.Add: ("+", ast.Sub), ast.Sub: ("-", ast.Add), ast.Mult: ("*", ast.Div), ast.Div: ("/", ast.Mult),
    ast.FloorDiv: ("//", ast.Mult), ast.Mod: ("%", ast.FloorDiv), ast.Pow: ("**", ast.Mult),
    ast.BitOr: ("|", ast.BitAnd), ast.BitAnd: ("&", ast.BitOr),
}  # fmt: skip
TWINS = {"min": "max", "max": "min", "any": "all", "all": "any", "floor": "ceil", "ceil": "floor"}
SILENT = re.compile(
    r"(print|echo|warn|debug|info|warning|exception|log|sleep|Option|Argument|TypeVar|NewType|cast|set_color)$"
)
WAITS = re.compile(r"timeout|wait|grace|poll|interval_s|patience", re.IGNORECASE)
LOOKS = re.compile(
    r"(help|metavar|rich_help_panel|indent|stacklevel|encoding|errors|ensure_ascii|sort_keys|strict|justify|no_wrap|"
    r"(edge|face)?colou?rs?|style|alpha|zorder|dpi|rotation|loc|ha|va|lw|font\w*|line\w*|marker\w*|label\w*|pad|size|"
    r"figsize|clip_on|transform|invalid|divide)$"
)
DRAWN = re.compile(r"\.(charts?|page|section|terminal)(\.|$)")  # modules whose numbers are looks
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Edit:
    """A change of a function's code: its name, its statement, and the new text for a span of the source."""

    kind: str
    name: str
    statement: ast.stmt
    span: tuple[int, int, int, int]  # first line, column, last line, column
    new: Callable[[], str]

    def apply(self, source: str) -> str:
        """Return the module's source with this edit. Columns are in bytes, as in `ast`."""
        first, start, last, end = self.span
        lines = source.encode().splitlines(keepends=True)
        changed = lines[first - 1][:start] + self.new().encode() + lines[last - 1][end:]
        return b"".join([*lines[: first - 1], changed, *lines[last:]]).decode()


@dataclass(frozen=True)
class Fault:
    """An edit as it is stored: the nth edit of this name in a function."""

    module: str
    function: str  # with its classes; empty for a module's own code
    edit: str
    nth: int

    @property
    def place(self) -> str:
        return f"{self.module}.{self.function}".rstrip(".")

    @property
    def id(self) -> str:
        return f"{self.place}: {self.edit}" + (f" ({self.nth})" if self.nth > 1 else "")

    @property
    def room(self) -> str:
        return f"{self.module}.".split(".")[1]


def edits(owner: Any) -> Iterator[Edit]:
    """Yield all edits of a module's, class's or function's own code, without functions and classes defined inside."""
    in_function = isinstance(owner, FUNCTIONS)
    nodes = list(ast.walk(owner)) if in_function else []
    bound = Counter(getattr(node, "id", "") for node in nodes if isinstance(getattr(node, "ctx", None), ast.Store))
    bound.update(node.arg for node in nodes if isinstance(node, ast.arg))

    def visit(node: Any, parent: Any, statement: ast.stmt) -> Iterator[Edit]:
        if left_out(node):
            return
        statement = node if isinstance(node, ast.stmt) else statement
        yield from edits_of_node(node, parent, statement)
        for field, value in ast.iter_fields(node):
            if field in {"annotation", "decorator_list"} or (isinstance(node, ast.Raise) and field == "exc"):
                continue
            if isinstance(node, ast.Call) and field == "args" and called(node) in {"isinstance", "issubclass"}:
                value = value[:1]
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from visit(child, node, statement)

    def edits_of_node(node: Any, parent: Any, statement: ast.stmt) -> Iterator[Edit]:
        def edit(kind: str, name: str, new: str | Callable[[], str], place: Any = node) -> Edit:
            span = (
                place
                if isinstance(place, tuple)
                else (place.lineno, place.col_offset, place.end_lineno, place.end_col_offset)
            )
            return Edit(kind, name, statement, span, new if callable(new) else lambda: new)

        def having(**fields: Any) -> Callable[[], str]:
            return lambda: f"({ast.unparse(type(node)(**{**dict(ast.iter_fields(node)), **fields}))})"

        def without(kind: str, name: str, index: int, *fields: str) -> Edit:
            lists = {field: getattr(node, field) for field in fields}
            return edit(kind, name, having(**{field: [*v[:index], *v[index + 1 :]] for field, v in lists.items()}))

        def swap(kind: str, op: Any, swapped: Callable[[Any], dict[str, Any]]) -> Edit:
            sign, other = OPERATORS[type(op)]
            return edit(kind, f"{sign} becomes {OPERATORS[other][0]} in {short(node)}", having(**swapped(other())))

        match node:
            case ast.Compare(ops=ops):
                for index, op in enumerate(ops):
                    yield swap("comparison", op, lambda new, n=index: {"ops": [*ops[:n], new, *ops[n + 1 :]]})
            case ast.BoolOp(op=op):
                yield swap("condition", op, lambda new: {"op": new})
            case ast.BinOp(op=op, left=left, right=right) if type(op) in OPERATORS:
                of_text = any(isinstance(side, ast.JoinedStr) or is_text(side) for side in (left, right))
                of_paths = isinstance(op, ast.Div) and re.search(r"(?i)path|folder|root|dir|\bout\b", ast.unparse(left))
                of_types = isinstance(op, ast.BitOr) and not in_function
                if not (of_text or of_paths or of_types):
                    yield swap("arithmetic", op, lambda new: {"op": new})
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                yield edit("condition", f"drop not of {short(operand)}", lambda: f"({ast.unparse(operand)})")
            case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
                if not isinstance(test, ast.Compare | ast.UnaryOp | ast.BoolOp | ast.Constant):
                    yield edit("condition", f"negate {short(test)}", lambda: f"(not ({ast.unparse(test)}))", test)
            case ast.Constant(value=bool(value)):
                yield edit("value", f"{value} becomes {not value} in {short(parent)}", str(not value))
            case ast.Constant(value=int(value) | float(value)):
                new = value + 1 if isinstance(value, int) and value < 100 else value * 2 or 1.0
                yield edit("value", f"{value!r} becomes {new!r} in {short(parent)}", repr(new))
            case ast.Tuple(elts=parts) | ast.List(elts=parts) | ast.Set(elts=parts):
                if len(parts) > 1 and is_value(node, parent):
                    for index, part in enumerate(parts):
                        name = f"drop {short(part)} of a {type(node).__name__.lower()}"
                        yield without("part", name, index, "elts")
            case ast.Dict(keys=keys, values=values) if len(keys) > 1:
                for index, (key, value) in enumerate(zip(keys, values, strict=True)):
                    yield without("part", f"drop {short(key or value)} of a dict", index, "keys", "values")
            case ast.Return(value=ast.AST() as value) if ast.unparse(value) != "None":
                yield edit("outcome", f"return None for {short(value)}", "None", value)
            case ast.Raise(exc=raised) if "NotImplementedError" not in ast.unparse(node):
                yield edit("outcome", f"remove {short(node)}", "pass")
                if isinstance(raised, ast.Call):
                    yield edit("outcome", f"raise RuntimeError for {short(raised.func)}", "RuntimeError", raised.func)
            case ast.ExceptHandler(type=ast.AST() as caught):
                yield edit("outcome", f"catch ZeroDivisionError for {short(caught)}", "ZeroDivisionError", caught)
            case ast.AugAssign() | ast.Continue() | ast.Break() | ast.Delete():
                yield edit("statement", f"remove {short(node)}", "pass")
            case ast.Expr(value=ast.Call()) if in_function:
                yield edit("statement", f"remove {short(node)}", "pass")
            case ast.Assign(targets=[target]) if in_function and not isinstance(target, ast.Tuple):
                if not isinstance(target, ast.Name) or bound[target.id] > 1:
                    yield edit("statement", f"remove {short(node)}", "pass")
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name) as function):
                if name in TWINS:
                    line, end = function.end_lineno, function.end_col_offset
                    name, span = f"{name} becomes {TWINS[name]} in {short(node)}", (line, end - len(name), line, end)
                    yield edit("arithmetic", name, TWINS[called(node)], span)
                for index, word in enumerate(node.keywords):
                    if word.arg and not left_out(word):
                        name = f"drop {short(word)} in a call of {short(function)}"
                        yield without("part", name, index, "keywords")

    if not untested(owner):
        for default in [*owner.args.defaults, *filter(None, owner.args.kw_defaults)] if in_function else []:
            yield from visit(default, owner.args, owner)
        for statement in owner.body:
            yield from visit(statement, owner, statement)


def left_out(node: Any) -> bool:
    """Return whether a node has no edits: the rule leaves it out, or it is a definition with its own edits."""
    match node:
        case ast.If(test=test):
            return "TYPE_CHECKING" in ast.unparse(test)
        case ast.Call() | ast.Expr(value=ast.Call()):
            return bool(SILENT.match(called(getattr(node, "value", node))))
        case ast.keyword(arg=str(name)):
            return bool(LOOKS.match(name) or WAITS.search(name))
        case ast.Assign(targets=[target, *_]) | ast.AnnAssign(target=target):
            return bool(WAITS.search(ast.unparse(target)))
        case ast.Subscript(value=ast.Name(id="Literal")):
            return True
    return isinstance(node, (*FUNCTIONS, ast.ClassDef, ast.Assert, ast.JoinedStr, ast.Import, ast.ImportFrom))


def untested(owner: Any) -> bool:
    words = [ast.unparse(word) for word in [*getattr(owner, "decorator_list", []), *getattr(owner, "bases", [])]]
    declared = any(re.search(r"overload|abstractmethod|Protocol", word) for word in words)
    return declared or getattr(owner, "name", "") in {"__repr__", "__str__"}


def short(node: ast.AST) -> str:
    text = " ".join(ast.unparse(node).split())
    return f'"{text if len(text) <= 70 else text[:67] + "..."}"'


def called(call: ast.Call) -> str:
    return getattr(call.func, "attr", None) or getattr(call.func, "id", "")


def is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)


def is_value(node: Any, parent: ast.AST) -> bool:
    """Return whether a tuple or list is used as a value, not unpacked at once, an index or a class's __slots__."""
    names = parent.targets if isinstance(parent, ast.Assign) else []
    unpacked = any(isinstance(name, ast.Tuple) or ast.unparse(name).startswith("__") for name in names)
    return not (unpacked or isinstance(getattr(node, "ctx", None), ast.Store) or isinstance(parent, ast.Subscript))


@dataclass(frozen=True)
class Module:
    """A module of the package. `owners` are its classes and functions by name; the module itself has the name ""."""

    name: str
    path: Path

    @functools.cached_property
    def source(self) -> str:
        return self.path.read_text("utf-8")

    @functools.cached_property
    def owners(self) -> dict[str, list[Any]]:
        owners: dict[str, list[Any]] = defaultdict(list)

        def enter(owner: ast.AST, name: str) -> None:
            owners[name].append(owner)
            inside = list(ast.iter_child_nodes(owner))
            while inside:
                node = inside.pop(0)
                if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
                    enter(node, f"{name}.{node.name}".lstrip("."))
                elif isinstance(node, ast.stmt | ast.excepthandler | ast.match_case):
                    inside[:0] = ast.iter_child_nodes(node)

        enter(ast.parse(self.source), "")
        return owners

    @functools.cache  # noqa: B019 - modules live as long as the process
    def faults(self, function: str) -> dict[Fault, Edit]:
        """Return the faults that the rule finds in a function, with their edits."""
        seen: Counter[str] = Counter()
        faults = {}
        for owner in self.owners.get(function, ()):
            for edit in edits(owner):
                seen[edit.name] += 1
                faults[Fault(self.name, function, edit.name, seen[edit.name])] = edit
        return faults

    def lines_of_code(self) -> int:
        """Return the number of lines that are neither empty nor comments nor docstrings."""
        owners = [owner for owners in self.owners.values() for owner in owners]
        texts = [owner.body[0] for owner in owners if ast.get_docstring(owner, clean=False) is not None]
        lines = [line.strip() for line in self.source.splitlines()]
        documented = sum(text.end_lineno - text.lineno + 1 for text in texts)
        return sum(bool(line) and not line.startswith("#") for line in lines) - documented


def package(root: Path) -> dict[str, Module]:
    paths = sorted((root / "tcbench").rglob("*.py"))
    names = [".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__") for path in paths]
    return {name: Module(name, path) for name, path in zip(names, paths, strict=True)}


def words_of(module: str) -> set[str]:
    return {word.removesuffix("s") for word in re.split(r"[._]", module)}


def place(fault: Fault, modules: dict[str, Module]) -> tuple[Module, Edit] | None:
    """Return the module and edit of a fault in today's code.

    If several modules match, the one whose name shares the most words with the old name is returned."""

    def find_edit(module: Module, function: str) -> Edit | None:
        return module.faults(function).get(Fault(module.name, function, fault.edit, fault.nth))

    for name in (fault.place, *(new for old, new in RENAMED if old == fault.place)):
        for module in (module for module in modules.values() if f"{name}.".startswith(f"{module.name}.")):
            if edit := find_edit(module, name[len(module.name) + 1 :]):
                return module, edit
    words = words_of(fault.module)
    moved = [(module, edit) for module in modules.values() if (edit := find_edit(module, fault.function))]
    shared = [len(words & words_of(module.name)) for module, _ in moved]
    best = [candidate for candidate, number in zip(moved, shared, strict=True) if number == max(shared)]
    return best[0] if len(best) == 1 else None


def draw(modules: dict[str, Module], seed: int, count: int, under: str = "tcbench") -> list[Fault]:
    """Draw faults by the rule, in random order, so that the first n of them are a sample."""
    rooms: dict[str, list[Module]] = defaultdict(list)
    for name, module in modules.items():
        if f"{name}.".startswith(f"{under}."):
            rooms[Fault(name, "", "", 1).room].append(module)
    lines = {room: sum(module.lines_of_code() for module in inside) for room, inside in rooms.items()}
    shares = {room: count * lines[room] / sum(lines.values()) for room in rooms}
    number = {room: int(share) for room, share in shares.items()}
    for room in sorted(rooms, key=lambda room: number[room] - shares[room])[: count - sum(number.values())]:
        number[room] += 1  # the largest remainders
    drawn: list[Fault] = []
    for room, inside in rooms.items():
        chance = random.Random(f"{seed} {room}")
        kinds: dict[str, dict[tuple[str, int], list[Fault]]] = defaultdict(lambda: defaultdict(list))
        for module in inside:
            for fault, edit in (item for function in module.owners for item in module.faults(function).items()):
                if not (DRAWN.search(module.name) and edit.kind == "value" and fault.edit[0].isdigit()):
                    kinds[edit.kind][module.name, edit.span[0]].append(fault)
        turns = [by_line for kind in chance.sample(KINDS, len(KINDS)) if (by_line := kinds[kind])]
        for turn in range(number[room]):
            by_line = turns[turn % len(turns)]
            drawn.append(chance.choice(by_line.pop(chance.choice(sorted(by_line)))))
    random.Random(seed).shuffle(drawn)
    return drawn
