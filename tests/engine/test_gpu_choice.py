"""The stored backend of a GPU: read only for the same device and versions, used by `select_backend`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import maskwright as mw
from maskwright.engine import gpu_choice, gpu_verify
from maskwright.errors import ArgumentError, Unsupported

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def test_nothing_is_stored_at_first() -> None:
    assert gpu_choice.stored_choice() is None


def test_choice_of_the_device_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = (1, 2, 64, 32)
    assert mw.explain_backend(shape, mask=mw.causal(), device="cuda").backend == "sdpa"
    # There is no GPU here: its name is given.
    monkeypatch.setattr(gpu_choice, "device_key", lambda: "some GPU, torch 2, triton 3")
    gpu_choice.store("some GPU, torch 2, triton 3", "triton")
    gpu_choice.store("other GPU, torch 2, triton 3", "default")
    assert gpu_choice.stored_choice() == "triton"
    options = {"mask": mw.causal(), "device": "cuda"}
    assert mw.explain_backend(shape, **options).backend == "triton"
    assert mw.explain_backend(shape, **options, dtype="float64").backend != "triton"
    monkeypatch.setattr(gpu_choice, "device_key", lambda: "other GPU, torch 2, triton 3")
    assert mw.explain_backend(shape, **options).backend == "sdpa"


def test_damaged_file_decides_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_choice, "device_key", lambda: "some GPU")
    gpu_choice.store("some GPU", "triton")
    for text in ("{", "[]", '{"some GPU": "fast"}'):
        gpu_choice.choice_path().write_text(text)
        assert gpu_choice.stored_choice() is None


def test_verification_needs_the_device() -> None:
    import torch

    if not torch.cuda.is_available():
        with pytest.raises(ArgumentError, match="cuda"):
            gpu_verify.verify("cuda")
    with pytest.raises(ArgumentError, match="'tpu'"):
        gpu_verify.verify("tpu")


@pytest.mark.parametrize(
    ("device", "word"), [("mps", "mps"), ("cpu", "TRITON_INTERPRET"), ("xpu", "xpu")]
)
def test_other_devices_are_refused_with_the_reason(device: str, word: str) -> None:
    with pytest.raises(Unsupported, match=word):
        mw.explain_backend((1, 1, 8, 16), device=device, impl="triton")
