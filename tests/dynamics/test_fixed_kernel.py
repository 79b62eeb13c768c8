from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis.strategies import integers, sampled_from

from kontrast.data import GaussianNoise, make_pairs
from kontrast.dynamics import Status, contrastive_problem, fixed_kernel_descent, fixed_kernel_flow, gradient_descent
from kontrast.errors import InputError, KontrastError
from kontrast.kernels import empirical_ntk
from kontrast.losses import ContrastiveLoss, Cosine, Dot, Linear, LogSoftmax, Softmax
from kontrast.nets import MLP, Linearized
from tests.cases import generator, randn
from tests.reference import ntk

SIMILARITIES = [Dot(), Cosine(0.01)]
LINKS = [Linear(), Softmax(0.5), LogSoftmax(0.5)]


def setting(seed: int, similarity: object = SIMILARITIES[1], link: object = LINKS[0], activation: str = "tanh"):
    pairs = make_pairs(randn(4, 3, seed=seed), views=GaussianNoise(0.1), negatives=2, generator=generator(seed))
    net = MLP(3, 10, 2, activation=activation, generator=generator(seed), dtype=torch.float64)
    return net, contrastive_problem(pairs, ContrastiveLoss(similarity, link))


@given(seed=integers(0, 2**16), similarity=sampled_from(SIMILARITIES), link=sampled_from(LINKS))
def test_lemma_9(seed: int, similarity: object, link: object) -> None:
    """df/dt = −K ∂L/∂F along the gradient flow, claim A.lem9, exact."""
    net, problem = setting(seed, similarity, link)
    outputs = net(problem.inputs)
    gradients = torch.autograd.grad(problem.objective(outputs), list(net.parameters()))
    velocity = -torch.einsum(
        "ncp,p->nc", ntk.jacobian(net, problem.inputs), torch.cat([g.flatten() for g in gradients])
    )
    K, F = empirical_ntk(net, problem.inputs), outputs.detach()
    step = fixed_kernel_descent(K, F, problem.objective, learning_rate=1.0, n_steps=1)
    assert (step.final_outputs - F - velocity).abs().max() <= 1e-12 * max(1.0, float(velocity.abs().max()))


@given(seed=integers(0, 2**16), similarity=sampled_from(SIMILARITIES), link=sampled_from(LINKS))
@settings(max_examples=15)
def test_descent_is_the_linearized_networks_training(seed: int, similarity: object, link: object) -> None:
    net, problem = setting(seed, similarity, link)
    lin, options = (
        Linearized.of(net),
        {"learning_rate": 0.05, "n_steps": 8, "record_at": [0, 3, 8], "keep_outputs": True},
    )
    trained = gradient_descent(lin, lin.origin, problem, **options)
    K = empirical_ntk(net, problem.inputs)
    dense = fixed_kernel_descent(K, net(problem.inputs).detach(), problem.objective, **options)
    free = fixed_kernel_descent(
        lambda v: lin.kernel_product(problem.inputs, v), net(problem.inputs).detach(), problem.objective, **options
    )
    torch.testing.assert_close(dense.outputs, trained.outputs, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(free.outputs, trained.outputs, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(dense.losses, trained.losses, rtol=1e-8, atol=1e-10)


@given(seed=integers(0, 2**16))
@settings(max_examples=10)
def test_one_kernel_for_all_outputs(seed: int) -> None:
    _, problem = setting(seed)
    A, F = randn(8, 8, seed=seed), randn(8, 2, seed=seed + 1)
    k = A @ A.mT
    full = torch.einsum("xy,ij->xyij", k, torch.eye(2, dtype=torch.float64))
    runs = [fixed_kernel_descent(K, F, problem.objective, learning_rate=0.01, n_steps=10) for K in (k, full)]
    torch.testing.assert_close(runs[0].final_outputs, runs[1].final_outputs, rtol=1e-10, atol=1e-12)


def test_quadratic_loss_has_its_closed_form() -> None:
    """Without any contrast: L = ½‖F − Y‖² gives F(t) = Y + e^{−Kt}(F₀ − Y), and (I − ηK)^t in steps."""
    A, F, Y = randn(5, 5), randn(5, 2, seed=1), randn(5, 2, seed=2)
    K = A @ A.mT / 5
    times = [0.0, 0.5, 3.0]
    flow = fixed_kernel_flow(K, F, lambda f: (f - Y).pow(2).sum() / 2, times=times)
    for row, t in zip(flow, times, strict=True):
        torch.testing.assert_close(row, Y + torch.linalg.matrix_exp(-K * t) @ (F - Y), rtol=1e-7, atol=1e-8)
    steps = fixed_kernel_descent(K, F, lambda f: (f - Y).pow(2).sum() / 2, learning_rate=0.1, n_steps=25)
    matrix = torch.linalg.matrix_power(torch.eye(5, dtype=torch.float64) - 0.1 * K, 25)
    torch.testing.assert_close(steps.final_outputs, Y + matrix @ (F - Y), rtol=1e-10, atol=1e-12)


def test_descent_tends_to_the_flow_at_first_order() -> None:
    net, problem = setting(3)
    K, F = empirical_ntk(net, problem.inputs), net(problem.inputs).detach()
    flow = fixed_kernel_flow(K, F, problem.objective, times=[1.0])[0]
    errors = [
        float(
            (fixed_kernel_descent(K, F, problem.objective, learning_rate=1 / n, n_steps=n).final_outputs - flow).norm()
        )
        for n in (25, 50, 100)
    ]
    assert errors[0] / errors[1] == pytest.approx(2, rel=0.1)
    assert errors[1] / errors[2] == pytest.approx(2, rel=0.1)


def test_new_points_are_carried_along() -> None:
    net, problem = setting(1)
    everything = torch.cat([problem.inputs, randn(3, 3, seed=9)])
    K, F = empirical_ntk(net, everything), net(everything).detach()
    run = fixed_kernel_descent(K, F, lambda f: problem.objective(f[:8]), learning_rate=0.05, n_steps=20)
    lin = Linearized.of(net)
    trained = gradient_descent(lin, lin.origin, problem, learning_rate=0.05, n_steps=20)
    torch.testing.assert_close(run.final_outputs, lin(trained.final_parameters, everything), rtol=1e-8, atol=1e-10)


def test_overflow_is_a_status_and_a_blow_up_is_an_error() -> None:
    K, F = torch.eye(2, dtype=torch.float64), torch.ones(2, 1, dtype=torch.float64)
    run = fixed_kernel_descent(K, F, lambda f: -f.pow(4).sum(), learning_rate=0.1, n_steps=100)
    assert run.status is Status.DIVERGED
    with pytest.raises(KontrastError, match="could not be followed to time 10"):
        fixed_kernel_flow(K, F, lambda f: -f.pow(4).sum(), times=[10.0])


@pytest.mark.parametrize(
    "kernel, rate, message",
    [(torch.eye(3), 0.1, r"must be \(2, 2\) or \(2, 2, 1, 1\)"), (torch.eye(2), -1, "learning_rate .* got -1")],
)
def test_bad_descents_are_refused(kernel: torch.Tensor, rate: float, message: str) -> None:
    with pytest.raises(InputError, match=message):
        fixed_kernel_descent(kernel, torch.ones(2, 1), torch.sum, learning_rate=rate, n_steps=1)


@pytest.mark.parametrize("times", [[2.0, 1.0], [], [-1.0, 1.0]])
def test_bad_times_are_refused(times: list[float]) -> None:
    with pytest.raises(InputError, match="must be finite, increasing"):
        fixed_kernel_flow(torch.eye(2), torch.ones(2, 1), torch.sum, times=times)
