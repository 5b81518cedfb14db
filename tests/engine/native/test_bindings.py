"""Which kernel is loaded, and how its instruction set is chosen."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

import maskwright as mw
from maskwright.engine.native.layout import ATTENTION
from maskwright.engine.native.library import loaded, use_isa
from tests.engine.native.helpers import needs_kernel

pytestmark = needs_kernel

TELL = "from maskwright.engine.native.library import loaded; print(loaded().isa, loaded().why)"


def told(isa: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "MASKWRIGHT_ISA": isa}
    return subprocess.run([sys.executable, "-c", TELL], env=env, capture_output=True, text=True)


@pytest.mark.parametrize("isa", [*loaded().isas, "none"])
def test_a_variable_chooses(isa: str) -> None:
    shown = "None MASKWRIGHT_ISA is none" if isa == "none" else f"{isa} MASKWRIGHT_ISA asks for it"
    assert told(isa).stdout.strip() == shown


def test_what_is_not_there_is_refused() -> None:
    known = ", ".join((*loaded().isas, "none"))
    assert f"Set MASKWRIGHT_ISA to one of {known}, or leave it out." in told("mmx").stderr
    with pytest.raises(mw.ArgumentError, match="'mmx' is none of those"):
        use_isa("mmx")


def test_the_best_one_is_usual() -> None:
    assert loaded().isa == os.environ.get("MASKWRIGHT_ISA", loaded().isas[0])
    assert loaded().isas[-1] == "baseline"


def test_both_sides_agree_on_the_fields() -> None:
    assert loaded().functions.maskwright_size() == ATTENTION.size


def test_without_a_kernel_all_still_works() -> None:
    code = (
        "import torch, maskwright as mw; q = torch.ones(1, 1, 4, 2)\n"
        "print(mw.attention(q, q, q, mw.causal()).sum().item(), mw.explain_route(mw.causal(), 4).impl)\n"
        "mw.attention(q, q, q, impl='native')"
    )
    env = {**os.environ, "MASKWRIGHT_ISA": "none"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.stdout.strip() == "8.0 strips"
    assert "needs the kernel in C, and there is none: MASKWRIGHT_ISA is none" in done.stderr


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dropout_p": 0.5}, "has no dropout, and dropout_p is 0.5"),
        ({"dtype": torch.float64}, "q and v are float64 on cpu"),
        ({"dim": 257}, "heads of 257 and 257"),
    ],
)
def test_what_it_can_not_do_is_refused(changes: dict[str, object], message: str) -> None:
    given = {"dtype": torch.float32, "dim": 4, "dropout_p": 0.0, **changes}
    q = torch.ones(1, 1, 3, given["dim"], dtype=given["dtype"])
    with pytest.raises(mw.Unsupported, match=message):
        mw.attention(q, q, q, impl="native", dropout_p=given["dropout_p"])
    assert mw.attention(q, q, q, dropout_p=given["dropout_p"]).shape == q.shape
