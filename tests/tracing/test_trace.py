"""`trace` and `recording`: what holds for all models."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from maskwright.errors import ArgumentError
from maskwright.tracing import recording, trace
from tests._helpers.traced_modules import (
    CAUSAL,
    B,
    C,
    D,
    H,
    ManualAttention,
    ResidualStack,
    T,
    causal_layer,
    sdpa,
    tensors,
    tokens,
)


def test_differences_between_layers() -> None:
    found = trace(
        ResidualStack(causal_layer(), ManualAttention(), causal_layer(), ManualAttention()),
        tokens(),
    )
    assert [call.layer for call in found] == [f"layers.{i}" for i in range(4)]
    assert found.differences == (
        "the mask of layers.1, layers.3 differs from that of layers.0: everything()",
    )
    lines = str(found).splitlines()
    assert len(lines) == 6
    for part in ("layers.0", "softmax", "(2, 6, 32) → (2, 4, 6, 8)", "causal()", "42 %"):
        assert part in lines[1]
    assert trace(ResidualStack(causal_layer(), causal_layer()), tokens()).differences == ()
    assert str(trace(nn.Linear(C, C), tokens())) == "no attention calls"


def test_trace_is_immutable_sequence_with_json_data() -> None:
    found = trace(ResidualStack(causal_layer(), causal_layer()), tokens())
    assert len(found) == 2
    assert found[1].index == 1
    assert [call.layer for call in found] == ["layers.0", "layers.1"]
    data = json.loads(json.dumps(found.as_dict()))["calls"][0]
    assert data["mask"] == "causal()"
    assert data["shapes"][2] == [B, H, T, T]
    with pytest.raises(AttributeError):
        found[0].layer = "other"  # type: ignore[misc]
    with pytest.raises(ValueError, match="read-only"):
        found[0].visible[0] = True


def test_compiled_models_run_eagerly() -> None:
    model = torch.compile(ResidualStack(causal_layer()), backend="eager")
    [call] = trace(model, tokens())
    assert (call.layer, call.mask) == ("layers.0", CAUSAL)


def test_recording_keeps_outputs_of_calls_and_modules() -> None:
    model = ResidualStack(causal_layer(), ManualAttention()).eval()
    with torch.no_grad(), recording(model, outputs=True, modules=True) as recorder:
        out = model(tokens())
    assert [tuple(x.shape) for x in recorder.outputs] == [(B, H, T, D)] * 2
    names = [name for name, _ in recorder.modules]
    assert names[-1] == ""
    assert (
        names.index("layers.0.project") < names.index("layers.0") < names.index("layers.1.project")
    )
    assert torch.equal(recorder.modules[-1][1], out)


def patched_state() -> tuple[object, ...]:
    return (
        nn.Module.__call__,
        torch.overrides.has_torch_function,
        F.has_torch_function,
        torch.overrides._get_current_function_mode_stack(),
        torch.utils._python_dispatch._get_current_dispatch_mode_stack(),
    )


def test_patches_are_undone_when_model_raises() -> None:
    def fail(scores: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("on purpose")

    model, before = ResidualStack(causal_layer(), ManualAttention(fail)), patched_state()
    model.layers[0].train()
    model.layers[1].eval()
    with pytest.raises(RuntimeError, match="on purpose"):
        trace(model, tokens())
    assert patched_state() == before
    assert [layer.training for layer in model.layers] == [True, False]
    with pytest.raises(RuntimeError, match="on purpose"), recording(model) as recorder:
        model(tokens())
    assert patched_state() == before
    assert [call.layer for call in recorder.calls] == ["layers.0"]
    with pytest.raises(RuntimeError):
        trace(sdpa, *tensors(), attn_mask=torch.ones(3, 3).bool())
    assert patched_state() == before


def test_mode_parameters_and_rng_state_are_unchanged() -> None:
    model = ResidualStack(causal_layer(), causal_layer()).train()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    trace(model, tokens())
    trace(lambda x: F.dropout(x), tokens())
    assert torch.equal(torch.rand(1), expected)
    assert all(module.training for module in model.modules())
    assert all(torch.equal(model.state_dict()[name], value) for name, value in state.items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(not module._forward_hooks for module in model.modules())


def test_gradients_are_unchanged_by_recording() -> None:
    model, x = ResidualStack(causal_layer(), causal_layer()).eval(), tokens()
    model(x).sum().backward()
    plain = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    with recording(model) as recorder:
        model(x).sum().backward()
    assert len(recorder.calls) == 2
    for one, parameter in zip(plain, model.parameters(), strict=True):
        assert torch.equal(one, parameter.grad)


def test_default_device() -> None:
    with torch.device("cpu"):
        [call] = trace(causal_layer(), tokens())
    assert call.mask == CAUSAL


@pytest.mark.parametrize("model", [None, 3, torch.ones(2)])
def test_model_must_be_callable(model: Any) -> None:
    with pytest.raises(ArgumentError, match=r"^trace: the model is .*\. Pass a module"):
        trace(model)
    with (
        pytest.raises(ArgumentError, match=r"^recording: the model is"),
        recording(model),
    ):
        pass
