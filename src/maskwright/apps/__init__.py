"""Applications: real data, a model of `maskwright.models`, training and inference, one file each.

This module has what they share: the base class `Task`, its options, and the registry. `trainer` has
the training loop, `checkpoint` the files, `distributed` the strategies, `data` the corpora.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar

from maskwright._atomic_write import write_atomic
from maskwright._optional_deps import require
from maskwright._registry import Registry
from maskwright.core.atoms import causal
from maskwright.core.parser import parse
from maskwright.errors import ArgumentError, MaskError

with require("maskwright.apps", "apps"):
    import torch

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from maskwright.apps.checkpoint import TrainingState
    from maskwright.apps.trainer import TrainingConfig
    from maskwright.auditing.report import AuditReport
    from maskwright.core.expr import Mask


TaskT = TypeVar("TaskT", bound="Task")


@dataclass(frozen=True)
class TaskOptions:
    """Options of a task. None is the task's default.

    >>> from maskwright.apps import TaskOptions
    >>> TaskOptions(mask="window(back=3)").parsed_mask, TaskOptions(mask="causal").parsed_mask
    (window(back=3), causal())
    """

    version: str | None = None  # which model or data set, where a task has several
    mask: str | None = None  # an expression that replaces the task's mask
    text: Path | None = None  # own data: a text file
    pairs: Path | None = None  # own data: a file of tab-separated pairs
    data: str | None = None  # another data set of the task
    batch_size: int | None = None
    seed: int = 0

    @property
    def parsed_mask(self) -> Mask | None:
        """The mask; None if it is not set."""
        if self.mask is None:
            return None
        return parse(self.mask if "(" in self.mask else f"{self.mask}()")


@dataclass(frozen=True)
class Prompt:
    """An input of `Task.predict`, and how to decode. None is the task's default."""

    text: str | None = None
    max_new_tokens: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    num_beams: int | None = None
    num_samples: int | None = None
    seed: int | None = None


class Task:
    """One application: its data, its model, its loss, and its use.

    `Task(options)` reads the data and makes a new model. `Task.from_checkpoint(state)` makes the
    model of a checkpoint without reading data, for `predict`.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    versions: ClassVar[tuple[str, ...]]  # the first is the default
    own_data: ClassVar[tuple[str, ...]] = ()  # which of text, pairs and data it accepts
    default_training: ClassVar[TrainingConfig]  # the default hyperparameters
    default_batch_size: ClassVar[int]
    tokenizers: ClassVar[tuple[str, ...]] = ()  # attributes that a checkpoint stores
    encode_special_tokens: ClassVar[bool] = False  # whether "<end>" in a text is plain text
    output_formats: ClassVar[tuple[str, ...]] = (".txt", ".json")
    probes: ClassVar[tuple[str, ...]] = ("leak", "reach", "gradient")  # of the audit
    model_class: ClassVar[Any]
    model_config: ClassVar[Any]  # the default config; a checkpoint has another of its class

    options: TaskOptions
    version: str
    model: Any
    mask: Mask | None = None  # None: every batch has its own
    tokenizer: Any

    def __init__(self, options: TaskOptions | None = None) -> None:
        self.options = options = options or TaskOptions()
        self.version = self.resolve_version(options)
        for name in ("text", "pairs", "data"):
            if getattr(options, name) is not None and name not in self.own_data:
                raise ArgumentError(f"{self.name} does not accept --{name}. Leave it out.")
        self.batch_size = options.batch_size or self.default_batch_size
        self.load_data()
        self.mask = self.default_mask() if options.mask is None else options.parsed_mask
        torch.manual_seed(options.seed)
        self.model = self.make_model(self.make_config())

    # ── what a checkpoint stores ────────────────────────────────────────────────────────────

    def config(self) -> dict[str, Any]:
        """What `from_checkpoint` needs, and the options that must not change on resuming."""
        corpus = {name: getattr(self.options, name) for name in self.own_data}
        return {
            "version": self.version,
            "mask": None if self.mask is None else repr(self.mask),
            "batch_size": self.batch_size,
            "seed": self.options.seed,
            **{name: None if value is None else str(value) for name, value in corpus.items()},
            **{name: getattr(self, name).to_str() for name in self.tokenizers},
            "model": asdict(self.model.config) if self.model_config else {},
        }

    @classmethod
    def from_checkpoint(cls: type[TaskT], state: TrainingState) -> TaskT:
        """The task of a checkpoint: its model, with new weights, and its tokenizers, no data.

        Raises:
            ArgumentError: If the checkpoint's configuration is invalid.
        """
        task = cls.__new__(cls)
        try:
            task.restore(state.config)
        except (MaskError, MemoryError):
            raise
        except Exception as error:  # of any kind: the file may hold anything
            raise ArgumentError(
                f"The configuration in {cls.name}'s checkpoint is invalid: "
                f"{type(error).__name__}: {error!s:.120}. Train again, or pass another folder."
            ) from error
        return task

    def restore(self, config: Mapping[str, Any]) -> None:
        """Sets the attributes that `config` describes."""
        self.version, self.batch_size = str(config["version"]), int(config["batch_size"])
        self.options = TaskOptions(version=self.version, seed=int(config["seed"]))
        self.mask = None if config["mask"] is None else parse(config["mask"])
        if self.tokenizers:
            from tokenizers import Tokenizer

            for name in self.tokenizers:
                setattr(self, name, Tokenizer.from_str(config[name]))
                getattr(self, name).encode_special_tokens = self.encode_special_tokens
        self.model = self.make_model(type(self.model_config)(**config["model"]))

    # ── to be defined by each task ──────────────────────────────────────────────────────────

    def load_data(self) -> None:
        """Reads the data and makes the tokenizers."""
        raise NotImplementedError

    def batch(self, step: int, micro_step: int) -> Any:
        """The batch for a step and micro-step; it depends on them and the seed only."""
        raise NotImplementedError

    def loss(self, batch: Any) -> torch.Tensor:
        """The training loss."""
        raise NotImplementedError

    def num_tokens(self, batch: Any) -> int:
        """Tokens of a batch, without padding."""
        raise NotImplementedError

    def held_out_batch(self) -> Any:
        """The held-out data, always the same."""
        raise NotImplementedError

    def sample(self) -> str:
        """A short sample of what the model generates, shown during training."""
        raise NotImplementedError

    def report(self) -> Iterator[str]:
        """Held-out metrics compared with those of a baseline, and examples, one line each."""
        raise NotImplementedError

    def score_generation(self, reference: Any) -> tuple[str, float]:
        """A metric of free generation: its name and value.

        Some tasks score with the loss of `reference`, the task trained with its own mask.
        """
        raise NotImplementedError

    def predict(self, prompt: Prompt) -> Iterator[str]:
        """The output for a prompt, line by line."""
        raise NotImplementedError

    def audit_inputs(self) -> tuple[Any, Any, Mapping[str | None, Mask]]:
        """Model, inputs, and the mask expected of each input, for `check_mask` and `audit`."""
        raise NotImplementedError

    # ── defaults ────────────────────────────────────────────────────────────────────────────

    @classmethod
    def training_config(cls, options: TaskOptions) -> TrainingConfig:
        """The default hyperparameters."""
        return replace(cls.default_training, seed=options.seed)

    def evaluate(self) -> float:
        """The held-out loss."""
        with torch.no_grad():
            return float(self.loss(self.held_out_batch()))

    def default_mask(self) -> Mask | None:
        """The mask that the task is trained with unless the options replace it."""
        return causal()

    def make_config(self) -> Any:
        """The config of a new model, with the vocabulary of the loaded data."""
        if not self.tokenizers:
            return self.model_config
        return replace(self.model_config, vocab_size=self.tokenizer.get_vocab_size())

    def make_model(self, config: Any) -> Any:
        """A new model."""
        return self.model_class(config, self.mask)

    @classmethod
    def resolve_version(cls, options: TaskOptions) -> str:
        """The version that the options name, or the default.

        Raises:
            ArgumentError: If the version is unknown.
        """
        if options.version is not None and options.version not in cls.versions:
            raise ArgumentError(
                f"{cls.name} has no version {options.version!r:.40}. "
                f"Pass one of {', '.join(cls.versions)}."
            )
        return options.version or cls.versions[0]

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        device: torch.device = next(self.model.parameters()).device
        return device

    def random_ids(self, low: int, high: int, shape: tuple[int, int]) -> torch.Tensor:
        """Ids for `audit_inputs`."""
        generator = torch.Generator().manual_seed(0)
        return torch.randint(low, high, shape, generator=generator).to(self.device)

    @property
    def num_layers(self) -> int:
        """Attention layers, over which the reach of a mask grows."""
        return int(self.model.config.n_layer)

    def describe_mask(self) -> str:
        """The mask as an expression."""
        return "the mask of each batch" if self.mask is None else repr(self.mask)

    def check_mask(self) -> str:
        """Changes one input position at a time and counts outputs that masked inputs reach."""
        from maskwright.auditing.measure import influence

        model, inputs, expected = self.audit_inputs()
        leaks = checked = 0
        for name, mask in expected.items():
            moved = influence(model, inputs, of=name).moved  # (B, outputs, inputs)
            batch, q_len, kv_len = moved.shape
            visible = mask.on(q_len, kv_len, batch=batch).dense().any(1)
            if q_len == kv_len:  # residual connections, and one step further per layer
                visible = visible | torch.eye(q_len, dtype=torch.bool).numpy()
                step = visible
                for _ in range(1, self.num_layers):
                    visible = visible @ step
            leaks, checked = leaks + int((moved & ~visible).sum()), checked + moved.size
        shown = f"{self.describe_mask():.60}"
        if leaks:
            return f"mask check FAILED: {leaks} of {checked} pairs leak under {shown}. Run with --audit."
        return f"mask check: no output depends on a masked input ({shown}, {checked} pairs)"

    def audit(self) -> AuditReport:
        """The full audit of the model against its mask."""
        from maskwright.auditing.run import audit

        model, inputs, expected = self.audit_inputs()
        expects: Any = expected.get(None, expected)
        return audit(model, inputs, expects=expects, layers=self.num_layers, probes=self.probes)

    def save_prediction(self, path: Path, lines: Sequence[str]) -> None:
        """Writes the output of `predict` as text or JSON, by the file's extension."""
        if path.suffix.lower() == ".json":
            content = json.dumps({"app": self.name, "output": [*lines]}, ensure_ascii=False) + "\n"
        else:
            content = "".join(f"{line}\n" for line in lines)
        write_atomic(path, content)

    def chat(self, lines: Iterable[str]) -> Iterator[str] | None:  # noqa: ARG002
        """Answers to lines as they are typed; None if the task has no chat."""
        return None


APPS: Final[Registry[type[Task]]] = Registry(
    "app",
    "maskwright.apps",
    {
        "language": "language:Language",
        "translation": "translation:Translation",
        "summarisation": "summarisation:Summarisation",
        "dialogue": "dialogue:Dialogue",
        "image": "image:Image",
        "graph": "graph:Graph",
        "masked-lm": "masked_lm:MaskedLM",
    },
)


def find_app(name: str) -> type[Task]:
    """Returns the application of that name.

    Args:
        name: A name in `APPS`.

    Returns:
        The class of the application.

    Raises:
        ArgumentError: If there is no application of that name.
        MissingError: If a package that it needs is not installed.

    >>> from maskwright.apps import find_app
    >>> find_app("language").versions
    ('gpt', 'v4', 'v3')
    """
    known = APPS.resolve(name, "apps")
    with require(known, "apps"):
        return APPS[known]
