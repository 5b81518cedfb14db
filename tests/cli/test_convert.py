"""`maskwright lower`, `targets`, `recognize` and `lint`, and arrays from files."""

from __future__ import annotations

import io
import json
import zipfile
from typing import TYPE_CHECKING

import numpy as np
import pytest

import maskwright as mw
from maskwright.cli.convert import MAX_ROWS

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import RunCli

DENSE = mw.window(back=1).on(4).dense()[0, 0]
INVERTED = np.triu(np.ones((4, 4), bool), 1)


def test_lower_prints_the_code(cli: RunCli) -> None:
    words = ["causal() & padding(lengths=[3, 5])", "--to", "torch.mha"]
    mask = mw.causal() & mw.padding(lengths=[3, 5])
    assert cli("lower", *words) == (0, mw.explain_lowering(mask, "torch.mha") + "\n", "")


def test_lower_takes_three_masks_for_a_transformer(cli: RunCli) -> None:
    three = ("padding(lengths=[3])", "causal()", "padding(lengths=[3])")
    ran = cli("lower", *three, "--to", "torch.transformer", "-n", "4")
    masks = tuple(mw.parse(text) for text in three)
    assert ran.out == mw.explain_lowering(masks, "torch.transformer", 4) + "\n"


def test_targets_lists_all_and_describes_one(cli: RunCli) -> None:
    listed = cli("targets").out.splitlines()
    assert [line.split()[0] for line in listed if line[0] != " "] == list(mw.capabilities())
    told = json.loads(cli("targets", "torch.mha", "--format", "json").out)
    assert [(one["name"], one["polarity"]) for one in told] == [("torch.mha", "True masks")]
    one = cli("targets", "torch.mha").out
    assert "True masks\n" in one
    assert "key_padding_mask" in one
    assert cli("targets", "slices").out == cli("targets", "magi").out


def written(folder: Path, suffix: str) -> str:
    path = folder / f"mask{suffix}"
    if suffix == ".npy":
        np.save(path, DENSE)
    elif suffix == ".npz":
        np.savez(path, mask=DENSE)
    elif suffix == ".safetensors":
        pytest.importorskip("safetensors.numpy").save_file({"mask": DENSE}, path)
    elif suffix == ".json":
        path.write_text(json.dumps(DENSE.tolist()))
    else:
        path.write_text("\n".join(",".join(str(int(x)) for x in row) for row in DENSE))
    return path.name


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".safetensors", ".json", ".csv"])
def test_recognize_reads_every_kind_of_file(cli: RunCli, tmp_path: Path, suffix: str) -> None:
    name = written(tmp_path, suffix)
    ran = cli("recognize", name)
    assert ran.code == 0, ran.err
    assert ran.out.startswith("window(back=1)   ")
    assert "4 queries × 4 keys" in ran.out
    found = json.loads(cli("recognize", name, "-f", "json").out)
    assert found["expression"] == "window(back=1)"


def test_recognize_chooses_an_array_by_its_name(cli: RunCli, tmp_path: Path) -> None:
    np.savez(tmp_path / "two.npz", ids=np.arange(3), attention_mask=np.array([[1, 1, 0]]))
    (tmp_path / "two.json").write_text('{"ids": [1, 2], "attention_mask": [[1, 1, 0]]}')
    for file in ("two.npz", "two.json"):
        ran = cli("recognize", file)
        assert ran.code == 2
        assert "--name" in ran.err
        assert "attention_mask, ids" in ran.err
        ran = cli("recognize", file, "--name", "attention_mask", "--axes", "bk")
        assert ran.out.startswith("padding(lengths=[2])")


def test_csv_may_contain_booleans_and_infinity(cli: RunCli, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("True, False\nTrue, True\n")
    (tmp_path / "b.csv").write_text("0, -inf\n0, 0\n")
    for name in ("a.csv", "b.csv"):
        assert cli("recognize", name).out.startswith("causal()")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("x.txt", b""),
        ("x.npy", b"nonsense"),
        ("x.npz", b"PK nonsense"),
        ("x.json", b"[1,"),
        ("x.json", b"[[1, 0], [1]]"),
        ("x.csv", b"1,2\n3\n"),
        ("x.csv", b"1,b\n"),
        ("x.csv", b""),
        ("x.safetensors", b"12345678"),
    ],
)
def test_an_unreadable_file_is_one_line(
    cli: RunCli, tmp_path: Path, name: str, content: bytes
) -> None:
    (tmp_path / name).write_bytes(content)
    ran = cli("recognize", name)
    assert (ran.code, ran.out) == (2, "")
    assert len(ran.err.splitlines()) == 1


def huge_file(folder: Path, suffix: str) -> str:
    """A file whose header states 60,000² booleans; of the array itself it has only zeros, or none."""
    header = io.BytesIO()
    whole = {"descr": "|b1", "fortran_order": False, "shape": (60_000, 60_000)}
    np.lib.format.write_array_header_1_0(header, whole)
    name = f"huge{suffix}"
    if suffix == ".npy":
        (folder / name).write_bytes(header.getvalue())
    elif suffix == ".npz":
        with zipfile.ZipFile(folder / name, "w", zipfile.ZIP_DEFLATED) as file:
            file.writestr("mask.npy", header.getvalue())
    elif suffix == ".safetensors":
        end = 60_000**2
        text = json.dumps(
            {"mask": {"dtype": "BOOL", "shape": [60_000] * 2, "data_offsets": [0, end]}}
        )
        with (folder / name).open("wb") as file:
            file.write(len(text).to_bytes(8, "little") + text.encode())
            file.truncate(8 + len(text) + end)  # sparse
    else:
        with (folder / name).open("wb") as file:
            file.truncate(2**27)
    return name


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".safetensors", ".json", ".csv"])
@pytest.mark.parametrize("verb", ["recognize", "lint"])
def test_an_array_that_is_too_large_is_not_read(
    cli: RunCli, tmp_path: Path, suffix: str, verb: str
) -> None:
    ran = cli(verb, huge_file(tmp_path, suffix))
    assert (ran.code, ran.out) == (2, "")
    assert "at most" in ran.err
    assert len(ran.err.splitlines()) == 1


def test_a_small_array_of_a_large_file_is_read(
    cli: RunCli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit is that of the array, whatever else the file contains."""
    save_file = pytest.importorskip("safetensors.numpy").save_file
    monkeypatch.setattr("maskwright.cli.convert.MAX_ARRAY_BYTES", 600)
    tensors = {"mask": np.tri(24, dtype=bool), "weights": np.zeros(200)}
    save_file(tensors, tmp_path / "model.safetensors")
    assert cli("recognize", "model.safetensors", "--name", "mask").out.startswith("causal()")
    assert cli("recognize", "model.safetensors", "--name", "weights").code == 2


@pytest.mark.parametrize("verb", ["recognize", "lint"])
def test_an_empty_array_with_a_huge_axis_is_not_read(
    cli: RunCli, tmp_path: Path, verb: str
) -> None:
    path = tmp_path / "mask.npy"
    with path.open("wb") as file:
        header = {"descr": "|b1", "fortran_order": False, "shape": (2**62, 0)}
        np.lib.format.write_array_header_1_0(file, header)
    ran = cli(verb, str(path))
    assert (ran.code, ran.out) == (2, "")
    assert "at most" in ran.err


def test_large_values_in_csv_stay_floats(cli: RunCli, tmp_path: Path) -> None:
    path = tmp_path / "mask.csv"
    path.write_text("0,-1e30\n0,0\n")
    ran = cli("recognize", str(path))
    assert ran.out.startswith("causal()   additive, 0 keeps, -1e+30 masks")
    assert cli("lint", str(path), "--causal").code == 0


def test_too_little_memory_is_no_finding(
    cli: RunCli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise MemoryError

    monkeypatch.setattr("maskwright.lint", fail)
    ran = cli("lint", written(tmp_path, ".npy"))
    assert (ran.code, ran.out) == (2, "")
    assert "memory" in ran.err


def test_a_pickle_is_never_loaded(cli: RunCli, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    ran = cli("recognize", "x.npy")
    assert ran.code == 2
    assert "allow_pickle=False" in ran.err


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_lint_with_findings_is_code_1(cli: RunCli, tmp_path: Path, lang: str) -> None:
    np.save(tmp_path / "x.npy", INVERTED)
    words = ("lint", "x.npy", "--causal", "--to", "keep", "--lang", lang)
    report = mw.lint(INVERTED, causal=True, to="keep")
    assert cli(*words) == (1, f"{report.text(lang)}\n", "")
    found = json.loads(cli(*words, "-f", "json").out)
    assert found == json.loads(json.dumps(report.as_dict(lang)))


def test_lint_without_findings_is_code_0(cli: RunCli) -> None:
    ran = cli("lint", "causal()", "-n", "4", "--expects", "window(back=None)")
    assert ran == (0, f"{mw.lint(mw.causal(), q_len=4)}\n", "")
    assert cli("lint", "everything()", "-n", "4", "--causal").code == 1


@pytest.mark.parametrize("words", [("lint",), ("lower", "--to", "torch.sdpa")], ids=lambda x: x[0])
def test_size_beyond_the_limit_is_refused_before_spans_are_computed(
    words: tuple[str, ...], cli: RunCli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mw.BoundMask, "spans", property(lambda _: pytest.fail("spans")))
    verb, *options = words
    code, _, err = cli(verb, "causal()", *options, "--size", str(MAX_ROWS + 1))
    assert code == 2
    assert str(MAX_ROWS) in err
