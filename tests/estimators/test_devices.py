from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from kontrast.estimators import ContrastivePCA, DeepLinearSSL, SpectralContrastive, load_model
from tests.estimators.made_data import pairs, row_views


@pytest.mark.gpu
@pytest.mark.parametrize("features", ["random", "fourier"])
@pytest.mark.parametrize("width", [16, math.inf])
def test_a_gpu_gives_the_same(features: str, width: float, tmp_path: object) -> None:
    x, positives = (part.astype(np.float32) for part in pairs())
    views = [view.astype(np.float32) for view in row_views()]
    for model, call, data in (
        (ContrastivePCA(2, width=width, features=features), "fit_pairs", (x, positives)),
        (SpectralContrastive(2, width=width, features=features, ridge=1e-2), "fit_views", (views,)),
    ):
        here = getattr(model, call)(*data)
        expected, values = here.transform(x), here.eigenvalues_
        there = getattr(model.set_params(device="cuda"), call)(*data)
        assert there._frame.is_cuda
        np.testing.assert_allclose(there.eigenvalues_, values, rtol=0, atol=1e-4)
        found = there.transform(x)
        assert isinstance(found, np.ndarray)
        signs = np.sign((found * expected).sum(0))
        np.testing.assert_allclose(found * signs, expected, rtol=0, atol=2e-3)
        on_gpu = there.transform(torch.from_numpy(x).cuda())
        assert on_gpu.is_cuda
        np.testing.assert_allclose(on_gpu.cpu().numpy(), found, rtol=0, atol=1e-5)
        there.save(tmp_path / "model.npz")
        again = load_model(tmp_path / "model.npz")
        np.testing.assert_allclose(again.transform(x), found, rtol=0, atol=1e-4)
        moved = load_model(tmp_path / "model.npz", device="cuda")
        np.testing.assert_allclose(moved.transform(x), found, rtol=0, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("time", [0.1, math.inf])
def test_a_gpu_gives_the_same_flow(time: float) -> None:
    x, positives = pairs()
    model = DeepLinearSSL(2, time=time)
    here = model.fit_pairs(x, positives).transform(x)
    there = model.set_params(device="cuda").fit_pairs(x, positives)
    assert there._frame.is_cuda
    np.testing.assert_allclose(there.transform(x), here, rtol=0, atol=1e-8)


@pytest.mark.parametrize("kind", [ContrastivePCA, DeepLinearSSL, SpectralContrastive])
def test_devices_and_dtypes_are_words_or_torchs_own(kind: type, tmp_path: Path) -> None:
    x = pairs()[0]
    words, objects = (
        kind(2, width=16, device=device, dtype=dtype).fit(x)
        for device, dtype in (("cpu", "float32"), (torch.device("cpu"), torch.float32))
    )
    np.testing.assert_array_equal(objects.transform(x), words.transform(x))
    again = load_model(objects.save(tmp_path / "model.npz"), device=torch.device("cpu"))
    assert again.dtype == "float32"
    np.testing.assert_array_equal(again.transform(x), words.transform(x))


def test_a_device_that_is_not_there_is_refused() -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA GPU")
    with pytest.raises(ValueError, match="torch sees no CUDA GPU here"):
        ContrastivePCA(2, device="cuda").fit(pairs()[0])
