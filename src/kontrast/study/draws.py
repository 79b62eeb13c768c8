"""What a cell of a study is drawn from: its samples and pairs, by the seed alone, and its network."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from kontrast.checks import resolve_dtype
from kontrast.data import Dataset, Pairs, make_pairs, parse_view
from kontrast.nets import MLP
from kontrast.runs import generator_for

if TYPE_CHECKING:
    from kontrast.study.spec import StudySpec


def draw_pairs(spec: StudySpec, dataset: Dataset, seed: int) -> tuple[Tensor, Pairs]:
    """The indices of the contrasted samples, and their pairs: the same for every width, so only networks differ."""
    sampler = generator_for(seed, 0)
    contrasted = dataset.draw(spec.n_samples, generator=sampler)
    pairs = make_pairs(
        dataset.x[contrasted],
        views=parse_view(str(spec.views)),
        n_positives=spec.n_positives,
        negatives=spec.negatives,
        generator=sampler,
    )
    return contrasted, pairs.to(dtype=resolve_dtype(spec.dtype))


def draw_net(spec: StudySpec, d_in: int, width: int, seed: int, *, d_out: int) -> MLP:
    """The network of a width and a seed; its hidden layers are the same whatever `d_out` is."""
    return MLP(
        d_in,
        width,
        d_out,
        depth=spec.depth,
        activation=spec.activation,
        parametrization=spec.parametrization,
        generator=generator_for(seed, width),
        dtype=resolve_dtype(spec.dtype),
    )


def first_outputs(net: MLP, d_out: int) -> MLP:
    """The same network with its first `d_out` outputs alone."""
    if d_out == net.d_out:
        return net
    fewer = MLP(
        net.d_in,
        net.width,
        d_out,
        depth=net.depth,
        activation=net.activation,
        parametrization=net.parametrization,
        dtype=net.output.dtype,
        device=net.output.device,
    )
    fewer.load_state_dict({**net.state_dict(), "output": net.output[:, :d_out]})
    return fewer
