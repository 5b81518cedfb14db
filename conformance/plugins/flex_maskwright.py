"""maskwright in place of compiled calls of flex_attention, with `flex`."""

from __future__ import annotations

from conformance.plugins import flex

flex.replaced = True
