"""What somebody may have meant by a name that is not an encoder's."""

from __future__ import annotations

from difflib import get_close_matches

from abag.embed.families.registry import ALIASES

MOST = 8
"""More names than these would hide the one that is meant."""


def near_aliases(name: str) -> list[str]:
    """Return the aliases that somebody who wrote this name may have meant, nearest first."""
    aliases: dict[str, str] = {}
    for alias, known in ALIASES.items():
        aliases |= {} if known.random else {_plain(alias): alias}
    for alias, known in ALIASES.items():
        if known.hub_name:
            aliases.setdefault(_plain(known.hub_name), alias)
    asked = _plain(name)
    if asked in aliases:
        return [aliases[asked]]
    long = len(asked) >= 3
    near = [
        known for known in aliases if long and (known.startswith(asked) or asked.startswith(known))
    ]
    near = near or get_close_matches(asked, aliases, cutoff=0.7)
    return list(dict.fromkeys(aliases[known] for known in near))[:MOST]


def _plain(name: str) -> str:
    """Reduce the last part of a name to lower-case letters and digits."""
    last = name.partition("@")[0].rstrip("/").rsplit("/", 1)[-1]
    return "".join(c for c in last.lower() if c.isalnum())
