"""What is not installed, in one sentence: who needs it, and the line that installs it.

What may enter: names of packages that maskwright can do without, and of the extra that brings each.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from maskwright.errors import MissingError

if TYPE_CHECKING:
    from collections.abc import Iterator

EXTRAS: Final = {  # how a package is imported, and the extra of pyproject.toml that brings it
    "babel": "apps",
    "chatterbot_corpus": "apps",
    "jax": "jax",
    "keras": "keras",
    "matplotlib": "draw",
    "networkx": "apps",
    "num2words": "apps",
    "onnx": "onnx",
    "rich": "cli",
    "rouge_score": "apps",
    "sacrebleu": "apps",
    "safetensors": "apps",
    "sklearn": "apps",
    "starlette": "explore",
    "tensorflow": "tensorflow",
    "tokenizers": "apps",
    "torch": "torch",
    "transformers": "transformers",
    "uvicorn": "explore",
    "xformers": "xformers",
    "yaml": "apps",
}
PACKAGES: Final = {  # that are not called as they are imported
    "chatterbot_corpus": "chatterbot-corpus",
    "rouge_score": "rouge-score",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}


@contextmanager
def require(what: str, extra: str | None = None) -> Iterator[None]:
    """Imports within it that fail for want of a package say so in one sentence.

    Args:
        what: Who needs it.
        extra: What to install, where it is another than the one that brings the package.

    >>> from maskwright.core._optional_deps import require
    >>> with require("audit"):
    ...     raise ModuleNotFoundError(name="torch.nn")
    Traceback (most recent call last):
    maskwright.errors.MissingError: audit: torch is not installed. \
Run: pip install 'maskwright[torch]'
    """
    try:
        yield
    except ModuleNotFoundError as error:
        told = missing(what, error, extra)
        if told is None:
            raise
        raise told from error


def missing(what: str, error: ModuleNotFoundError, extra: str | None = None) -> MissingError | None:
    """The error as a person wants it; None, if it is no extra that is missing.

    >>> from maskwright.core._optional_deps import missing
    >>> missing("here", ModuleNotFoundError(name="nowhere")) is None
    True
    """
    module = (error.name or "").partition(".")[0]
    if module not in EXTRAS:
        return None
    fix = f"Run: pip install 'maskwright[{extra or EXTRAS[module]}]'"
    return MissingError(f"{what}: {PACKAGES.get(module, module)} is not installed. {fix}")
