"""`python -m kontrast`."""

from kontrast.cli import main

main()
