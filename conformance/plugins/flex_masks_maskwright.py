"""Compare every BlockMask with that of maskwright, with `flex_masks`."""

from __future__ import annotations

from conformance.plugins import flex_masks

flex_masks.compared = True
