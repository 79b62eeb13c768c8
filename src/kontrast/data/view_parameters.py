"""What a view drew: the same views as before, and the numbers behind them."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from kontrast.data.view_numbers import DrawnView
from kontrast.data.views import Compose, View, fresh_view


def view_parts(view: View) -> dict[str, View]:
    """The parts of a composition by name, in order, and of any other view itself: {"crop": …, "flip": …}.

    A view of this package has its name in texts of views, a function its own. A second one of a name is "crop (2)".
    """
    parts = view.views if isinstance(view, Compose) else (view,)
    return dict(zip(_numbered(map(_name, parts)), parts, strict=True))


def view_with_parameters(view: View, x: Tensor, generator: torch.Generator) -> tuple[Tensor, dict[str, Tensor]]:
    """`view(x, generator)` to the bit, and the numbers that made it, each (n,).

    They are called by part and number, "crop: area" or "affine: shift x", and by the part alone where it has one number
    only: "flip". Sizes are float64, and bool is yes or no. Views with a draw for every value (noise, masks) and a
    user's own function tell nothing.
    """
    told: dict[str, Tensor] = {}
    for name, part in view_parts(view).items():
        if not isinstance(part, DrawnView):
            x = fresh_view(part, x, generator)
            continue
        part.check(x)
        numbers = part.drawn(len(x), generator, x.device)
        x = part.applied(x, numbers)
        # A whole number says which other sample was taken, and is no size.
        sizes = {
            key: number for key, number in numbers.items() if number.is_floating_point() or number.dtype == torch.bool
        }
        told |= {name if len(sizes) == 1 else f"{name}: {key}": number for key, number in sizes.items()}
    return x, told


def _name(part: View) -> str:
    text = getattr(part, "__name__", None)
    if isinstance(text, str):
        return "view" if text == "<lambda>" else text
    # Of an object without a text of its own the type's name, not the address in memory.
    return type(part).__name__ if type(part).__str__ is object.__str__ else str(part).partition(":")[0]


def _numbered(names: Iterable[str]) -> list[str]:
    numbered: list[str] = []
    counts: dict[str, int] = {}
    for name in names:
        counts[name] = counts.get(name, 0) + 1
        numbered.append(name if counts[name] == 1 else f"{name} ({counts[name]})")
    return numbered
