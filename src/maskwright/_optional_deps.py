"""Optional dependencies: which extra installs a package, and the error if it is missing."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from maskwright.errors import MissingError

if TYPE_CHECKING:
    from collections.abc import Iterator

_IMPORTS: Final = {  # the packages that each extra of pyproject.toml installs, by import name
    "cli": "markdown_it pygments rich typer",
    "draw": "resvg_py wcwidth",
    "torch": "torch",
    "transformers": "transformers",
    "triton": "triton",
    "xformers": "xformers",
    "jax": "jax ml_dtypes",
    "keras": "keras",
    "tensorflow": "tensorflow",
    "onnx": "onnx onnxscript",
    "explore": "msgspec starlette uvicorn",
    "apps": "babel chatterbot_corpus filelock matplotlib networkx num2words "
    "rouge_score sacrebleu safetensors sklearn tokenizers yaml",
}
EXTRAS: Final = {name: extra for extra, names in _IMPORTS.items() for name in names.split()}
PACKAGES: Final = {  # import name -> distribution name, where they differ
    "markdown_it": "markdown-it-py",
    "chatterbot_corpus": "chatterbot-corpus",
    "resvg_py": "resvg-py",
    "rouge_score": "rouge-score",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}


@contextmanager
def require(what: str, extra: str | None = None) -> Iterator[None]:
    """A context in which a missing package raises MissingError with the command to install it.

    Args:
        what: What needs the package, for the message.
        extra: The extra to install. Default: the one that installs the package.

    Raises:
        MissingError: If an import in the context fails for want of an optional package.

    >>> from maskwright._optional_deps import require
    >>> with require("audit"):
    ...     raise ModuleNotFoundError(name="torch.nn")
    Traceback (most recent call last):
    maskwright.errors.MissingError: audit: torch is not installed. \
Run: pip install 'maskwright[torch]'
    """
    try:
        yield
    except ModuleNotFoundError as error:
        found = missing(what, error, extra)
        if found is None:
            raise
        raise found from error


def missing(what: str, error: ModuleNotFoundError, extra: str | None = None) -> MissingError | None:
    """The MissingError for a failed import; None if no extra installs that package.

    >>> from maskwright._optional_deps import missing
    >>> missing("here", ModuleNotFoundError(name="nowhere")) is None
    True
    """
    module = (error.name or "").partition(".")[0]
    if module not in EXTRAS:
        return None
    fix = f"Run: pip install 'maskwright[{extra or EXTRAS[module]}]'"
    return MissingError(f"{what}: {PACKAGES.get(module, module)} is not installed. {fix}")
