"""What holds while torch.compile traces a graph. Importing this module loads the compiler."""

from __future__ import annotations

import torch
from torch._C._functorch import TransformType, get_interpreter_stack
from torch.autograd import forward_ad


@torch.compiler.assume_constant_result
def is_forward_mode() -> bool:
    """Whether the code that is traced is within forward-mode AD, such as torch.func.jvp."""
    stack = get_interpreter_stack() or ()
    return forward_ad._current_level >= 0 or any(x.key() == TransformType.Jvp for x in stack)
