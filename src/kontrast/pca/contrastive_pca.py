r"""Paper A, Sec. 4: with an orthonormal output layer the linear contrastive loss is a trace, and training it is PCA.

The network (7) has the loss $-\mathrm{Tr}(W^\top \tilde C_V W)$ with $C_V = \Phi^\top S \Phi$: Φ (m, M) are the hidden
features over the pool, normalised as in (8) or (10), S is the sparse `pair_matrix`. For fixed V the best W are the
eigenvectors of the largest *algebraic* eigenvalues of $\tilde C_V$ (the largest in magnitude may repel).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from kontrast.checks import require_components, require_finite, require_floating, require_shape
from kontrast.data import Pairs
from kontrast.dynamics import Recorder, Snapshot, Trajectory, contrastive_problem, gradient_descent
from kontrast.errors import InputError
from kontrast.linalg import fix_signs, largest_eigenpairs, qr_retraction, top_eigenpairs
from kontrast.losses import ContrastiveLoss, Cosine, Dot, Linear
from kontrast.nets import MLP, Parameters, PureFunction, hidden_activations, parameters_of

EXACT_BELOW = 4000  # min(m, M) up to which C is decomposed exactly; (3000, 8192) takes 4 s on two cores
DENSE_POOL = 8192  # a pair matrix of up to so many rows may be made dense (512 MB) where that multiplies faster
DENSE_SPEED = 64  # how many entries of a dense matrix are multiplied in the time of one entry of a sparse one
STRIP = 1024  # rows of C(t) − C(0) held at a time where the difference is formed


def hidden_features(net: MLP, x: Tensor, parameters: Mapping[str, Tensor] | None = None) -> Tensor:
    """The last hidden layer's activations φ(V x), (m, M), of the net or of other `parameters` by its names."""
    net.check_rows(x)
    V, _ = net.layers(parameters)
    return hidden_activations(x.flatten(1), V, net.scales[:-1], net.activation)


def pair_features(
    net: MLP, x: Tensor, *, delta: float | None = None, parameters: Mapping[str, Tensor] | None = None
) -> Tensor:
    r"""The rows Φ (m, M) whose products with `pair_matrix` make paper A's $C_V$: C_V = Φ^T S Φ.

    $\phi/\sqrt M$ for the dot product (`delta=None`; eq. (8)), or $\phi/(\|\phi\| + \sqrt M\,\delta)$, the normalised
    similarity on the right of (9) (eq. (10)). It bounds the cosine from below only where it is not negative, contrary
    to the paper (claim A.eq9). The factor 1/√M is that of (7), whatever the net's parametrisation. Differentiable in
    `parameters`, even at a point where every unit is silent, φ = 0.
    """
    phi = hidden_features(net, x, parameters)
    root = math.sqrt(net.width)
    return phi / root if delta is None else Cosine(delta=root * delta).embed(phi)


def orthonormal_start(net: MLP) -> Parameters:
    """The net's parameters with the columns of W orthonormalised: where training of (7) starts."""
    parameters = parameters_of(net)
    return {**parameters, "output": qr_retraction(parameters["output"])}


def pca_network(net: MLP, *, delta: float | None = None) -> PureFunction:
    r"""f(parameters, x) = Φ W, paper A's (7), for (10) with the normalisation of `pair_features`.

    With `contrastive_problem(pairs, ContrastiveLoss(Dot(), Linear()))` its loss is $-\mathrm{Tr}(W^\top \tilde C_V W)$
    exactly, for any W (claims A.eq8, A.eq10).
    """

    def function(parameters: Mapping[str, Tensor], x: Tensor) -> Tensor:
        return pair_features(net, x, delta=delta, parameters=parameters) @ parameters["output"]

    return function


def contrastive_matrix(features: Tensor, S: Tensor) -> Tensor:
    r"""C = Φ^T S Φ, (M, M): $\tilde C_V$ of (8) or (10) for the symmetric `pair_matrix`, $C_V$ for the other."""
    _require_match(S, features=features)
    return features.mT @ _product(S, features)


def contrastive_drift(features: Tensor, features0: Tensor, S: Tensor) -> float:
    r"""‖C(t) − C(0)‖_F of paper A, Lemma 16 and Fig. 4, for S symmetric or not, exact for drifts of any size.

    With Δ = Φ_t − Φ_0 and the mean A = (Φ_t + Φ_0)/2 the difference is $\Delta^\top S A + A^\top S \Delta$, exactly, so
    two nearly equal matrices are never subtracted. For M > m its squared norm comes from the (m, m) products ΔΔ^T, AA^T
    and ΔA^T alone; for M ≤ m it is formed, a strip of rows at a time.
    """
    _require_match(S, features=features, features0=features0)
    delta, mean = features.detach() - features0.detach(), (features.detach() + features0.detach()) / 2
    sizes = [float(part.abs().max()) for part in (delta, mean)]
    if not all(map(math.isfinite, sizes)):
        raise InputError("features hold NaN or infinite values; look at the drift before training overflows")
    if 0.0 in sizes:  # nothing moved, or Φ_t = −Φ_0, which has the same C
        return 0.0
    # Divided by their largest entries: the fourth powers below would overflow in float32, or underflow for tiny drifts.
    delta, mean = delta / sizes[0], mean / sizes[1]
    m, M = delta.shape
    square = _squared_drift_by_products(delta, mean, S) if m < M else None
    if square is None:
        square = _squared_drift_by_strips(delta, mean, S)
    return math.sqrt(square) * sizes[0] * sizes[1]


@dataclass(frozen=True, eq=False)
class PCASolution:
    """The maximum of (5) for a fixed C: `frame` is W*, and −`values.sum()` the smallest loss that W can reach.

    `gap` is λ_k − λ_(k+1) among all M eigenvalues, infinite only for k = M. `warnings` say if the answer is not unique.
    """

    frame: Tensor  # (M, k), orthonormal columns
    values: Tensor  # (k,), the largest algebraic eigenvalues, descending
    gap: float
    warnings: tuple[str, ...] = ()


def contrastive_pca(features: Tensor, S: Tensor, n_components: int) -> PCASolution:
    r"""PCA of $\tilde C_V$ = (C + C^T)/2, C = Φ^T S Φ: the W that minimises the loss for fixed V (paper A, (5), (8)).

    Exact for min(m, M) ≤ 4000: from C itself for M ≤ m, else from R S R^T (m, m) with Φ^T = Q R, whose eigenvalues
    together with M − m zeros are those of C. Above, `linalg.top_eigenpairs` multiplies by Φ and S alone. The zeros
    are among the largest eigenvalues as soon as fewer than k are positive; any directions orthogonal to the features
    are then as good as those returned, and a warning says so. Φ (m, M) are the `pair_features`, S is the `pair_matrix`
    (m, m), symmetric or not, and k = `n_components` the dimension Z of the representation.
    """
    _require_match(S, features=features)
    features = features.detach()
    m, M = features.shape
    k = require_components(n_components, M)
    noise = rounding_of_eigenvalues(features, S)
    if min(m, M) > EXACT_BELOW:
        values, frame, error = _by_lanczos(features, S, k, noise)
        noise = max(noise, error)
    elif m < M:
        values, frame = _from_triangle(features, S, k, noise)
    else:
        values, frame = _from_matrix(features, S, k, noise)
    gap = float(values[k - 1] - values[k]) if k < M else math.inf
    return PCASolution(fix_signs(frame[:, :k]), values[:k], gap, _gap_warnings(gap, noise, float(values[k - 1]), k))


def train_pca_network(
    net: MLP,
    pairs: Pairs,
    *,
    delta: float | None,
    learning_rate: float,
    n_steps: int,
    freeze_hidden: bool = False,
    start: Mapping[str, Tensor] | None = None,
    record_at: Collection[int] | None = None,
    recorders: Mapping[str, Recorder] | None = None,
    keep_outputs: bool = False,
) -> Trajectory:
    """Training of paper A's (7) under (8) or (10): Grassmannian descent of W, plain descent of the hidden layers.

    δ = None is the dot product, (8). `freeze_hidden` holds V, and so C_V, at its start (Fig. 4, right), and computes
    the features once. `start` has a W with orthonormal columns, by default that of `orthonormal_start(net)`; the net
    itself is not changed. A recorder's snapshot holds all parameters, frozen ones too. The other arguments are those of
    `gradient_descent`, with one η for all layers.
    """
    problem = contrastive_problem(pairs, ContrastiveLoss(Dot(), Linear()))
    parameters = start_of(net, start)
    descent = partial(
        gradient_descent,
        problem=problem,
        learning_rate=learning_rate,
        n_steps=n_steps,
        record_at=record_at,
        keep_outputs=keep_outputs,
        orthonormal={"output"},
    )
    if not freeze_hidden:
        return descent(pca_network(net, delta=delta), parameters, recorders=recorders)
    # Descent of W alone: hidden layers at rate 0 would cost a zero gradient of their size at every step.
    features = pair_features(net, problem.inputs, delta=delta, parameters=parameters).detach()
    run = descent(
        lambda moving, _: features @ moving["output"],
        {"output": parameters["output"]},
        recorders={name: _with_frozen(recorder, parameters) for name, recorder in (recorders or {}).items()},
    )
    frozen = {name: p.detach().clone() for name, p in parameters.items()}
    return replace(run, final_parameters={**frozen, **run.final_parameters})


def row_difference(a: Tensor, b: Tensor) -> float:
    """The mean over rows of ‖a_i − b_i‖/‖b_i‖: the "mean fractional difference" of paper A, Fig. 4 (right).

    By rows, since single entries of b can be 0 (claim A.fig1).
    """
    if a.ndim != 2 or a.shape != b.shape or len(b) == 0:
        raise InputError(
            f"a and b must be representations (n, z) of the same points, got {tuple(a.shape)} and {tuple(b.shape)}"
        )
    require_finite("a", a, "compare before training overflows")
    require_finite("b", b, "compare before training overflows")
    size = b.detach().double().norm(dim=1)
    zero = (size == 0).nonzero().flatten().tolist()
    if zero:
        raise InputError(
            f"{len(zero)} of {len(b)} rows of b are zero (the first is row {zero[0]}), so a difference relative to "
            f"them has no meaning; leave these points out, or compare (a - b).norm() / b.norm()"
        )
    return float(((a.detach().double() - b.detach().double()).norm(dim=1) / size).mean())


def start_of(net: MLP, start: Mapping[str, Tensor] | None) -> Parameters:
    """`start`, checked and in the order of the net's parameters; by default `orthonormal_start(net)`."""
    if start is None:
        return orthonormal_start(net)
    own = {name: tuple(p.shape) for name, p in net.named_parameters()}
    given = {name: tuple(p.shape) for name, p in start.items()}
    if own != given:
        raise InputError(f"start must hold the net's parameters {own}, got {given}; begin with orthonormal_start(net)")
    return {name: start[name] for name in own}


def _with_frozen(recorder: Recorder, frozen: Mapping[str, Tensor]) -> Recorder:
    """The recorder, shown the frozen parameters beside those that move."""

    def record(snapshot: Snapshot) -> Tensor | float:
        parameters = {**{name: p.detach() for name, p in frozen.items()}, **snapshot.parameters}
        return recorder(Snapshot(snapshot.step, snapshot.outputs, parameters))

    return record


def _require_match(S: Tensor, **features: Tensor) -> None:
    if S.layout not in (torch.strided, torch.sparse_coo):
        raise InputError(f"S must be dense or sparse in COO layout, as pair_matrix gives it, got {S.layout}")
    for name, rows in features.items():
        require_floating(name, rows, "use pair_features")
        require_shape(name, rows, ("m", "M"), "use pair_features")
        if tuple(S.shape) != (len(rows), len(rows)) or S.dtype != rows.dtype:
            raise InputError(
                f"S must be {rows.dtype} of shape {(len(rows), len(rows))}, over the points of {name}, got {S.dtype} "
                f"{tuple(S.shape)}; use pair_matrix(pairs) and the features of pairs.rows"
            )
    shapes = {name: tuple(rows.shape) for name, rows in features.items()}
    if len(set(shapes.values())) > 1:
        raise InputError(f"the features must have one shape, that of one network, got {shapes}")


def _product(S: Tensor, block: Tensor) -> Tensor:
    """S @ block, as a dense product where S has so many entries that it is faster."""
    if S.layout != torch.strided and len(S) <= DENSE_POOL and DENSE_SPEED * S._nnz() > len(S) ** 2:
        S = S.to_dense()
    # Contiguous rows: the sparse product adds up whole rows.
    return S @ (block if S.layout == torch.strided else block.contiguous())


def _squared_drift_by_products(delta: Tensor, mean: Tensor, S: Tensor) -> float | None:
    r"""‖Δ^T S A + A^T S Δ‖² from (m, m) products; None where its three terms cancel, as when C does not move.

    The terms are tr(ΔΔ^T S AA^T S^T), tr(AA^T S ΔΔ^T S^T) and 2 tr(P S P S^T), P = ΔA^T.
    """

    def inner(left: Tensor, right: Tensor) -> float:  # ⟨left, S right^T S^T⟩
        return float((left * _product(S, _product(S, right).mT)).sum(dtype=torch.float64))

    D, A, P = delta @ delta.mT, mean @ mean.mT, delta @ mean.mT
    squares, cross = inner(D, A) + inner(A, D), 2 * inner(P, P)
    resolved = squares + cross > torch.finfo(delta.dtype).eps ** (1 / 3) * squares
    return squares + cross if resolved else None


def _squared_drift_by_strips(delta: Tensor, mean: Tensor, S: Tensor) -> float:
    S_delta, S_mean = _product(S, delta), _product(S, mean)
    square = 0.0
    for first in range(0, delta.shape[1], STRIP):
        units = slice(first, first + STRIP)
        strip = torch.addmm(delta[:, units].mT @ S_mean, mean[:, units].mT, S_delta)
        square += float(strip.square().sum(dtype=torch.float64))
    return square


def rounding_of_eigenvalues(features: Tensor, S: Tensor) -> float:
    """The rounding error of an eigenvalue of C: a few eps times the bound max‖φ‖² Σ|S|.

    Not times |λ|max, which is far smaller where attraction and repulsion cancel (features with a large mean).
    """
    longest = float(features.square().sum(1).max())
    weights = float((S if S.layout == torch.strided else S.coalesce().values()).abs().sum())
    if not (math.isfinite(longest) and math.isfinite(weights)):
        raise InputError("features or S hold NaN, infinite or huge values; lower the learning rate, or stop earlier")
    return 16 * torch.finfo(features.dtype).eps * longest * weights


def _require_nonzero(matrix: Tensor, noise: float) -> None:
    if float(matrix.norm()) <= noise:
        raise InputError(
            "the contrastive matrix is zero to rounding: S is zero, or the features are zero or equal at all points; "
            "pass features that differ between points"
        )


def _from_matrix(features: Tensor, S: Tensor, k: int, noise: float) -> tuple[Tensor, Tensor]:
    C = features.mT @ _product(S, features)
    _require_nonzero(C, noise)
    return largest_eigenpairs(C, k + 1)


def _from_triangle(features: Tensor, S: Tensor, k: int, noise: float) -> tuple[Tensor, Tensor]:
    """For m < M: C = Q (R S R^T) Q^T, with Q (M, M) kept as a product of reflections."""
    m, M = features.shape
    reflectors, tau = torch.geqrf(features.mT)
    R = reflectors[:m].triu()
    T = R @ _product(S, R.mT)
    _require_nonzero(T, noise)
    inside, u = largest_eigenpairs(T, k + 1)
    zeros = min(k + 1, M - m)
    values, order = torch.cat([inside, inside.new_zeros(zeros)]).sort(descending=True, stable=True)
    coefficients = u.new_zeros(M, len(order))  # in Q's columns: the features' span first, then its complement
    coefficients[:m, : len(inside)] = u
    coefficients[m : m + zeros, len(inside) :].fill_diagonal_(1.0)
    return values, torch.ormqr(reflectors, tau, coefficients[:, order[:k]].contiguous())


def _by_lanczos(features: Tensor, S: Tensor, k: int, noise: float) -> tuple[Tensor, Tensor, float]:
    """The values, the vectors and, from the residuals, how far off the values may be."""
    M = features.shape[1]
    S = (S + S.mT) / 2
    S = S if S.layout == torch.strided else S.coalesce()

    def C(block: Tensor) -> Tensor:
        return features.mT @ _product(S, features @ block)

    probe = torch.randn(M, 1, generator=torch.Generator().manual_seed(0), dtype=features.dtype)
    _require_nonzero(C(probe.to(features.device)), noise)  # E‖C g‖² = ‖C‖_F²
    top = top_eigenpairs(C, min(k + 1, M), n=M, dtype=features.dtype, device=features.device)
    return top.values, top.vectors, 2 * float(top.residuals.max()) * float(top.values.abs().max())


def _gap_warnings(gap: float, noise: float, value: float, k: int) -> tuple[str, ...]:
    if gap > noise:
        return ()
    zero = abs(value) <= noise
    fix = "lower n_components to the number of positive eigenvalues" if zero else "change n_components"
    return (
        f"the eigengap is {gap:.2g}, zero to rounding ({noise:.1g}): the top-{k} subspace is not unique; "
        f"{fix}, or add pairs",
    )
