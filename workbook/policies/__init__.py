"""Models and their tokenizers: from a hub, a folder or a package; in 4 bits, with adapters."""

from workbook.places import lazy_names

_NAMES = {  # module: what it offers
    "policies.load": "Policy load_policy recast_adapters",
    "policies.models": "choose_device choose_dtype private_copy",
}
__all__, __getattr__, __dir__ = lazy_names(__name__, _NAMES)
