"""`kontrast verify`, and the claims' half of `kontrast report`."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kontrast.cli.program import Debug, app, plain_table, say
from kontrast.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from kontrast.claims import Claim, Record

CLAIMS = Path("kontrast-claims")


@app.command()
def verify(
    ids: Annotated[
        list[str] | None, typer.Argument(help="Claims by id or prefix, as in A.prop10 or A; all without.")
    ] = None,
    show_list: Annotated[bool, typer.Option("--list", help="List the claims, and measure none.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Small settings: seconds a claim.")] = False,
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
        str, typer.Option(help="cpu, cuda, cuda:1 …; on cuda the paper's own scale, unless --quick.")
    ] = "cpu",
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Results folder.", show_default="kontrast-claims/SCALE-HASH"),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(help="Processes, one thread each.", show_default="one a core; at most 8 on cuda")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a claim, one a line.")] = False,
    debug: Debug = False,
) -> None:
    """Measure the papers' claims again: verdicts, numbers, figures, and corrections where a claim is wrong.

    Finished claims are kept: the same command goes on where it was stopped. Exit code 0 when every verdict is the one
    recorded in the project's own table, 1 when one is not.
    """
    from kontrast.claims import Setting, select, stored_records, verification_name, verification_spec
    from kontrast.claims import verify as run_verification
    from kontrast.report import write_claims_report
    from kontrast.runs import Interrupted, default_workers

    claims = select(ids or [])
    if show_list:
        _list_claims(claims, as_json=as_json)
        return
    if workers is not None and workers < 1:
        raise InputError(f"--workers must be at least 1, got {workers}")
    on_gpu = not device.startswith("cpu")
    setting = Setting(
        scale="quick" if quick else "paper" if on_gpu else "full",
        device=device,
        n_seeds=seeds,
        data=tuple(data or ()),
    )
    spec = verification_spec(setting)
    folder = output or CLAIMS / verification_name(spec)
    # Much of a claim is small work on the CPU, so a few processes share a GPU well; one claim needs no second process.
    n_workers = min(workers or (min(8, default_workers()) if on_gpu else default_workers()), len(claims))
    try:
        with _ClaimProgress() as progress:
            records = run_verification(
                ids or [],
                setting,
                folder,
                workers=0 if n_workers == 1 else n_workers,
                command=shlex.join(["kontrast", *sys.argv[1:]]),
                on_start=progress.start,
                on_done=progress.advance,
            )
    except (Interrupted, KeyboardInterrupt):
        say(f"stopped; finished claims are kept in {folder}: run the same command to go on")
        sys.exit(130)
    _show_claims(records, write_claims_report(folder, stored_records(folder), spec), as_json=as_json)
    sys.exit(0 if all(record.as_recorded for record in records) else 1)


def report_claims(folder: Path, spec: dict[str, Any], *, as_json: bool) -> None:
    """The page and the words of stored claims."""
    from kontrast.claims import reservations, stored_records
    from kontrast.report import write_claims_report

    for warning in reservations(folder):
        say(f"warning: {warning}")
    records = stored_records(folder)
    _show_claims(records, write_claims_report(folder, records, spec), as_json=as_json)


def _list_claims(claims: Sequence[Claim], *, as_json: bool) -> None:
    if as_json:
        for claim in claims:
            shown = {"id": claim.id, "title": claim.title, "source": claim.source, "recorded": claim.recorded.value}
            typer.echo(
                json.dumps({**shown, "printed": claim.printed, "corrected": claim.corrected}, ensure_ascii=False)
            )
        return
    from rich.console import Console
    from rich.markup import escape

    table = plain_table()
    for heading in ("claim", "statement", "recorded verdict", "source"):
        table.add_column(heading, no_wrap=heading == "claim")
    for claim in claims:
        table.add_row(claim.id, escape(claim.title), claim.recorded.value, escape(claim.source))
    Console(highlight=False).print(table)


def _show_claims(records: Sequence[Record], page: Path, *, as_json: bool) -> None:
    if as_json:
        for record in records:
            typer.echo(json.dumps(record.as_dict(), ensure_ascii=False))
        return
    from rich.console import Console
    from rich.markup import escape

    table = plain_table()
    for heading in ("claim", "statement", "verdict", "seconds"):
        table.add_column(heading, no_wrap=heading == "claim", justify="right" if heading == "seconds" else "left")
    for record in records:
        verdict = (
            record.verdict.value
            if record.as_recorded
            else f"{record.verdict.value} (recorded: {record.claim.recorded.value})"
        )
        table.add_row(record.claim.id, escape(record.claim.title), verdict, f"{record.seconds:.1f}")
    console = Console(highlight=False)
    console.print(table)
    if corrections := _corrections(records):
        console.print(corrections)
    for record in records:
        for warning in record.evidence.warnings:
            console.print(f"{record.claim.id}: warning: {warning}", markup=False)
    differing = [record.claim.id for record in records if not record.as_recorded]
    if differing:
        console.print(f"not as recorded: {', '.join(differing)}", markup=False)
    console.print(f"report: {page}", markup=False, soft_wrap=True)


def _corrections(records: Sequence[Record]) -> Table | None:
    """Of claims that were decided and do not simply hold, what is right; where nothing is, the statement itself."""
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


class _ClaimProgress:
    """A bar over claims on standard error."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=Console(stderr=True),
        )

    def __enter__(self) -> _ClaimProgress:
        return self

    def __exit__(self, *error: object) -> None:
        if self.bar.live.is_started:  # stopping a bar that never started would print an empty line
            self.bar.stop()

    def start(self, done: list[str], missing: list[str]) -> None:
        """Show what is stored already and what is left to do."""
        if missing:
            self.bar.start()
            self.task = self.bar.add_task("claims", total=len(done) + len(missing), completed=len(done))

    def advance(self, claim_id: str) -> None:
        """One more claim is stored."""
        self.bar.update(self.task, advance=1, description=claim_id)
