"""A matplotlib figure as bytes: SVG that can stand inside a page beside others, and PNG. Both without a clock."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from xml.etree import ElementTree

from matplotlib.figure import Figure

from kontrast.report.axes import INK

FONTS = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', 'Noto Sans', Arial, sans-serif"
_SVG, _HREF = "http://www.w3.org/2000/svg", "{http://www.w3.org/1999/xlink}href"
_REFERENCE = re.compile(r"url\(#([^)]+)\)")
_NUMBER = re.compile(r"-?\d+\.\d{3,}")
_FONT = re.compile(r"font-family:[^;]*;?\s*")


def to_svg(figure: Figure, *, name: str, label: str, links: Mapping[str, str] | None = None) -> str:
    """The figure as one `<svg>` element: ink as `currentColor`, fonts of the reader's, ids that begin with `name`.

    `links` has words for every link in it, by its fragment; a picture with links is a group of these, not an image.

    matplotlib's own output names its groups alike in every figure, styles `*` and speaks xlink; inside a page with
    other pictures all three do harm, so the tree is rewritten: only referenced ids stay, under the panel's name.
    """
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    root = ElementTree.fromstring(buffer.getvalue())
    _drop(root, "metadata", "style")
    referenced = _references(root)
    for element in root.iter():
        element.tag = element.tag.removeprefix(f"{{{_SVG}}}")
        element.text, element.tail = element.text if (element.text or "").strip() else None, None
        if element.get("id") not in referenced:
            element.attrib.pop("id", None)
        for key, value in list(element.attrib.items()):
            element.attrib[key] = _rewritten(key, value, name)
        if _HREF in element.attrib:
            element.set("href", element.attrib.pop(_HREF))
        if element.tag == "a":
            words = (links or {})[element.attrib["href"].removeprefix(f"#{name}-")]
            element.attrib = {"href": element.attrib["href"], "aria-label": printable(words), "pointer-events": "all"}
    attributes = {
        "xmlns": _SVG,
        "viewBox": root.attrib["viewBox"],
        "role": "group" if links else "img",
        "aria-label": printable(label),
        "font-family": FONTS,
        "stroke-linejoin": "round",
    }
    root.attrib.clear()
    root.attrib.update(attributes)
    return ElementTree.tostring(root, encoding="unicode")


def to_png(figure: Figure) -> bytes:
    """The figure as a PNG on white."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=150, facecolor="white", metadata={"Software": None})
    return buffer.getvalue()


def printable(text: str) -> str:
    """Characters that no page can hold (controls, halves of a pair) become �."""
    return "".join(character if character.isprintable() else "\ufffd" for character in text)


def _drop(root: ElementTree.Element, *names: str) -> None:
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag in {f"{{{_SVG}}}{name}" for name in names}:
                parent.remove(child)


def _references(root: ElementTree.Element) -> set[str]:
    found: set[str] = set()
    for element in root.iter():
        found.update(match for value in element.attrib.values() for match in _REFERENCE.findall(value))
        found.add(element.get(_HREF, "").removeprefix("#"))
    return found


def _rewritten(key: str, value: str, name: str) -> str:
    if key == "id":
        return f"{name}-{value}"
    if key == _HREF:
        return f"#{name}-{value.removeprefix('#')}"
    if key in ("d", "x", "y"):  # hundredths of a point: half the size, no visible change
        return _NUMBER.sub(lambda match: f"{float(match[0]):.2f}", value)
    value = _REFERENCE.sub(rf"url(#{name}-\1)", value)
    return _FONT.sub("", value).replace(INK, "currentColor")
