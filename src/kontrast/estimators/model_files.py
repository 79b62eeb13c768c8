"""Fitted models in files: arrays and a JSON header in one .npz, with a version and a checksum, and nothing pickled.

The models, their features and their kernels say themselves what is stored (`state`) and how it is read (`from_state`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kontrast.checks import resolve_device
from kontrast.data import check_writable, write_arrays
from kontrast.errors import DataError, InputError, KontrastError
from kontrast.estimators.base import ClosedFormEmbedding
from kontrast.estimators.features import InputFeatures
from kontrast.nets import EncoderFeatures, FeatureMap, FourierFeatures, NetworkFeatures, PatchFeatures, ScaledFeatures
from kontrast.pca import KernelFeatures

FORMAT = 1
FEATURES: dict[str, Any] = {
    "random": NetworkFeatures,
    "fourier": FourierFeatures,
    "patches": PatchFeatures,
    "kernel": KernelFeatures,
    "input": InputFeatures,
}
Arrays = dict[str, np.ndarray[Any, Any]]


def save_model(model: ClosedFormEmbedding, path: str | Path) -> Path:
    """Write a fitted model; a file that exists is replaced, whole or not at all."""
    target = Path(path)
    if target.suffix != ".npz":
        raise InputError(f"a model is saved as .npz, got {target.name!r}; name it {target.stem}.npz")
    check_writable(target)
    if not hasattr(model, "components_"):
        raise InputError("the model is not fitted, so there is nothing to save; call fit first")
    words, arrays = model.state()
    features: Any = model.features_
    if not hasattr(features, "state"):
        raise InputError(f"features of the type {type(features).__name__} cannot be saved")
    state = features.state()
    tensors = {name: value for name, value in state.items() if isinstance(value, Tensor)}
    arrays |= {f"features.{name}": tensor.cpu().numpy() for name, tensor in tensors.items()}
    header = {
        **words,
        "format": FORMAT,
        "model": type(model).__name__,
        "features": {name: value for name, value in state.items() if name not in tensors},
        "arrays": {name: list(array.shape) for name, array in arrays.items()},
    }
    text = json.dumps(header, sort_keys=True)
    arrays["header"] = np.array(text)
    arrays["checksum"] = np.array(_checksum(text, arrays))
    return write_arrays(target, arrays)


def load_model(
    path: str | Path, *, features: Any = None, device: str | torch.device | None = None
) -> ClosedFormEmbedding:
    """Read a model that `save` wrote, ready to transform.

    Args:
        path: the .npz file.
        features: the encoder, for a model over an encoder of your own, which is not in the file.
        device: where it runs; None is the CPU.

    Raises:
        DataError: the file is missing, no model, of another version, or not as it was written.
    """
    source = Path(path)
    header, arrays = _read(source)
    try:
        return _rebuilt(source, header, arrays, features, device)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        if isinstance(error, KontrastError):
            raise
        raise DataError(
            f"{source} has a header that makes no model ({type(error).__name__}: {error}); save the model again"
        ) from error


def _rebuilt(
    source: Path, header: Mapping[str, Any], arrays: Arrays, encoder: Any, device: str | torch.device | None
) -> ClosedFormEmbedding:
    if {name: list(array.shape) for name, array in arrays.items()} != header["arrays"]:
        raise DataError(f"{source} lacks arrays that its header names, or has others; save the model again")
    if header["features"]["kind"] == "encoder" and encoder is None:
        raise InputError(f"{source} is a head over an encoder of your own; pass it as features=…")
    if header["features"]["kind"] != "encoder" and encoder is not None:
        raise InputError(f"{source} brings its own features; leave features out")
    where = resolve_device(device or "cpu")
    tensors = {
        name.removeprefix("features."): torch.from_numpy(array).to(where)
        for name, array in arrays.items()
        if name.startswith("features.")
    }
    features = _feature_map({**header["features"], **tensors}, encoder, arrays["components"].shape[1])
    if arrays["components"].shape != (len(arrays["eigenvalues"]), features.n_features):
        raise DataError(f"{source} has components that do not fit its features; save the model again")
    kind = ClosedFormEmbedding._kinds[header["model"]]
    return kind.from_state(header, arrays, features, encoder, device)


def _feature_map(state: Mapping[str, Any], encoder: Any, n_features: int) -> FeatureMap:
    if state["kind"] == "encoder":
        features: FeatureMap = EncoderFeatures(encoder, n_features=n_features)
    else:
        features = FEATURES[state["kind"]].from_state(state)
    return ScaledFeatures(features, state["delta"]) if "delta" in state else features


def _read(source: Path) -> tuple[dict[str, Any], Arrays]:
    """Header and arrays; refuses those whose checksum is another one."""
    if not source.is_file():
        raise DataError(f"there is no model file {source}; check the path")
    try:
        with source.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays: Arrays = {name: archive[name] for name in archive.files}
        text = str(arrays.pop("header"))
        checksum = str(arrays.pop("checksum"))
        header = json.loads(text)
        version = header["format"]
    except Exception as error:  # whatever numpy and zipfile raise on broken bytes: the file is no model of ours
        raise DataError(
            f"{source} is no kontrast model, or broken ({type(error).__name__}); save the model again"
        ) from error
    if version != FORMAT:
        raise DataError(
            f"{source} is a model of format {version}, and this version of kontrast reads format {FORMAT}; fit it "
            "again, or use the version that wrote it"
        )
    if checksum != _checksum(text, arrays):
        raise DataError(f"{source} is not as it was written: its checksum does not match; save the model again")
    return header, arrays


def _checksum(text: str, arrays: Mapping[str, np.ndarray[Any, Any]]) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(arrays):
        if name not in ("header", "checksum"):
            array = np.ascontiguousarray(arrays[name])
            digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
            digest.update(array.tobytes())
    return digest.hexdigest()
