"""The model tests of transformers: one suite per model family."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from conformance.runners import LIMITED, TIMEOUT, Pytest
from conformance.sources import installed, version_in
from conformance.suite import Reason, Runs, Suite

if TYPE_CHECKING:
    from conformance.sources import Sources

FAMILIES = (
    *("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3", "phi3", "olmo2"),
    *("gpt_neox", "gpt2", "gpt_oss", "opt", "bloom", "cohere2", "starcoder2", "granite"),
    *("deepseek_v3", "falcon", "bert", "roberta", "modernbert", "distilbert", "esm", "bart", "t5"),
    *("marian", "whisper", "pegasus", "vit", "clip", "siglip", "paligemma", "llava", "qwen2_vl"),
    "idefics",
)
# What the tests import, and transformers itself does not.
PACKAGES = (
    *("httpx==0.28.1", "httpcore==1.0.9", "h11==0.16.0", "parameterized==0.9.0"),
    *("timeout-decorator==0.5.0", TIMEOUT),
)
OFFLINE = (("HF_HUB_OFFLINE", "1"), ("TRANSFORMERS_OFFLINE", "1"))
REASONS: tuple[Reason, ...] = (
    Reason(
        "by design",
        "falcon selects its attention from its own table|falcon.*uses its mask as numbers",
        "Falcon does not use the attention interface; it is in the list of unsupported models.",
    ),
)


def run(sources: Sources, family: str) -> Runs:
    """The tests of a family."""
    release = installed("transformers")
    path = f"tests/models/{family}/test_modeling_{family}.py"
    folder = sources.clone("transformers", "huggingface/transformers", f"v{release}", path)
    version = version_in(folder / "src/transformers/__init__.py", r'__version__ = "(.+?)"')
    packages = sources.packages(*PACKAGES)
    pytest = Pytest(
        folder,
        (path,),
        "conformance.plugins.transformers",
        packages,
        also=("conformance.plugins.transformers_names",),
        options=LIMITED,
        environment=OFFLINE,
    )
    return pytest.run(f"transformers {version} on {release}")


SUITES = tuple(
    Suite(
        f"transformers.{family}",
        f"model tests of {family}",
        '"sdpa" of the attention and mask interfaces',
        partial(run, family=family),
        REASONS,
    )
    for family in FAMILIES
)
