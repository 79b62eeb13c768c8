"""A diagnosis written and read back: equal numbers, the same words, and nothing else is taken for one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis.strategies import integers

from kontrast.diagnosis import Diagnosis, Limits
from kontrast.errors import StoreError
from kontrast.report import check_diagnosis_folder, read_diagnosis, write_diagnosis
from kontrast.report.diagnosis.files import from_bytes, to_bytes
from tests.report.diagnosis.small import diagnosed


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_diagnosis(tmp_path_factory.mktemp("diagnosis") / "new" / "folder", diagnosed()).parent


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_what_is_written(folder: Path) -> None:
    assert content(folder).keys() == {"diagnosis.nc", "diagnosis.html", "figures/diagnosis.png"}
    assert content(folder)["figures/diagnosis.png"].startswith(b"\x89PNG")


@pytest.mark.parametrize("kind", ["whole", "bare", "collapsed"])
def test_what_was_read_is_equal_and_says_the_same(kind: str) -> None:
    d = diagnosed(kind)
    found = Diagnosis(from_bytes(to_bytes(d.result), Path("diagnosis.nc")))
    xr.testing.assert_identical(found.result, d.result)
    assert str(found) == str(d)
    assert found.as_dict() == d.as_dict()
    assert to_bytes(found.result) == to_bytes(d.result)


def test_the_folder_or_its_file_can_be_read_and_written_again(folder: Path) -> None:
    before = content(folder)
    found = read_diagnosis(folder)
    assert str(found) == str(read_diagnosis(folder / "diagnosis.nc")) == str(diagnosed())
    write_diagnosis(folder, found)
    assert content(folder) == before
    limits = Limits(gap=0.01)
    judged = read_diagnosis(folder, limits)
    assert judged.limits == limits
    assert str(judged) == str(diagnosed().judged_by(limits))


def test_xarray_reads_it_as_well(folder: Path) -> None:
    with xr.open_dataset(folder / "diagnosis.nc", engine="scipy") as opened:
        assert str(Diagnosis(opened.load())) == str(diagnosed())


def test_attributes_that_netcdf_lacks() -> None:
    odd = diagnosed("bare").result.assign_attrs(n_parameters=7_000_000_000, flag=True, nothing=None)
    found = from_bytes(to_bytes(odd), Path("x")).attrs
    assert (found["n_parameters"], found["flag"], found["nothing"]) == (7e9, 1, "")


@settings(max_examples=60, deadline=None)
@given(where=integers(0, 10**6), value=integers(1, 255))
def test_a_changed_byte_is_refused(where: int, value: int) -> None:
    whole = bytearray(to_bytes(diagnosed("bare").result))
    whole[where % len(whole)] ^= value
    with pytest.raises(StoreError, match=r"damaged"):
        from_bytes(bytes(whole), Path("diagnosis.nc"))


@settings(max_examples=30, deadline=None)
@given(length=integers(0, 10**6))
def test_a_shortened_file_is_refused(length: int) -> None:
    whole = to_bytes(diagnosed("bare").result)
    with pytest.raises(StoreError, match=r"damaged"):
        from_bytes(whole[: length % len(whole)], Path("diagnosis.nc"))


def test_foreign_files_are_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "diagnosis.nc"
    xr.Dataset({"x": ("n", [1.0, 2.0])}).to_netcdf(path, engine="scipy")
    with pytest.raises(StoreError, match=r"is no diagnosis") as refused:
        read_diagnosis(tmp_path)
    assert "\n" not in str(refused.value)
    path.write_bytes(to_bytes(diagnosed("bare").result.assign_attrs(format=99)))
    with pytest.raises(StoreError, match=r"another version of kontrast \(format 99\)"):
        read_diagnosis(path)
    for missing in (tmp_path / "nothing", tmp_path / "nothing.nc"):
        with pytest.raises(StoreError, match=r"there is no diagnosis .*kontrast diagnose"):
            read_diagnosis(missing)


def test_other_folders_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(StoreError, match=re.escape(f"{tmp_path} exists and holds no diagnosis")):
        write_diagnosis(tmp_path, diagnosed("bare"))
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    with pytest.raises(StoreError, match=r"cannot write the diagnosis"):
        check_diagnosis_folder(tmp_path / "thesis.tex" / "below")
    check_diagnosis_folder(tmp_path / "new")
    assert not (tmp_path / "new").exists()
