"""Fitted models in files: arrays and a JSON header in one .npz, with a version and a checksum, and nothing pickled."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kontrast.checks import resolve_device
from kontrast.data import check_writable, parse_view, write_arrays
from kontrast.errors import DataError, InputError, KontrastError
from kontrast.estimators.base import ClosedFormEmbedding
from kontrast.estimators.contrastive_pca import ContrastivePCA
from kontrast.estimators.deep_linear_ssl import DeepLinearSSL
from kontrast.estimators.features import Fourier, InputFeatures, Network, Patches
from kontrast.estimators.spectral_contrastive import SpectralContrastive
from kontrast.kernels import CosineKernel, GaussianKernel, InfiniteNetwork, Kernel, NetworkKernel
from kontrast.nets import (
    Activation,
    EncoderFeatures,
    FeatureMap,
    FourierFeatures,
    NetworkFeatures,
    PatchFeatures,
    ScaledFeatures,
    activation_from,
)
from kontrast.pca import KernelFeatures

FORMAT = 1
MODELS: dict[str, type[ClosedFormEmbedding]] = {
    kind.__name__: kind for kind in (ContrastivePCA, DeepLinearSSL, SpectralContrastive)
}
CHOICES: dict[str, Any] = {"random": Network, "fourier": Fourier, "patches": Patches}
PATCH_OPTIONS = ("image_shape", "grid", "threshold", "sides", "contrast_floor")
Arrays = dict[str, np.ndarray[Any, Any]]


def save_model(model: ClosedFormEmbedding, path: str | Path) -> Path:
    """Write a fitted model; a file that exists is replaced, whole or not at all."""
    target = Path(path)
    if target.suffix != ".npz":
        raise InputError(f"a model is saved as .npz, got {target.name!r}; name it {target.stem}.npz")
    check_writable(target)
    if not hasattr(model, "components_"):
        raise InputError("the model is not fitted, so there is nothing to save; call fit first")
    arrays: Arrays = {"components": model.components_, "eigenvalues": model.eigenvalues_}
    for name, array in (("mean", model.mean_), ("eigenvalue_errors", model.eigenvalue_errors_)):
        if array is not None:
            arrays[name] = array
    header = {
        "format": FORMAT,
        "model": type(model).__name__,
        "parameters": _written_parameters(model),
        "features": _write_map(model.features_, arrays),
        "arrays": {name: list(array.shape) for name, array in arrays.items()},  # those of the features too, by now
        "n_features_in": model.n_features_in_,
        "sample_shape": list(model.sample_shape_),
        "feature_names_in": [str(name) for name in getattr(model, "feature_names_in_", ())],
        "kernel_error": model.kernel_error_,
        "numbers": {name: getattr(model, name) for name in model._numbers},
    }
    text = json.dumps(header, sort_keys=True)
    arrays["header"] = np.array(text)
    arrays["checksum"] = np.array(_checksum(text, arrays))
    return write_arrays(target, arrays)


def load_model(path: str | Path, *, features: Any = None, device: str | None = None) -> ClosedFormEmbedding:
    """A model that `save` wrote, ready to transform.

    Args:
        path: the .npz file.
        features: the encoder, for a model over an encoder of your own, which is not in the file.
        device: where it shall run; None is the CPU.

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
    source: Path, header: Mapping[str, Any], arrays: Arrays, features: Any, device: str | None
) -> ClosedFormEmbedding:
    found = {name: list(array.shape) for name, array in arrays.items()}
    if found != header["arrays"]:
        raise DataError(f"{source} lacks arrays that its header names, or has others; save the model again")
    kind = MODELS[header["model"]]
    where, dtype = resolve_device(device or "cpu"), _number_type(arrays["components"])
    if header["features"]["kind"] == "encoder" and features is None:
        raise InputError(f"{source} is a head over an encoder of your own; pass it as features=…")
    if header["features"]["kind"] != "encoder" and features is not None:
        raise InputError(f"{source} brings its own features; leave features out")
    parameters = _read_parameters(header["parameters"], features)
    model = kind(**{**parameters, "device": device})
    model.n_features_in_ = int(header["n_features_in"])
    model.sample_shape_ = tuple(header["sample_shape"])
    if header["feature_names_in"]:
        model.feature_names_in_ = np.array(header["feature_names_in"], dtype=object)
    model.kernel_error_, model.eigenvalue_errors_ = header["kernel_error"], arrays.get("eigenvalue_errors")
    for name in kind._numbers:
        setattr(model, name, float(header["numbers"][name]))
    model._fit_dtype = dtype

    def tensor(name: str) -> Tensor:
        return torch.from_numpy(arrays[name]).to(where)

    feature_map = _read_map(header["features"], tensor, features)
    if arrays["components"].shape != (len(arrays["eigenvalues"]), feature_map.n_features):
        raise DataError(f"{source} has components that do not fit its features; save the model again")
    model._finish(
        feature_map, tensor("components").mT, tensor("eigenvalues"), tensor("mean") if "mean" in arrays else None
    )
    return model


def _read(source: Path) -> tuple[dict[str, Any], Arrays]:
    """Header and arrays, once the checksum has shown that they are as they were written."""
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


def _number_type(array: np.ndarray[Any, Any]) -> torch.dtype:
    return torch.from_numpy(array[:0]).dtype


# Options of the estimator: words and numbers as they are, infinity and objects by what makes them again.


def _written_parameters(model: ClosedFormEmbedding) -> dict[str, Any]:
    written: dict[str, Any] = model.get_params(deep=False)
    for name in ("device", "progress"):
        del written[name]
    for name, value in written.items():
        if isinstance(value, np.generic):
            written[name] = value.item()
    for name in ("width", "time"):
        if written.get(name) == math.inf:
            written[name] = "inf"
    if isinstance(written["width"], float):
        written["width"] = int(written["width"])
    if written.get("start") is not None:
        written["start"] = torch.as_tensor(written["start"]).tolist()
    written["features"] = _written_choice(model.features)
    if model.image_shape is not None:
        written["image_shape"] = [int(size) for size in model.image_shape]
    if "activation" in written:
        written["activation"] = activation_from(written["activation"]).name
    written["views"] = _written_view(model.views)
    written["random_state"] = int(model.random_state) if isinstance(model.random_state, int | np.integer) else None
    return written


def _written_choice(features: Any) -> Any:
    """The word that was given, or its options; None for an encoder."""
    if isinstance(features, str):
        return features
    for word, made in CHOICES.items():
        if isinstance(features, made):
            return {"kind": word, **asdict(features)}
    return None


def _written_view(view: Any) -> str | None:
    """The text of a view; None for one that has none, which a fitted model no longer needs."""
    if isinstance(view, str):
        return view
    try:
        parse_view(str(view))
    except InputError:
        return None
    return str(view)


def _read_parameters(written: Mapping[str, Any], encoder: Any) -> dict[str, Any]:
    parameters = dict(written)
    for name in ("width", "time"):
        if written.get(name) == "inf":
            parameters[name] = math.inf
    choice = written["features"]
    if isinstance(choice, dict):
        options = {name: value for name, value in choice.items() if name != "kind"}
        parameters["features"] = CHOICES[choice["kind"]](**options)
    elif choice is None:
        parameters["features"] = encoder
    parameters["views"] = written["views"] or "auto"
    if written["image_shape"] is not None:
        parameters["image_shape"] = tuple(written["image_shape"])
    return parameters


# Feature maps and kernels: their arrays under names of their own, and a few words and numbers.


def _write_map(features: FeatureMap, arrays: Arrays) -> dict[str, Any]:
    def put(**tensors: Tensor) -> None:
        arrays.update({f"features.{name}": tensor.cpu().numpy() for name, tensor in tensors.items()})

    match features:
        case ScaledFeatures():
            return {**_write_map(features.features, arrays), "delta": features.delta}
        case NetworkFeatures():
            put(**{f"hidden{i}": V for i, V in enumerate(features.hidden)})
            return {"kind": "random", "depth": len(features.hidden), "activation": _named(features.activation)}
        case FourierFeatures():
            put(frequencies=features.frequencies, phases=features.phases)
            return {"kind": "fourier"}
        case PatchFeatures():
            put(filters=features.filters, offsets=features.offsets)
            return {"kind": "patches", **{name: getattr(features, name) for name in PATCH_OPTIONS}}
        case KernelFeatures():
            put(points=features.points, **({} if features.mix is None else {"mix": features.mix}))
            return {"kind": "kernel", "mixed": features.mix is not None, "kernel": _write_kernel(features.kernel)}
        case EncoderFeatures():
            return {"kind": "encoder"}
        case InputFeatures():
            return {"kind": "input", "n_features": features.n_features}
    raise InputError(f"features of the type {type(features).__name__} cannot be saved")


def _named(activation: Activation) -> str:
    """The name, where it says all."""
    if not activation.is_named:
        raise InputError(
            f"the activation {activation.name} is a function of your own, which a file cannot hold; use one "
            "of kontrast's"
        )
    return activation.name


def _write_kernel(kernel: Kernel) -> dict[str, Any]:
    match kernel:
        case CosineKernel():
            return {**_write_kernel(kernel.kernel), "delta": kernel.delta}
        case GaussianKernel():
            return {"kind": "gaussian", "length_scale": kernel.length_scale}
        case NetworkKernel(network=network):
            name = _named(activation_from(network.activation))
            return {"kind": "network", "depth": network.depth, "activation": name}
    raise InputError(f"a kernel of the type {type(kernel).__name__} cannot be saved")


def _read_map(header: Mapping[str, Any], tensor: Callable[[str], Tensor], encoder: Any) -> FeatureMap:
    kind = header["kind"]
    if kind == "kernel":
        mix = tensor("features.mix") if header["mixed"] else None
        return KernelFeatures(_read_kernel(header["kernel"]), tensor("features.points"), mix)
    if kind == "random":
        hidden = [tensor(f"features.hidden{i}") for i in range(header["depth"])]
        inner: FeatureMap = NetworkFeatures(hidden, header["activation"])
    elif kind == "fourier":
        inner = FourierFeatures(tensor("features.frequencies"), tensor("features.phases"))
    elif kind == "patches":
        options = {name: header[name] for name in PATCH_OPTIONS}
        inner = PatchFeatures(tensor("features.filters"), tensor("features.offsets"), **options)
    elif kind == "input":
        inner = InputFeatures(int(header["n_features"]))
    elif kind != "encoder":
        raise KeyError(f"features of the kind {kind!r}")
    else:
        inner = EncoderFeatures(encoder, n_features=tensor("components").shape[1])
    return ScaledFeatures(inner, header["delta"]) if "delta" in header else inner


def _read_kernel(header: Mapping[str, Any]) -> Kernel:
    if header["kind"] == "gaussian":
        kernel: Kernel = GaussianKernel(header["length_scale"])
    else:
        kernel = NetworkKernel(InfiniteNetwork(depth=header["depth"], activation=header["activation"]))
    return CosineKernel(kernel, header["delta"]) if "delta" in header else kernel
