"""Verbs between masks and frameworks, as a person calls them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest

import maskwright as mw

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Here

DENSE = mw.window(back=1).on(4).dense()[0, 0]


def test_lower_prints_the_snippet(here: Here) -> None:
    words = ["causal() & padding(lengths=[3, 5])", "--to", "torch.mha"]
    mask = mw.causal() & mw.padding(lengths=[3, 5])
    assert here("lower", *words) == (0, mw.explain_lowering(mask, "torch.mha") + "\n", "")


def test_lower_takes_three_masks_for_a_transformer(here: Here) -> None:
    three = ("padding(lengths=[3])", "causal()", "padding(lengths=[3])")
    ran = here("lower", *three, "--to", "torch.transformer", "-n", "4")
    masks = tuple(mw.parse(text) for text in three)
    assert ran.out == mw.explain_lowering(masks, "torch.transformer", 4) + "\n"


def test_targets_lists_all_and_tells_of_one(here: Here) -> None:
    names = list(mw.capabilities())
    assert [line.split()[0] for line in here("targets").out.splitlines()] == names
    told = json.loads(here("targets", "torch.mha", "--format", "json").out)
    assert [(one["name"], one["polarity"]) for one in told] == [("torch.mha", "True drops")]
    assert "polarity    True drops\n" in here("targets", "torch.mha").out


def written(folder: Path, ending: str) -> str:
    path = folder / f"mask{ending}"
    if ending == ".npy":
        np.save(path, DENSE)
    elif ending == ".npz":
        np.savez(path, mask=DENSE)
    elif ending == ".safetensors":
        pytest.importorskip("safetensors.numpy").save_file({"mask": DENSE}, path)
    elif ending == ".json":
        path.write_text(json.dumps(DENSE.tolist()))
    else:
        path.write_text("\n".join(",".join(str(int(x)) for x in row) for row in DENSE))
    return path.name


@pytest.mark.parametrize("ending", [".npy", ".npz", ".safetensors", ".json", ".csv"])
def test_recognize_reads_every_kind_of_file(here: Here, tmp_path: Path, ending: str) -> None:
    name = written(tmp_path, ending)
    ran = here("recognize", name)
    assert ran.code == 0, ran.err
    assert ran.out.startswith("window(back=1)   ")
    assert "4 queries × 4 keys" in ran.out
    found = json.loads(here("recognize", name, "-f", "json").out)
    assert found["expression"] == "window(back=1)"


def test_recognize_chooses_an_array_by_its_name(here: Here, tmp_path: Path) -> None:
    np.savez(tmp_path / "two.npz", ids=np.arange(3), attention_mask=np.array([[1, 1, 0]]))
    ran = here("recognize", "two.npz")
    assert ran.code == 2
    assert "Pass --name with one of: attention_mask, ids." in ran.err
    ran = here("recognize", "two.npz", "--name", "attention_mask", "--axes", "bk")
    assert ran.out.startswith("padding(lengths=[2])")


def test_csv_takes_words_and_endless_numbers(here: Here, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("True, False\nTrue, True\n")
    (tmp_path / "b.csv").write_text("0, -inf\n0, 0\n")
    for name in ("a.csv", "b.csv"):
        assert here("recognize", name).out.startswith("causal()")


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("x.txt", b"", "no ending that tells of an array"),
        ("x.npy", b"nonsense", "can't be read as .npy"),
        ("x.npz", b"PK nonsense", "can't be read as .npz"),
        ("x.json", b"[1,", "can't be read as .json"),
        ("x.csv", b"1,2\n3\n", "its lines have different lengths"),
        ("x.csv", b"1,b\n", "can't be read as .csv"),
        ("x.safetensors", b"12345678", "can't be read"),
    ],
)
def test_a_bad_file_is_one_sentence(
    here: Here, tmp_path: Path, name: str, content: bytes, says: str
) -> None:
    (tmp_path / name).write_bytes(content)
    ran = here("recognize", name)
    assert ran.code == 2
    assert says in ran.err
    assert len(ran.err.splitlines()) == 1


def test_a_pickle_is_never_loaded(here: Here, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    ran = here("recognize", "x.npy")
    assert ran.code == 2
    assert "allow_pickle=False" in ran.err


def test_lint_of_an_inverted_array_is_code_1(here: Here, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.triu(np.ones((4, 4), bool), 1))
    ran = here("lint", "x.npy", "--causal", "--to", "keep")
    assert ran.code == 1
    report = mw.lint(np.triu(np.ones((4, 4), bool), 1), causal=True, to="keep")
    assert ran.out == f"{report}\n"
    found = json.loads(here("lint", "x.npy", "--causal", "-f", "json").out)
    assert found == json.loads(
        json.dumps(mw.lint(np.triu(np.ones((4, 4), bool), 1), causal=True).as_dict())
    )


def test_lint_in_chinese(here: Here, tmp_path: Path) -> None:
    array = np.triu(np.ones((4, 4), bool), 1)
    np.save(tmp_path / "x.npy", array)
    report = mw.lint(array, causal=True)
    ran = here("lint", "x.npy", "--causal", "--lang", "zh")
    assert (ran.code, ran.out) == (1, f"{report.text('zh')}\n")
    assert "应为 causal()" in ran.out
    found = json.loads(here("lint", "x.npy", "--causal", "--lang", "zh", "-f", "json").out)
    assert found == report.as_dict("zh")
    assert here("lint", "causal()", "-n", "4", "--lang", "zh").out == "没有发现问题\n"


def test_lint_of_a_good_mask_is_code_0(here: Here) -> None:
    assert here("lint", "causal()", "-n", "4", "--expects", "window(back=None)").code == 0
    assert here("lint", "everything()", "-n", "4", "--causal").code == 1


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["targets", "torch.mah"], "There is no target torch.mah."),
        (["lower", "causal()", "--to", "torch.mah", "-n", "4"], "Did you mean torch.mha?"),
        (["lower", "causal()", "--to", "numpy"], "Pass --size"),
        (["lower", "causal()", "causal()", "--to", "numpy", "-n", "4"], "takes one mask, not 2"),
        (["lower", "causal() | prefix([3])", "--to", "flash.varlen", "-n", "8"], "prefix"),
        (["lint", "nothing.npy"], "nothing.npy is not there"),
        (["lint", "causal()", "-n", "4", "-o", "x.svg"], "lint gives text or json, not svg"),
    ],
)
def test_what_is_wrong_is_one_sentence_and_code_2(here: Here, words: list[str], says: str) -> None:
    ran = here(*words)
    assert (ran.code, ran.out) == (2, "")
    assert says in ran.err
    assert len(ran.err.splitlines()) == 1
