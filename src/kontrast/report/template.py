"""The pages' templates, each beside the code that fills it, and how words get into them."""

from __future__ import annotations

from typing import Any

import jinja2
from markupsafe import Markup

from kontrast.report.svg import printable

PAGE = "report.html"  # what every page is written to


def template(package: str, name: str = "page.html") -> jinja2.Template:
    """A template of a package; what it is given is escaped, and a name it is not given is an error."""
    environment = jinja2.Environment(
        loader=jinja2.ChoiceLoader([jinja2.PackageLoader(folder, ".") for folder in (package, "kontrast.report")]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template(name)


def _shown(value: Any) -> Any:
    """A value as a page prints it: words without characters that no page can hold; markup and pictures as they are."""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value
