"""Options are the arguments of the classes they fill: the same names, defaults and words, read without torch."""

from __future__ import annotations

import ast
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import kontrast
from kontrast import estimators, study
from kontrast.cli.embed import DEFAULTS, METHODS, merged
from kontrast.errors import InputError
from kontrast.options import Option, constant_of, in_options, options_of
from tests.cli.running import Kontrast

CLASSES = {
    **{name: ("kontrast.study", getattr(study, name)) for name in ("StudySpec", "Thresholds")},
    **{name: ("kontrast.estimators", getattr(estimators, name)) for name in estimators.METHODS.values()},
}
STUDY = (
    "data split image-shape label-column x-key y-key standardize loss rates optimizer momentum batch-size max-steps "
    "map-samples setting model full-batch samples views positives negatives similarity link temperature delta "
    "activation depth parametrization d-out widths seeds seed steps learning-rate pca-learning-rate pca-d-out "
    "pca-steps probe-samples label-curves device dtype tolerance gap-tolerance pca-tolerance probe-margin preset "
    "budget output resume workers json debug help"
)
EMBED = (
    "components width features activation depth similarity views n-views ridge image-shape device dtype seed time flow "
    "label-column x-key y-key standardize output method samples model labels split no-plot no-probes json debug help"
)


@pytest.mark.parametrize("name", CLASSES)
def test_every_option_is_an_argument_with_its_default_and_every_argument_is_one_or_declared_none(name: str) -> None:
    package, kind = CLASSES[name]
    options = {option.argument: option for option in options_of(package, name)}
    excluded = {argument for base in kind.__mro__ for argument in getattr(base, "_option_names", {})}
    arguments = inspect.signature(kind).parameters
    assert arguments.keys() - excluded <= options.keys() <= arguments.keys()
    for argument, option in options.items():
        assert option.default == arguments[argument].default
        assert type(option.default) is type(arguments[argument].default)
        assert option.type == arguments[argument].annotation.replace('"', "'")
        assert option.help.endswith((".", "…"))
    for argument, name in getattr(kind, "_option_names", {}).items():
        assert argument in arguments
        assert (argument in options) == (name is not None)


def test_constants_are_read_from_the_source() -> None:
    assert constant_of("kontrast.estimators", "METHODS") == estimators.METHODS
    with pytest.raises(LookupError, match="defines no NAMES"):
        constant_of("kontrast.estimators", "NAMES")


@pytest.mark.parametrize("command, names", [("study", STUDY), ("embed", EMBED)])
def test_help_names_every_option_and_states_the_librarys_own_defaults(
    command: str, names: str, kontrast: Kontrast
) -> None:
    entries = [" ".join(entry.split()) for entry in re.split(r"\n  (?=-)", kontrast(command, "--help").out)[1:]]
    found = [re.search(r"--([a-z-]+)", entry) for entry in entries]
    assert [match[1] for match in found if match] == names.split()
    told = dict(re.findall(r"--([a-z-]+) .*\[default: \((.*)\)\]", "\n".join(entries)))
    classes = [("kontrast.study", name) for name in ("StudySpec", "Thresholds")]
    filled = [option for source in classes for option in options_of(*source)]
    for option in merged(METHODS) if command == "embed" else filled:
        assert told.get(option.name.removeprefix("--"), "").replace("- ", "-") == option.default_text
    if command == "embed":
        assert told["width"] == "spectral 2048; pca inf; linear d + n_components"
        assert told["n-views"] == "spectral 8; pca, linear 1"
        assert told["components"] == str(DEFAULTS["n_components"])


@pytest.mark.parametrize("command", [(), ("study",), ("embed",), ("verify",), ("report",)], ids=str)
def test_help_does_not_load_torch(command: tuple[str, ...]) -> None:
    program = (
        f"import sys, kontrast.cli as c\ntry: c.app([*{command!r}, '--help'])\nexcept SystemExit: pass\n"
        "print(bool({'torch', 'numpy'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, env=os.environ)
    assert done.stdout.strip().endswith("False")
    assert "--help" in done.stdout


WIDTH = Option("width", "--width", "", 2048, "int | float")
COUNT = Option("n_samples", "--samples", "", 50, "int")
READ = [
    (COUNT, "7", 7),
    (WIDTH, "64", 64),
    (WIDTH, "inf", float("inf")),
    (Option("ridge", "--ridge", "", 1.0, "float"), "1", 1.0),
    (Option("negatives", "--negatives", "", 1, "int | Literal['all']"), "all", "all"),
    (Option("negatives", "--negatives", "", 1, "int | Literal['all']"), "3", 3),
    (Option("widths", "--widths", "", (), "tuple[int, ...]"), "8,16", (8, 16)),
    (Option("rates", "--rates", "", None, "tuple[float, ...] | None"), "0.1", (0.1,)),
    (Option("similarities", "--similarity", "", (), "tuple[str, ...]"), "dot,cosine", ("dot", "cosine")),
    (Option("flow", "--flow", "", "polar", "Flow"), "oja", "oja"),
]


@pytest.mark.parametrize("option, text, value", READ, ids=[f"{case[0].name} {case[1]}" for case in READ])
def test_values_are_read_by_their_types_and_written_back(option: Option, text: str, value: object) -> None:
    assert option.read(text) == value
    assert type(option.read(text)) is type(value)
    name, written = option.write(value)
    assert name == option.name
    assert option.read(written) == value


def test_a_switch_has_a_word_for_each_of_its_values_and_none_without() -> None:
    [switch] = [one for one in options_of("kontrast.study", "StudySpec") if one.argument == "standardize"]
    assert switch.is_switch
    assert not switch.is_flag
    assert switch.spellings == "--standardize/--no-standardize"
    assert switch.write(True) == ["--standardize"]
    assert switch.write(False) == ["--no-standardize"]
    assert not COUNT.is_switch
    assert COUNT.spellings == "--samples"


@pytest.mark.parametrize(
    "option, text, message",
    [
        (COUNT, "2.5", "--samples must be a whole number, got '2.5'"),
        (WIDTH, "many", "--width must be a number, got 'many'"),
        (READ[6][0], "8,x", "--widths takes whole numbers with commas between, as in 64,128; got '8,x'"),
        (READ[7][0], "fast", "--rates takes numbers with commas between"),
    ],
)
def test_what_cannot_be_read_is_refused(option: Option, text: str, message: str) -> None:
    with pytest.raises(InputError, match=f"^{re.escape(message)}"):
        option.read(text)


SAID = [
    ("n_positives must be a whole number of at least 1", "--positives must be a whole number of at least 1"),
    ("device 'cuda' was asked for; use device='cpu'", "device 'cuda' was asked for; use --device cpu"),
    ("device must look like 'cpu'", "--device must look like 'cpu'"),
    ("pass image_shape=(28, 28)", "pass --image-shape 28,28"),
    ("lower d_out or pca_learning_rate, or raise n_steps", "lower --d-out or --pca-learning-rate, or raise --steps"),
    ("has no labels; leave label_curves out", "has no labels; leave --label-curves out"),
    ("similarities must be cosine or dot", "--similarity must be cosine or dot"),
    ("learning_rates must be positive", "--learning-rate must be positive"),
    ("leave `views` out", "leave --views out"),
    ("the link is linear, and depth counts layers", "the link is linear, and depth counts layers"),
    ("no data set or file is called '/data/n_samples.npz'", "no data set or file is called '/data/n_samples.npz'"),
    ("--samples must be a whole number", "--samples must be a whole number"),
    ("pass label_column='target' or y_key='y'", "pass --label-column target or --y-key y"),
    ("standardize=False, or standardize=True", "--no-standardize, or --standardize"),
]


@pytest.mark.parametrize("library, command_line", SAID)
def test_messages_of_the_library_name_options_on_the_command_line(library: str, command_line: str) -> None:
    assert in_options(library, options_of("kontrast.study", "StudySpec")) == command_line


def test_infinity_and_counts_of_views_are_spelled_as_options() -> None:
    said = "n_positives must be 1; pass time=math.inf, n_components=17 or random_state=3"
    assert (
        in_options(said, options_of("kontrast.estimators", "DeepLinearSSL"))
        == "--n-views must be 1; pass --time inf, --components 17 or --seed 3"
    )


SPEAKING = ["estimators", "study/spec.py", "study/thresholds.py", "data", "linalg", "nets", "losses", "kernels"]


@pytest.mark.parametrize("part", SPEAKING)
def test_no_message_of_the_library_mentions_an_option(part: str) -> None:
    root = Path(kontrast.__file__).parent / part
    for path in [root] if root.is_file() else root.rglob("*.py"):
        tree = ast.parse(path.read_text("utf-8"))
        declared = [
            node.value
            for node in ast.walk(tree)
            if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "_option_names" and node.value
        ]
        names = {id(node) for value in declared for node in ast.walk(value)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in names:
                assert not re.search(r"(?<!\w)--[a-z]", node.value), f"{path}: {node.value}"
