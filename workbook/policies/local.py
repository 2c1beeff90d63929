"""Where a policy's files lie, asked without fetching or making anything."""

from __future__ import annotations

import re
from pathlib import Path

from workbook.places import cache_folder
from workbook.policies.checks import ADAPTER
from workbook.policies.family import FAMILY, member_of
from workbook.policies.load import ALTERNATIVES, BUNDLED, HUB_ID, HUB_TIMEOUT_S, PACKAGED
from workbook.policies.packaged import RECORD


def local_folder(name: str) -> Path | None:
    """The folder of the policy of a name; None where it would be fetched, or trained, when it is first loaded.

    Raises ValueError for a name that is nobody's, and ConnectionError where the hub, which would know, does not answer.
    """
    if name == "bundled":
        return BUNDLED
    if name in PACKAGED:
        folder = cache_folder() / name
        return folder if (folder / RECORD).is_file() else None
    if name.startswith(FAMILY):
        member_of(name)
        return None
    if name and (folder := Path(name).expanduser()).is_dir():
        if not any((folder / file).is_file() for file in ("config.json", ADAPTER)):
            raise ValueError(f"The folder {str(folder)!r} holds no model (config.json is missing): {ALTERNATIVES}.")
        return folder
    if not re.fullmatch(HUB_ID, name):
        raise ValueError(f"{name!r} is neither an existing folder nor a hub id: {ALTERNATIVES}.")
    return _hub_folder(name)


def _hub_folder(name: str) -> Path | None:
    """The folder in the hub's own cache; None where the hub has the model and the cache has not."""
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError, RepositoryNotFoundError

    try:
        return Path(snapshot_download(name, local_files_only=True))
    except LocalEntryNotFoundError:
        pass
    try:
        HfApi().model_info(name, timeout=HUB_TIMEOUT_S)
    except RepositoryNotFoundError:
        raise ValueError(
            f"{name!r} is neither an existing folder nor a public model on the hub: {ALTERNATIVES}."
        ) from None
    except Exception:
        raise ConnectionError(
            f"{name!r} is no existing folder, and the model hub could not be reached: {ALTERNATIVES}."
        ) from None
    return None
