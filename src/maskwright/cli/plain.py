"""As much of typer as the verbs use, by argparse: for who has numpy and nothing else.

What typer has beyond that is left out: colours, boxes, and completion in the shell.
"""

from __future__ import annotations

import argparse
import inspect
import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NoReturn, get_args, get_origin
from typing import get_type_hints as hints_of

if TYPE_CHECKING:
    from collections.abc import Callable

    Function = Callable[..., None]


class Argument:
    """What is said of a word without a flag."""

    def __init__(self, *, help: str, metavar: str | None = None, **_: object) -> None:  # noqa: A002
        self.help, self.metavar = help, metavar


class Option:
    """What is said of a flag."""

    def __init__(
        self,
        *flags: str,
        help: str,  # noqa: A002
        callback: Function | None = None,
        **_: object,
    ) -> None:
        self.flags, self.help, self.callback = flags, help, callback


class Exit(Exception):  # noqa: N818 - typer's name
    """Ends the program with a code."""

    def __init__(self, code: int = 0) -> None:
        self.code = code


class Abort(Exception):  # noqa: N818 - typer's name
    """There is nothing more to read."""


class BadParameter(Exception):  # noqa: N818 - typer's name
    """A word that can't be what it should."""


class Typer:
    """A program of several verbs."""

    def __init__(self, *, help: str, **_: object) -> None:  # noqa: A002
        self.help = help
        self.verbs: dict[str, _Verb] = {}
        self.root: Function = lambda: None

    def callback(self) -> Callable[[Function], Function]:
        """Takes the function that stands before every verb."""

        def take(function: Function) -> Function:
            self.root = function
            return function

        return take

    def command(self, name: str | None = None, epilog: str = "") -> Callable[[Function], Function]:
        """Takes a verb."""

        def take(function: Function) -> Function:
            self.verbs[name or function.__name__] = _Verb(function, epilog)
            return function

        return take

    def __call__(self) -> NoReturn:
        """Run what the command line says, and leave with its code."""
        words = sys.argv[1:]
        verb = self.verbs.get(words[0]) if words else None
        parser = self._parser() if verb is None else verb.parser(words[0])
        if not words:
            parser.print_help()
            sys.exit(2)
        try:
            if verb is None:
                self._answer(vars(parser.parse_args(words)))
            else:
                verb.function(**vars(parser.parse_args(verb.in_order(words[1:]))))
        except BadParameter as error:
            parser.error(str(error))
        except Exit as end:
            sys.exit(end.code)
        except (Abort, KeyboardInterrupt):
            sys.exit("Aborted.")
        except BrokenPipeError:  # who reads it has seen enough, as `head` does
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(1)
        sys.exit(0)

    def _parser(self) -> argparse.ArgumentParser:
        """Of a line without a verb."""
        parser = _new_parser("maskwright", self.help, "")
        for parameter in _parameters(self.root):
            parameter.add_to(parser)
        listed = parser.add_subparsers(metavar="VERB", title="verbs")
        for name, verb in self.verbs.items():
            told = (verb.function.__doc__ or "").partition("\n")[0]
            listed.add_parser(name, help=_escaped(told))
        return parser

    def _answer(self, given: dict[str, Any]) -> None:
        for parameter in _parameters(self.root):
            if isinstance(parameter.said, Option) and parameter.said.callback is not None:
                parameter.said.callback(given[parameter.name])


def echo(message: str | bytes = "", nl: bool = True, err: bool = False) -> None:
    """Print it."""
    stream = sys.stderr if err else sys.stdout
    if isinstance(message, bytes):
        stream.flush()
        stream.buffer.write(message + b"\n" * nl)
    else:
        stream.write(message + "\n" * nl)
    stream.flush()


def prompt(text: str, prompt_suffix: str = ": ") -> str:
    """What a person types."""
    try:
        return input(text + prompt_suffix)
    except EOFError:
        raise Abort from None


class _Verb(NamedTuple):
    function: Function
    epilog: str

    def parser(self, name: str) -> argparse.ArgumentParser:
        said = inspect.getdoc(self.function) or ""
        parser = _new_parser(f"maskwright {name}", said, inspect.cleandoc(self.epilog))
        for parameter in _parameters(self.function):
            parameter.add_to(parser)
        return parser

    def in_order(self, words: list[str]) -> list[str]:
        """Flags first, each in one word with its value, which may begin with a minus."""
        long = {
            flag: one.flags[0]
            for one in _parameters(self.function)
            for flag in one.flags
            if one.kind is not bool
        }
        rest = iter(words)
        first: list[str] = []
        then: list[str] = []
        for word in rest:
            if word == "--":
                then += [word, *rest]
            elif word in long:
                value = next(rest, None)
                whole = word if value is None else f"{long[word]}={value}"
                (then if value is None else first).append(whole)
            else:
                (first if word.startswith("-") else then).append(word)
        return first + then


@dataclass(frozen=True)
class _Parameter:
    name: str
    kind: Any  # the type of one word, or the Literal that holds all it may be
    many: bool
    default: Any  # Parameter.empty, where it must be given
    said: Argument | Option

    @property
    def flags(self) -> list[str]:
        if isinstance(self.said, Argument):
            return []
        given = [flag for flags in self.said.flags for flag in flags.split("/")]
        name = self.name.replace("_", "-")
        return given or ([f"--{name}", f"--no-{name}"] if self.kind is bool else [f"--{name}"])

    def add_to(self, parser: argparse.ArgumentParser) -> None:
        needed = self.default is inspect.Parameter.empty
        how: dict[str, Any] = {
            "default": None if needed else self.default,
            "help": _escaped(self.said.help),
        }
        if get_origin(self.kind) is Literal:
            how["choices"] = get_args(self.kind)
        elif self.kind is not bool:
            how["type"] = self.kind
        if isinstance(self.said, Argument):
            count = "+" if self.many else None if needed else "?"
            parser.add_argument(self.name, nargs=count, metavar=self.said.metavar, **how)
        elif self.kind is bool:
            for flag in self.flags:
                means = not flag.startswith("--no-")
                how["help"] = how["help"] if means else argparse.SUPPRESS
                parser.add_argument(flag, action="store_const", const=means, dest=self.name, **how)
        else:
            parser.add_argument(*self.flags, required=needed, dest=self.name, **how)


def _parameters(function: Function) -> list[_Parameter]:
    found = []
    hints = hints_of(function, include_extras=True)
    for name, parameter in inspect.signature(function).parameters.items():
        kind, said = _taken_apart(hints[name])
        many = get_origin(kind) is list
        one = get_args(kind)[0] if many else kind
        found.append(_Parameter(name, one, many, parameter.default, said))
    return found


def _taken_apart(hint: Any) -> tuple[Any, Any]:
    """The type, without its None, and what is said of it."""
    if not hasattr(hint, "__metadata__"):  # Python 3.10 adds a None around the whole
        hint = next(part for part in get_args(hint) if hasattr(part, "__metadata__"))
    kind = hint.__origin__
    parts = [part for part in get_args(kind) if part is not type(None)]
    optional = type(None) in get_args(kind)
    return (parts[0] if optional else kind), hint.__metadata__[0]


def _new_parser(program: str, said: str, epilog: str) -> argparse.ArgumentParser:
    return argparse.ArgumentParser(
        program,
        description=said,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def _escaped(text: str) -> str:
    """For argparse, to which a percent sign means something."""
    return text.replace("%", "%%")
