"""A report as one HTML file that needs no other files. Text from servers and agents is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from string import Template

from dreamgym.errors import MissingPackage
from dreamgym.evaluation.report import FidelityReport, PredictedStep
from dreamgym.evaluation.report.plots import plots
from dreamgym.evaluation.report.text import Section, difference_section, headline, plain, sections

_PAGE = Template("""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Fidelity of $env</title>
<style>
  body { font: 15px/1.5 system-ui, sans-serif; color: #222; max-width: 64rem; margin: 2rem auto; padding: 0 1rem; }
  h1 { font-size: 1.5rem; } h2 { font-size: 1.2rem; margin-top: 2.5rem; border-bottom: 1px solid #ddd; }
  h3 { font-size: 1rem; margin: 1.6rem 0 .3rem; }
  p { margin: .4rem 0; max-width: 48rem; }
  .scroll { overflow-x: auto; }
  table { border-collapse: collapse; font-size: .87rem; font-variant-numeric: tabular-nums; }
  th, td { text-align: left; padding: .2rem .9rem .2rem 0; border-bottom: 1px solid #eee; white-space: nowrap; }
  th { font-weight: 600; }
  .plots { display: flex; flex-wrap: wrap; gap: 1.5rem 2.5rem; }
  figure { margin: .8rem 0; } figcaption { font-weight: 600; font-size: .9rem; }
  svg { max-width: 100%; height: auto; }
  .pair { display: grid; grid-template-columns: 1fr 1fr; gap: 0 1rem; margin-bottom: 1.2rem; }
  .pair h4 { grid-column: 1 / -1; font: 600 .85rem ui-monospace, monospace; margin: 0; overflow-wrap: anywhere; }
  .pair h4 span { color: #777; font-weight: 400; }
  .pair div { min-width: 0; } .pair b { font-size: .8rem; color: #555; }
  pre { background: #f6f6f4; padding: .5rem; margin: .1rem 0; font-size: .8rem; }
  pre { white-space: pre-wrap; overflow-wrap: anywhere; }
</style>
<h1>Fidelity of a simulation of $env</h1>
<p>$headline</p>
$body
</html>
""")


def page(report: FidelityReport) -> str:
    """The report as HTML."""
    try:
        drawn = plots(report.measured).items()
        figures = (f"<figure><figcaption>{escape(title)}</figcaption>{svg}</figure>" for title, svg in drawn)
        parts = [f'<div class="plots">{"".join(figures)}</div>']
    except MissingPackage as error:
        parts = [f"<p>{escape(str(error))}</p>"]
    if report.differences:
        parts.append(_section(difference_section(report)))
    for one in report.measured:
        parts.append(f"<h2>{escape(str(one.setting))}</h2>")
        parts += [_section(section) for section in sections(one)]
        if one.worst:
            parts.append(f"<h3>Least similar predictions</h3>{''.join(map(_pair, one.worst))}")
    return _PAGE.substitute(env=escape(report.env), headline=escape(headline(report)), body="\n".join(parts))


def _section(section: Section) -> str:
    notes = "".join(f"<p>{escape(plain(note))}</p>" for note in section.notes)
    return f"<h3>{escape(section.title[0].upper() + section.title[1:])}</h3>{_table(section.rows)}{notes}"


def _table(rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return ""
    head = _cells(rows[0], "th")
    return f'<div class="scroll"><table>{head}{"".join(_cells(row, "td") for row in rows[1:])}</table></div>'


def _cells(row: Iterable[str], tag: str) -> str:
    return f"<tr>{''.join(f'<{tag}>{escape(cell)}</{tag}>' for cell in row)}</tr>"


def _pair(shown: PredictedStep) -> str:
    title = f"{escape(shown.action)} <span>{escape(shown.trajectory)}, step {shown.step}</span>"
    recorded = _side("recorded", shown.recorded, shown.recorded_changes)
    return f'<div class="pair"><h4>{title}</h4>{recorded}{_side("predicted", shown.got, shown.got_changes)}</div>'


def _side(name: str, answer: str, changes: Sequence[str]) -> str:
    changed = f"<b>changes</b><pre>{escape(chr(10).join(changes))}</pre>" if changes else ""
    return f"<div><b>{name}</b><pre>{escape(answer)}</pre>{changed}</div>"
