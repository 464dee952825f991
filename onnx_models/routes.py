"""Where the model zoo can be had, as a user configures it.

Each setting is an environment variable, else a key of the configuration file
`$ONNX_MODELS_CONFIG` (default `onnx_models/config.toml` in the user's
configuration folder), else the default:

    ONNX_MODELS_ROUTES           routes           hub, model, media, mirror, in the order to try
    ONNX_MODELS_MIRROR           mirrors          folders or URLs that hold the zoo's tree
    ONNX_MODELS_HUB_REVISION     hub_revision     branch, tag or commit of the hub's repositories
    ONNX_MODELS_MEDIA_ENDPOINT   media_endpoint   before `/<commit>/<path>`
    ONNX_MODELS_MEDIA_COMMIT     media_commit     full hash
    HF_ENDPOINT                                   the hub itself, or a company's copy of it
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onnx_models import toml_files
from onnx_models.outcomes import UsageError

ROUTES = ("hub", "model", "media", "mirror")

HUB_OWNER = "onnxmodelzoo"
HUB_REPOSITORY = f"{HUB_OWNER}/legacy_models"

HUB_REVISION = "main"
"""Revision of the hub's repositories (`ONNX_MODELS_HUB_REVISION`): a branch, since no commit is known
here; what is downloaded is pinned by its sha256 all the same."""

HUB_ENDPOINT = "https://huggingface.co"

MEDIA_ENDPOINT = "https://media.githubusercontent.com/media/onnx/models"
"""Overridden by `ONNX_MODELS_MEDIA_ENDPOINT`."""

MEDIA_COMMIT = "b1eeaa1ac722dcc1cd1a8284bde34393dab61c3d"
"""The zoo's last commit (2025-06-27), whose inventory the catalogue is (`ONNX_MODELS_MEDIA_COMMIT`)."""

_KEYS = {
    "routes": "ONNX_MODELS_ROUTES",
    "mirrors": "ONNX_MODELS_MIRROR",
    "hub_revision": "ONNX_MODELS_HUB_REVISION",
    "media_endpoint": "ONNX_MODELS_MEDIA_ENDPOINT",
    "media_commit": "ONNX_MODELS_MEDIA_COMMIT",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Routes:
    """Where to look, in which order; `configured` is what the user wants."""

    order: tuple[str, ...] = ROUTES
    endpoint: str = HUB_ENDPOINT
    revision: str = HUB_REVISION
    media: str = MEDIA_ENDPOINT
    media_commit: str = MEDIA_COMMIT
    mirrors: tuple[str, ...] = ()

    @classmethod
    def configured(cls, mirrors: Sequence[str] = (), environ: Mapping[str, str] | None = None) -> Routes:
        """The user's settings; `mirrors` come before the configured ones.

        Raises:
            UsageError: the configuration file is not well-formed, or names a route that does not exist.
        """
        env = os.environ if environ is None else environ
        file = _config_file(env)
        found = {key: _words(value) for key, value in _read(file).items()}
        found |= {key: env[name].replace(",", " ").split() for key, name in _KEYS.items() if env.get(name)}
        order = tuple(found.get("routes", ROUTES))
        for name in order:
            if name not in ROUTES:
                where = f"ONNX_MODELS_ROUTES or {file}"
                raise UsageError(f"{where}: no route {name!r}: choose from {', '.join(ROUTES)}")
        return cls(
            order=order,
            endpoint=(env.get("HF_ENDPOINT") or HUB_ENDPOINT).rstrip("/"),
            revision=found.get("hub_revision", [HUB_REVISION])[0],
            media=found.get("media_endpoint", [MEDIA_ENDPOINT])[0].rstrip("/"),
            media_commit=found.get("media_commit", [MEDIA_COMMIT])[0],
            mirrors=(*mirrors, *found.get("mirrors", ())),
        )


def _config_file(env: Mapping[str, str]) -> Path:
    if env.get("ONNX_MODELS_CONFIG"):
        return Path(env["ONNX_MODELS_CONFIG"]).expanduser()
    folder = env.get("XDG_CONFIG_HOME")
    return (Path(folder) if folder else Path.home() / ".config") / "onnx_models" / "config.toml"


def _words(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else [str(word) for word in value]


def _read(file: Path) -> dict[str, Any]:
    try:
        if not file.exists():
            return {}
        values = toml_files.read(file)
    except (OSError, toml_files.TomlError) as error:
        raise UsageError(f"{error}; a configuration holds lines like mirrors = [...]") from None
    for key, value in values.items():
        if key not in _KEYS:
            raise UsageError(f"{file}: unknown key {key!r}: choose from {', '.join(_KEYS)}")
        wrong = not isinstance(value, list | str) or (
            isinstance(value, list) and not all(isinstance(word, str) for word in value)
        )
        if wrong or not value:
            raise UsageError(f"{file}: {key}: expected a text or a list of texts, found {value!r}")
    return values
