"""Groups of options as parameters of commands."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Annotated

import pytest

from maskwright.cli import options as opt
from maskwright.cli.errors import UsageError


@dataclass(frozen=True)
class Pair(opt.OptionGroup):
    left: Annotated[int, opt.option("Left.")] = 1
    right: Annotated[int, opt.option("Right.")] = 2


def command(name: str, *, before: int = 0, pair: Pair, after: int = 3) -> tuple[str, int, Pair]:
    return name, before + after, pair


def test_options_of_a_group_are_in_its_place() -> None:
    parameters = inspect.signature(opt.expand_groups(command)).parameters
    assert list(parameters) == ["name", "before", "left", "right", "after"]
    assert parameters["right"].default == 2


def test_group_is_passed_to_the_command() -> None:
    run = opt.expand_groups(command)
    values = {"name": "x", "before": 0, "left": 5, "right": 6, "after": 1}
    assert run(**values) == ("x", 1, Pair(5, 6))


def test_sizes_take_defaults_where_they_are_not_passed() -> None:
    sizes = opt.Sizes(kv_len=4).with_defaults(kv_len=8, q_start=2)
    assert vars(sizes) == {"kv_len": 4, "batch": None, "heads": None, "q_start": 2}


def test_output_refuses_a_format_that_the_command_cannot_write() -> None:
    assert opt.Output("json", None, opt.TEXT).form == "json"
    with pytest.raises(UsageError, match="svg"):
        opt.Output("svg", None, opt.TEXT)
