"""Finds what the package offers, and runs what is needed, once.

Discovery is a walk over a package: being there is all that an analyzer, a
reporter or a verb has to do. A module whose name begins with ``_`` is a part
of its neighbours and is passed over; any other module without the constant is
refused, because a silent gap is harder to find than an error.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from diagnose.errors import DiagnoseError, ExtensionError, UsageError

if TYPE_CHECKING:
    from diagnose.analysis import Analyzer, Unavailable
    from diagnose.findings import Diagnosis
    from diagnose.plotting.definition import FigureDefinition
    from diagnose.plotting.style import Figure
    from diagnose.rules._judge import Judging
    from diagnose.rules._rule import Rule
    from diagnose.trace import Table, Trace

ANALYSIS_MODULES = ("diagnose.timeline", "diagnose.contention", "diagnose.replay")
"""Analyses that later layers build on; they stand outside of ``analyzers/``."""


class Request(NamedTuple):
    """An analysis and the options to run it with."""

    analyzer: str
    options: Mapping[str, Any] = {}


HEAD: Mapping[str, Request] = {"observer_effect": Request("observer_effect")}
"""What the head of every report says, if it is known. ``diagnose`` always asks for it."""

REPORT: Mapping[str, Request] = {
    "gpus": Request("overlap", {"by": "rank"}),
    "steps": Request("overlap", {"by": "step"}),
    "breakdown": Request("breakdown"),
    "collectives": Request("collective_sizes"),
    "ranks": Request("ranks"),
    "stragglers": Request("stragglers"),
    "waiting": Request("waiting", {"by": "rank"}),
    "waiting_steps": Request("waiting", {"by": "step"}),
    "contention": Request("contention", {"by": "all"}),
    "balance": Request("overlap_balance"),
    "power": Request("power_summary"),
    "host_steps": Request("host_steps"),
    "staircase": Request("staircase", {"most": 4, "quick": True}),
}
"""What the reports draw."""

_KEPT = {"ALL": "operators", "SHAPES": "input shapes"}
"""What a level of detail is called where its name does not say it."""


def constant_of(module_name: str, constant: str) -> Any:
    """The constant of a module. ExtensionError if it has none."""
    module = importlib.import_module(module_name)
    try:
        return getattr(module, constant)
    except AttributeError:
        raise ExtensionError(
            f"{module_name} does not define {constant}",
            hint=f"define {constant}, or begin the module's name with an underscore "
            "if it only serves its neighbours",
        ) from None


def public(package_name: str) -> list[str]:
    """The public modules of a package without its name, sorted. None of them is imported."""
    package = importlib.import_module(package_name)
    names = sorted(module.name for module in pkgutil.iter_modules(package.__path__))
    return [name for name in names if not name.startswith("_")]


def discover(package_name: str, constant: str) -> dict[str, Any]:
    """Module name (without the package) -> its constant, for every public module, sorted."""
    return {name: constant_of(f"{package_name}.{name}", constant) for name in public(package_name)}


class Analyzers(Mapping[str, "Analyzer"]):
    """Every analysis by name, imported when it is asked for.

    Importing all of them is most of what a small command costs, so one is looked for where
    its name says that it stands, then in the layers that others build on, then everywhere.
    """

    def __getitem__(self, name: str) -> Analyzer:
        for module_name in (f"diagnose.analyzers.{name}", *ANALYSIS_MODULES):
            if importlib.util.find_spec(module_name) is None:
                continue
            for found in constant_of(module_name, "ANALYZERS"):
                if found.name == name:
                    return cast("Analyzer", found)
        return self._all[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    @cached_property
    def _all(self) -> Mapping[str, Analyzer]:
        """All by name. ExtensionError if two share one."""
        present = [name for name in ANALYSIS_MODULES if importlib.util.find_spec(name) is not None]
        exported = {name: constant_of(name, "ANALYZERS") for name in present}
        exported.update(discover("diagnose.analyzers", "ANALYZERS"))
        found: dict[str, Analyzer] = {}
        for module_name, group in exported.items():
            for analyzer in group:
                if analyzer.name in found:
                    raise ExtensionError(
                        f"two analyses are called {analyzer.name!r}; the second is in "
                        f"{module_name}",
                        hint="rename one of them: the name is its method on a Recording",
                    )
                found[analyzer.name] = analyzer
        return found


@cache
def analyzers() -> Mapping[str, Analyzer]:
    """Every analysis by name. Looking at all raises ExtensionError if two share one."""
    return Analyzers()


def reporters() -> Mapping[str, Any]:
    """Every report format by name."""
    return discover("diagnose.reporters", "REPORTER")


@cache
def figures() -> Mapping[str, FigureDefinition]:
    """Every figure by its name. Imports plotly."""
    found = discover("diagnose.figures", "FIGURE").values()
    return {figure.name: figure for figure in sorted(found, key=lambda figure: figure.name)}


def plot(trace: Trace, name: str, *, dark: bool = False, **options: Any) -> Figure | Unavailable:
    """One figure of a trace with its title. UsageError for a name or option that is not there."""
    from diagnose.plotting.definition import FigureContext
    from diagnose.plotting.palette import DARK, LIGHT
    from diagnose.plotting.style import titled

    figure = figures().get(name)
    if figure is None:
        known = ", ".join(figures())
        raise UsageError(f"plot: there is no figure {name!r}", hint=f"figures: {known}")
    parameters = inspect.signature(figure.draw).parameters.values()
    known_options = [one.name for one in parameters if one.kind is one.KEYWORD_ONLY]
    wrong = [option for option in options if option not in known_options]
    if wrong:
        said = ", ".join([*known_options, "dark"])
        raise UsageError(
            f"plot: {name} has no option {wrong[0]!r}", hint=f"options of {name}: {said}"
        )
    tables = {
        key: run(analyzers()[analyzer], trace, **given)
        for key, (analyzer, given) in figure.needs.items()
    }
    context = FigureContext(trace, DARK if dark else LIGHT)
    drawn = figure.draw(tables, context, **options)
    return titled(drawn, figure.title, context.palette) if hasattr(drawn, "layout") else drawn


@cache
def rules() -> Mapping[str, Rule]:
    """Every rule by id, in the order of ids."""
    return {rule.id: rule for rule in discover("diagnose.rules", "RULE").values()}


def options_of(analyzer: Analyzer) -> inspect.Signature:
    """The signature of an analysis without the trace."""
    signature = inspect.signature(analyzer.run)
    return signature.replace(parameters=list(signature.parameters.values())[1:])


def run(analyzer: Analyzer, trace: Trace, *values: Any, **options: Any) -> Table | Unavailable:
    """Run one analysis. UsageError for an option that it does not have.

    Whatever goes wrong inside of it is raised: see ``diagnose`` for isolation.
    """
    from diagnose.analysis import Unavailable

    signature = options_of(analyzer)
    try:
        signature.bind(*values, **options)
    except TypeError as problem:
        known = ", ".join(signature.parameters) or "none"
        raise UsageError(
            f"{analyzer.name}: {problem}", hint=f"options of {analyzer.name}: {known}"
        ) from None
    if trace.detail < analyzer.needs:
        return Unavailable(
            f"it needs the {_KEPT.get(name := analyzer.needs.name, name.lower())} of the trace, "
            f"and only {trace.detail.name.lower()} was loaded",
            "load the trace without `only` (on the command line: without --only and --fast)",
        )
    table = analyzer.run(trace, *values, **options)
    if not isinstance(table, Unavailable) and table.schema != analyzer.schema:
        raise ExtensionError(
            f"{analyzer.name} returned a table {table.schema.name!r}, "
            f"its contract says {analyzer.schema.name!r}"
        )
    return table


def diagnose(
    trace: Trace,
    requests: Mapping[str, Request] = REPORT,
    *,
    debug: bool = False,
    failed: Callable[[str, Exception], None] | None = None,
    judging: Judging | None = None,
) -> Diagnosis:
    """Run each requested analysis once, and what ``HEAD`` names; with ``judging`` the rules too.

    One that crashes is recorded as unavailable (a rule: as failed) with its reason and does
    not stop the others; with ``debug`` the exception is raised instead. ``failed`` is told
    the request's or the rule's name and the exception.
    """
    from diagnose.analysis import Unavailable
    from diagnose.findings import Checked, Diagnosis, Finding

    analyses = _Analyses(trace, debug=debug)
    tables: dict[str, Table] = {}
    unavailable: dict[str, Unavailable] = {}
    known = analyzers()
    at_head = {name: request for name, request in HEAD.items() if request.analyzer in known}
    for name, request in {**at_head, **requests}.items():
        result = analyses(request.analyzer, request.options)
        problem = analyses.crash_of(result)
        if problem is not None and failed is not None:
            failed(name, problem)
        if not isinstance(result, Unavailable):
            tables[name] = result
        elif name in requests or problem is not None:
            # Nobody misses what only the head would say.
            unavailable[name] = result
    findings: tuple[Finding, ...] = ()
    checked: Checked | None = None
    if judging is not None:
        from diagnose.rules._facts import Facts
        from diagnose.rules._judge import judge

        facts = Facts(trace, analyses, judging.reference)
        findings, checked = judge(facts, rules(), judging, debug=debug, failed=failed)
    return Diagnosis(trace, tables, unavailable, findings, checked)


class _Analyses:
    """The results of the analyses of one trace: each is run once for the same options."""

    def __init__(self, trace: Trace, *, debug: bool) -> None:
        self._trace, self._debug = trace, debug
        self._results: dict[Any, Table | Unavailable] = {}
        self._crashes: list[tuple[Unavailable, Exception]] = []

    def crash_of(self, result: Table | Unavailable) -> Exception | None:
        """What went wrong where the answer stands for a crash of this very call."""
        return next((problem for answer, problem in self._crashes if answer is result), None)

    def __call__(self, name: str, options: Mapping[str, Any]) -> Table | Unavailable:
        key = self._key(name, options)
        if key is None:
            return self._run(name, options)
        if key not in self._results:
            self._results[key] = self._run(name, options)
        return self._results[key]

    def _key(self, name: str, options: Mapping[str, Any]) -> Any:
        try:
            bound = options_of(analyzers()[name]).bind(**options)
            bound.apply_defaults()
            key = (name, tuple(sorted(bound.arguments.items())))
            hash(key)
        except (KeyError, TypeError):
            return None
        return key

    def _run(self, name: str, options: Mapping[str, Any]) -> Table | Unavailable:
        try:
            return run(analyzers()[name], self._trace, **options)
        except Exception as problem:
            if self._debug:
                raise
            answer = _crashed(name, problem)
            self._crashes.append((answer, problem))
            return answer


def _crashed(analyzer: str, problem: Exception) -> Unavailable:
    from diagnose.analysis import Unavailable

    if isinstance(problem, DiagnoseError):
        return Unavailable(problem.message, problem.hint)
    if isinstance(problem, KeyError) and problem.args == (analyzer,):
        return Unavailable(f"this installation has no analysis called {analyzer!r}")
    return Unavailable(
        f"the analysis {analyzer!r} failed: {type(problem).__name__}: {problem}",
        "this is a bug: please report it with the output of the same command under --debug",
    )
