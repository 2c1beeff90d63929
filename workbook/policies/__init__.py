"""Models and their tokenizers: loaded by name, in 4 bits, with an adapter; from a hub, a folder or a package."""

from __future__ import annotations

from workbook.lazy import lazy_names

_HOMES = {
    "Policy": "policies.load",
    "choose_device": "policies.devices",
    "choose_dtype": "policies.devices",
    "load_policy": "policies.load",
    "recast_adapters": "policies.load",
}
__all__ = list(_HOMES)
__getattr__, __dir__ = lazy_names(__name__, _HOMES)
