"""The command line: options in, library calls, words out. Heavy imports happen inside the commands."""

# In the order of `kontrast --help`.
# isort: off
from kontrast.cli.program import app, main
from kontrast.cli import program, study, diagnose, embed, verify, report

__all__ = [
    "app",
    "diagnose",
    "embed",
    "main",
    "program",
    "report",
    "study",
    "verify",
]
