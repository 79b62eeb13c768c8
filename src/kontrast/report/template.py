"""The pages' templates, and how words get into them."""

from __future__ import annotations

from typing import Any

import jinja2
from markupsafe import Markup

from kontrast.report.svg import printable

PAGE = "report.html"  # what every page is written to


def template(name: str) -> jinja2.Template:
    """A file of `templates`; what it is given is escaped, and a name it is not given is an error."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("kontrast.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template(name)


def _shown(value: Any) -> Any:
    """What a page prints: words without characters that no page can hold; markup and pictures as they are."""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value
