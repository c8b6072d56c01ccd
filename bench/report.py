"""What a benchmark hands over, and how it becomes docs/reference/benchmarks.md with its plots."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "reference" / "benchmarks.md"
PLOTS = ROOT / "docs" / "reference" / "plots"
_SECTION = re.compile(r"<!-- bench: (?P<name>[a-z_]+) -->\n(?P<body>.*?)<!-- end -->\n", re.DOTALL)
_TARGETS = re.compile(r"^\| target \| seen \| met \|\n\|[-|]+\|\n(?P<rows>(?:\|.*\n)*)", re.MULTILINE)


@dataclass(frozen=True)
class Target:
    """What was wanted of one number, and what was seen."""

    wanted: str
    seen: str
    misses_by: str | None
    """None where it is met."""

    @staticmethod
    def at_most(what: str, limit: float, value: float, *, unit: str = "", seen: str = "") -> Target:
        """Return whether a value stays at or below a limit."""
        miss = None if value <= limit else f"{value / limit - 1:.0%} more"
        return Target(f"{what} ≤ {limit:g}{unit}", seen or f"{value:.3g}{unit}", miss)

    @staticmethod
    def at_least(what: str, limit: float, value: float, *, unit: str = "", seen: str = "") -> Target:
        """Return whether a value reaches a limit."""
        miss = None if value >= limit else f"{1 - value / limit:.0%} less"
        return Target(f"{what} ≥ {limit:g}{unit}", seen or f"{value:.3g}{unit}", miss)


@dataclass(frozen=True)
class Table:
    """Rows under a heading."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    def markdown(self) -> str:
        """Return the table with its caption."""
        lines = [f"{self.caption}:", "", _row(self.columns), "|" + "---|" * len(self.columns)]
        return "\n".join([*lines, *(_row(row) for row in self.rows)])


@dataclass(frozen=True)
class Plot:
    """Series of numbers over sizes."""

    name: str
    title: str
    x: str
    y: str
    series: Mapping[str, Sequence[tuple[float, float]]]
    logarithmic: bool = True

    def save(self) -> None:
        """Write the SVG: the same numbers make the same bytes."""
        import matplotlib as mpl

        mpl.use("svg")
        from matplotlib import pyplot

        settings = {"svg.hashsalt": "memplane", "svg.fonttype": "none", "font.size": 9, "path.simplify": True}
        with mpl.rc_context(settings):
            figure, axes = pyplot.subplots(figsize=(5.6, 3.2))
            for marker, (name, points) in zip("osD^vP*", self.series.items(), strict=False):
                axes.plot([x for x, _ in points], [y for _, y in points], marker=marker, markersize=4, label=name)
            if self.logarithmic:
                axes.set_xscale("log")
                axes.set_yscale("log")
            else:
                axes.set_ylim(bottom=0)
            axes.set_title(self.title)
            axes.set_xlabel(self.x)
            axes.set_ylabel(self.y)
            axes.grid(alpha=0.3)
            axes.legend(frameon=False)
            figure.tight_layout()
            PLOTS.mkdir(parents=True, exist_ok=True)
            figure.savefig(PLOTS / f"{self.name}.svg", metadata={"Date": None, "Creator": None})
            pyplot.close(figure)

    def markdown(self) -> str:
        """Return the image."""
        return f"![{self.title}](plots/{self.name}.svg)"


@dataclass(frozen=True)
class Section:
    """What one benchmark found."""

    title: str
    about: str
    targets: Sequence[Target] = ()
    tables: Sequence[Table] = ()
    plots: Sequence[Plot] = ()
    notes: Sequence[str] = field(default=())
    when: str = ""

    def markdown(self, name: str) -> str:
        """Return the section between its marks."""
        parts = [f"## {self.title}", self.about, f"```sh example\npython -m bench {name}\n```"]
        if self.when:
            parts.append(self.when)
        if self.targets:
            rows = [_row((one.wanted, one.seen, _met(one))) for one in self.targets]
            parts.append("\n".join(["| target | seen | met |", "|---|---|---|", *rows]))
        parts += [table.markdown() for table in self.tables]
        parts += [plot.markdown() for plot in self.plots]
        if self.notes:
            parts.append("\n".join(f"- {note}" for note in self.notes))
        return f"<!-- bench: {name} -->\n\n" + "\n\n".join(parts) + "\n\n<!-- end -->\n"


def write(head: str, found: Mapping[str, Section], order: Sequence[str]) -> None:
    """Write the page: new sections take the place of those of the same name, the others stay."""
    old = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    sections = {match["name"]: match[0] for match in _SECTION.finditer(old)}
    for name, section in found.items():
        sections[name] = section.markdown(name)
        for plot in section.plots:
            plot.save()
    kept = [sections[name] for name in order if name in sections]
    rows = "".join(match["rows"] for text in kept for match in _TARGETS.finditer(text))
    summary = f"## Targets\n\n| target | seen | met |\n|---|---|---|\n{rows}"
    missing = [f"`{name}`" for name in order if name not in sections]
    if missing:
        summary += f"\nNot measured yet: {', '.join(missing)}.\n"
    PAGE.write_text(f"{head}\n{summary}\n" + "\n".join(kept), encoding="utf-8")


def _met(target: Target) -> str:
    return "yes" if target.misses_by is None else f"**no**, {target.misses_by}"


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
