"""Which parts of a view an embedding ignores, and which it tells: each part is applied alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from kontrast.checks import (
    require_callable,
    require_finite,
    require_floating,
    require_generator,
    require_same_shape,
    require_shape,
)
from kontrast.data import View, view_parts, view_with_parameters
from kontrast.diagnosis.intervals import Row, jackknifed
from kontrast.diagnosis.leaks import explained
from kontrast.errors import InputError
from kontrast.linalg import Estimate

Embed = Callable[[Tensor], Tensor]

OFF = 1e-3  # of the squared distance between samples, 3 % of the distance itself: a view nobody would call one
IGNORED = 0.05  # a twentieth of the squared distance to another sample: the view's nearest neighbour is its sample
LEAKED = 0.1  # of the variance: less than this a probe finds by luck in a few dozen samples
FEW = 64  # samples: below, intervals of probes that know nothing reach above LEAKED now and then
FEW_OF_A_KIND = 5  # so that each fold is likely to hold one of both
APPLIED = "applied"  # the name of the question whether a sample is a view at all
OWN = "the embedding"


@dataclass(frozen=True)
class Augmentation:
    """One part of a view, applied alone.

    Attributes:
        name: of the part, such as "flip".
        change: mean squared distance of a sample and its view over that of two samples, in the input.
        invariance: the same in each embedding: 0 ignores the part, 1 moves a sample as far as to another one.
        leaks: by number drawn ("crop: area") and embedding, R² of a linear probe from the embedding of the view alone
            to this number. A part without numbers of its own has "applied" in their place: whether it was.
        missing: why a probe is missing, by number.
    """

    name: str
    change: Estimate
    invariance: Mapping[str, Estimate]
    leaks: Mapping[str, Mapping[str, Estimate]]
    missing: Mapping[str, str] = field(default_factory=dict)

    @property
    def acts(self) -> bool:
        """Whether the part changes these samples at all; gray does nothing to gray images."""
        return not self.change.value < OFF

    @property
    def ignored(self) -> bool:
        """Whether the embedding barely moves where the samples do."""
        own = self.invariance[OWN]
        return self.acts and (own.value if math.isnan(own.high) else own.high) < IGNORED

    @property
    def leaked(self) -> tuple[str, ...]:
        """The numbers that a linear probe reads off the embedding of a view, the clearest first."""
        leaked = [name for name, leak in self.leaks.items() if self.acts and leak[OWN].low > LEAKED]
        return tuple(sorted(leaked, key=lambda name: -self.leaks[name][OWN].value))

    def rows(self) -> list[Row]:
        """Every number, as stored."""
        rows = [Row(f"change: {self.name}", self.change, f"how far {self.name} moves the input, 1: to another sample")]
        for of, value in self.invariance.items():
            rows.append(Row(f"invariance: {self.name}, {of}", value, f"how far {self.name} moves {of}, 0: ignored"))
        for number, leak in self.leaks.items():
            what = self._what(number)
            for of, value in leak.items():
                rows.append(Row(f"leak: {self._key(number)}, {of}", value, f"R² of a linear probe of {of} for {what}"))
        return rows

    def told(self, number: str) -> str:
        """A leak in words, with what the references leak: "brightness (R² 0.84 [0.80, 0.88]; the start 0.31)"."""
        own, *others = self.leaks[number].items()
        beside = "".join(f"; {of} {value.value:.2g}" for of, value in others)
        return f"{self._what(number)} (R² {own[1]}{beside})"

    def _what(self, number: str) -> str:
        part, colon, detail = number.partition(": ")
        return (
            f"whether {self.name} was applied" if number == APPLIED else f"the {detail} of {part}" if colon else number
        )

    def _key(self, number: str) -> str:
        return f"{self.name}: {APPLIED}" if number == APPLIED else number


def relative_distance(a: Tensor, b: Tensor) -> Estimate:
    r"""$\mathrm{mean}_i \|a_i - b_i\|^2 / \mathrm{mean}_{i \neq j} \|a_i - b_j\|^2$ with its interval over samples.

    0 where each sample is its view, 1 where a view is as far from its sample as from any other. NaN where all samples
    are equal up to rounding.
    """
    _require_views(a, b)
    distances = _squared_distances(a.detach().flatten(1), b.detach().flatten(1))

    def share(rows: Tensor) -> dict[str, float]:
        own = distances[rows][:, rows]
        same, n = own.diagonal().sum(), len(rows)
        between = float((own.sum() - same) / (n * (n - 1)))
        return {"share": float(same) / n / between if between > 0 else math.nan}

    return jackknifed(share, len(a))["share"]


def augmentations(
    embed: Embed,
    view: View,
    x: Tensor,
    *,
    references: Mapping[str, Embed] | None = None,
    generator: torch.Generator,
) -> tuple[Augmentation, ...]:
    """Each part of a view alone: how far it moves samples and embeddings, and which of its numbers embeddings tell.

    The probe sees the embedding of the view and not that of its sample: the differences of samples are the noise that
    it must see through, as for anyone who has the embedding alone. (From the difference of both embeddings every smooth
    embedding tells everything, however little it moves.) Each sample is seen once in each part, by all embeddings
    alike. Numbers that do not vary are left out.

    Args:
        embed: Samples (n, …) to embeddings (n, d).
        view: Whose parts are applied; a user's own function is one part.
        x: Clean samples (n, …).
        references: Other embeddings to compare with, such as {"the start": …, "the raw input": …}.
        generator: Of the views, and of which samples are seen in "applied".
    """
    require_callable("embed", embed, "pass a function of samples (n, …) that returns embeddings (n, d)")
    require_callable("view", view, "pass a view such as kontrast.data.parse_view('crop+flip')")
    require_floating("x", x, "convert the samples with x.float()")
    require_generator(generator)
    if x.ndim < 2 or len(x) < 2:
        raise InputError(f"augmentations need 2 samples (n, …) or more, got shape {tuple(x.shape)}; pass more samples")
    embeds = {OWN: embed, **(references or {})}
    clean = {name: embedded(it, x, name) for name, it in embeds.items()}
    return tuple(_alone(name, part, x, embeds, clean, generator) for name, part in view_parts(view).items())


def told_by(found: Sequence[Augmentation]) -> str:
    """What the embedding ignores and leaks, in one sentence; of each part the number that it leaks most."""
    ignored = [f"{it.name} (invariance {it.invariance[OWN].value:.2g})" for it in found if it.ignored]
    leaked = [it.told(it.leaked[0]) for it in found if it.leaked]
    idle = [it.name for it in found if not it.acts]
    parts = [f"ignores {_listed(ignored)}"] * bool(ignored) + [f"leaks {_listed(leaked)}"] * bool(leaked)
    said = " and ".join(parts) or f"neither ignores nor leaks {_listed([it.name for it in found if it.acts], 'or')}"
    without = f"{_listed(idle)} {'does' if len(idle) == 1 else 'do'} nothing to these samples"
    if len(idle) == len(found):
        return without
    return f"{OWN} {said}" + f"; {without}" * bool(idle)


def embedded(embed: Embed, x: Tensor, name: str) -> Tensor:
    """The embedding of samples, without gradients; refuses what is not (n, d) and finite."""
    with torch.no_grad():
        z = embed(x)
    require_floating(name, z, "it must return one row of numbers per sample")
    require_shape(name, z, (len(x), "d"), "it must return one row of numbers per sample")
    require_finite(name, z, "look for NaN among the model's weights and the samples")
    return z.detach()


def _alone(
    name: str,
    part: View,
    x: Tensor,
    embeds: Mapping[str, Embed],
    clean: Mapping[str, Tensor],
    generator: torch.Generator,
) -> Augmentation:
    seen, numbers = view_with_parameters(part, x, generator)
    require_finite(f"the view {name}", seen, "look for NaN among the samples")
    applied = torch.randperm(len(x), generator=generator, device=generator.device).to(x.device) % 2 == 0
    views = {of: embedded(embed, seen, of) for of, embed in embeds.items()}
    targets, missing = _probes(numbers or {APPLIED: applied}, len(x))
    leaks: dict[str, dict[str, Estimate]] = {number: {} for number in targets}
    for of, z in views.items() if targets else ():
        # Half of the samples as they are and half in the view, never the same one in both.
        rows = z if numbers else torch.where(applied.to(z.device)[:, None], z, clean[of])
        for number, share in explained(rows, targets).items():
            leaks[number][of] = share
    return Augmentation(
        name,
        relative_distance(x, seen),
        {of: relative_distance(clean[of], z) for of, z in views.items()},
        leaks,
        missing,
    )


def _probes(numbers: Mapping[str, Tensor], n: int) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The numbers that a probe can be trained for, and why the others have none."""
    targets, missing = {}, {}
    for name, values in numbers.items():
        if values.is_floating_point() and float(values.max() - values.min()) <= 1e-12 * float(values.abs().max()):
            continue
        if n < FEW:
            missing[name] = f"{n} samples train no probe; it takes {FEW}"
        elif values.dtype == torch.bool and min(kinds := (int(values.sum()), int((~values).sum()))) < FEW_OF_A_KIND:
            missing[name] = f"{kinds[0]} of {n} samples were changed; a probe takes {FEW_OF_A_KIND} of each kind"
        else:
            targets[name] = values
    return targets, missing


def _require_views(a: Tensor, b: Tensor) -> None:
    for name, views in (("view_a", a), ("view_b", b)):
        require_floating(name, views, f"use {name}.float()")
    require_same_shape("pass both views of every sample, row by row", view_a=a, view_b=b)
    if a.ndim < 2 or len(a) < 2:
        raise InputError(f"distances between samples need 2 of them (n, …), got shape {tuple(a.shape)}; pass more")
    for name, views in (("view_a", a), ("view_b", b)):
        require_finite(name, views, "look for NaN among the model's weights and the samples")


def _squared_distances(a: Tensor, b: Tensor) -> Tensor:
    """(n, n) in float64; those of a sample and its view are differences, never of large numbers that cancel."""
    eps = max(torch.finfo(a.dtype).eps, torch.finfo(b.dtype).eps)
    wide = torch.float64 if a.shape[1] <= 4096 else torch.promote_types(a.dtype, torch.float32)
    a, b = a.to(wide), b.to(wide)
    mean = a.mean(0)
    a, b = a - mean, b - mean
    squares = (a.square().sum(1), b.square().sum(1))
    between = (squares[0][:, None] + squares[1] - 2 * (a @ b.mT)).double().clamp(min=0)
    # What rounding leaves of equal rows is no distance.
    floor = (16 * eps) ** 2 * mean.square().sum().double()
    between = torch.where(between <= floor, 0.0, between)
    between.diagonal().copy_((a - b).square().sum(1))
    return between.cpu()


def _listed(names: Sequence[str], last: str = "and") -> str:
    return f"{', '.join(names[:-1])} {last} {names[-1]}" if len(names) > 1 else "".join(names)
