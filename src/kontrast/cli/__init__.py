"""The command line: options in, library calls, words out. Heavy imports happen inside the commands."""

# In the order of `kontrast --help`.
# isort: off
from kontrast.cli.app import app, main
from kontrast.cli import study, embed, verify, report

__all__ = ["app", "embed", "main", "report", "study", "verify"]
