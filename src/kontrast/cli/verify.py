"""`kontrast verify`, and the claims' half of `kontrast report`."""

from __future__ import annotations

import shlex
import sys
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kontrast.cli.options import with_options
from kontrast.cli.program import Debug, Workers, app, plain_table, print_json, print_lines, print_paths, say
from kontrast.cli.progress import Bar, n_workers, stopped_by_ctrl_c

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from kontrast.claims import Claim, Record, Setting

CLAIMS = Path("kontrast-claims")
ON_GPU = 8  # processes that share a GPU well: much of a claim is small work on the CPU


@app.command()
@with_options(also=[("kontrast.claims", "Setting")])
def verify(
    ids: Annotated[
        list[str] | None, typer.Argument(help="Claims by id or prefix, as in A.prop10 or A; all without.")
    ] = None,
    show_list: Annotated[bool, typer.Option("--list", help="List the claims by paper, and measure none.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Small settings: seconds per claim.")] = False,
    data: Annotated[
        list[str] | None,
        typer.Option(
            help="As in `study`; several times for claims that compare data.", show_default="digits; mnist5k on cuda"
        ),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(help="Runs that are averaged.", show_default="each claim's own number")
    ] = None,
    device: Annotated[
        str, typer.Option(help="cpu, cuda, cuda:1, …; on cuda the paper's own scale, unless --quick.")
    ] = "cpu",
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Results folder.", show_default="kontrast-claims/SCALE-HASH"),
    ] = None,
    workers: Workers = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per claim, one per line.")] = False,
    debug: Debug = False,
) -> None:
    """Measure the papers' claims again: verdicts, numbers, figures, and corrections where a claim is wrong.

    Finished claims are kept: the same command goes on where it was stopped. The exit code is 0 when every verdict is
    the one recorded in the project's own table, and 1 when one is not.
    """
    from kontrast.claims import Setting, select, stored_records, verification_name, verification_spec
    from kontrast.report import write_claims_report

    claims = select(ids or [])
    if show_list:
        _list_claims(claims, as_json=as_json)
        return
    on_gpu = not device.startswith("cpu")
    processes = n_workers(workers, len(claims), most=ON_GPU if on_gpu else None)
    scale: Any = "quick" if quick else "paper" if on_gpu else "full"
    setting = Setting(scale=scale, device=device, n_seeds=seeds, data=tuple(data or ()))
    spec = verification_spec(setting)
    folder = output or CLAIMS / verification_name(spec)
    records = _run(claims, setting, folder, processes)
    _show_claims(records, write_claims_report(folder, stored_records(folder), spec), as_json=as_json)
    sys.exit(0 if all(record.as_recorded for record in records) else 1)


def _run(claims: Sequence[Claim], setting: Setting, folder: Path, workers: int) -> list[Record]:
    from kontrast.claims import verify

    costs = {claim.id: claim.cost for claim in claims}
    bar = Bar("claims", "claims", cost=costs.__getitem__)

    def start(done: list[str], missing: list[str]) -> None:
        if missing:
            bar.start(len(done), missing)

    with stopped_by_ctrl_c(f"finished claims are kept in {folder}: run the same command to go on"), bar:
        return verify(
            list(costs),
            setting,
            folder,
            workers=workers,
            command=shlex.join(["kontrast", *sys.argv[1:]]),
            on_start=start,
            on_done=bar.advance,
        )


def report_claims(folder: Path, spec: dict[str, Any], *, as_json: bool) -> None:
    """Write the page of stored claims, and print them."""
    from kontrast.claims import reservations, stored_records
    from kontrast.report import write_claims_report

    for warning in reservations(folder):
        say(f"warning: {warning}")
    records = stored_records(folder)
    _show_claims(records, write_claims_report(folder, records, spec), as_json=as_json)


def _list_claims(claims: Sequence[Claim], *, as_json: bool) -> None:
    """Print the claims under the papers they come from, with the files that measure them."""
    if as_json:
        names = ("id", "title", "source", "printed", "corrected")
        for claim in claims:
            shown = {name: getattr(claim, name) for name in names}
            print_json({**shown, "recorded": claim.recorded.value, "file": claim.file})
        return
    from rich.console import Console
    from rich.markup import escape

    from kontrast.claims import PAPERS

    for letter, of_paper in groupby(claims, key=lambda claim: claim.id[0]):
        print_lines(f"Paper {letter}. {PAPERS[letter]}")
        table = plain_table()
        for heading in ("claim", "statement", "recorded verdict", "source, file"):
            table.add_column(heading, no_wrap=heading == "claim", overflow="fold")
        for claim in of_paper:
            where = f"{claim.source}\n{claim.file}"
            table.add_row(claim.id, escape(claim.title), claim.recorded.value, escape(where))
        Console(highlight=False).print(table)


def _show_claims(records: Sequence[Record], page: Path, *, as_json: bool) -> None:
    if as_json:
        for record in records:
            print_json(record.as_dict())
        return
    from rich.console import Console
    from rich.markup import escape

    table = plain_table()
    for heading in ("claim", "statement", "verdict", "seconds"):
        table.add_column(heading, no_wrap=heading == "claim", justify="right" if heading == "seconds" else "left")
    for record in records:
        recorded = "" if record.as_recorded else f" (recorded: {record.claim.recorded.value})"
        verdict = record.verdict.value + recorded
        table.add_row(record.claim.id, escape(record.claim.title), verdict, f"{record.seconds:.1f}")
    console = Console(highlight=False)
    console.print(table)
    if corrections := _corrections(records):
        console.print(corrections)
    print_lines(*(f"{one.claim.id}: warning: {said}" for one in records for said in one.evidence.warnings))
    if differing := [record.claim.id for record in records if not record.as_recorded]:
        print_lines(f"not as recorded: {', '.join(differing)}")
    print_paths(report=page)


def _corrections(records: Sequence[Record]) -> Table | None:
    """The corrections of claims that were decided and do not simply hold; the statement itself where there is none."""
    from rich.markup import escape

    from kontrast.claims import Verdict

    table = plain_table()
    table.add_column("claim", no_wrap=True)
    table.add_column("what is wrong with it as printed, and what is right")
    for record in records:
        if record.verdict not in (Verdict.HOLDS, Verdict.UNDECIDED):
            said = record.claim.corrected or f"{record.verdict.value}: {record.claim.printed}"
            table.add_row(record.claim.id, escape(said))
    return table if table.row_count else None
