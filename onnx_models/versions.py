"""Releases by name and by age, as PEP 440 has them; a build may have any other name too."""

from __future__ import annotations

from packaging.version import InvalidVersion, Version


def release_name(version: str) -> str:
    """`3.13.0` of `3.13` and of `v3.13.0`: one release has one name, in the history too.

    Raises:
        InvalidVersion: it is no version.
    """
    found = Version(version)
    short = ".".join(map(str, found.release))
    return str(found).replace(short, short + ".0" * (3 - len(found.release)), 1)


def base_release(release: str) -> str:
    """`3.13.0` of `3.13.0rc20261016`; a build without a version is its own release."""
    try:
        return Version(release).base_version
    except InvalidVersion:
        return release


def version_key(release: str) -> tuple[int, Version, str]:
    """Sorts releases by age; a build without a version comes after all of them, by name."""
    try:
        return 0, Version(release), ""
    except InvalidVersion:
        return 1, Version("0"), release
