"""What a cell of a study is drawn from: its samples and pairs, by the seed alone, and its network."""

from __future__ import annotations

import functools

from torch import Tensor

from kontrast.checks import resolve_dtype
from kontrast.data import Dataset, Pairs, fit_view, load_data, make_pairs, parse_view
from kontrast.nets import MLP
from kontrast.runs import generator_for
from kontrast.study.spec import StudySpec


def load_samples(spec: StudySpec) -> Dataset:
    """The data of a spec, standardised where it says so."""
    dataset = load_data(spec.data, spec.split, spec.image_shape, spec.label_column, spec.x_key, spec.y_key)
    return _standardized(dataset) if spec.standardize else dataset


@functools.lru_cache(maxsize=1)
def _standardized(dataset: Dataset) -> Dataset:
    """Once per process, as cells share it."""
    return dataset.standardized()


def draw_pairs(spec: StudySpec, dataset: Dataset, seed: int) -> tuple[Tensor, Pairs]:
    """The indices of the contrasted samples, and their pairs: the same for every width, so only networks differ."""
    sampler = generator_for(seed, 0)
    contrasted = dataset.draw(spec.n_samples, generator=sampler)
    pairs = make_pairs(
        dataset.x[contrasted],
        views=fit_view(parse_view(str(spec.views)), [dataset.x]),
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
