"""The Lua scripts: what must happen as one. Keys are declared, so scripts run in a cluster."""

from __future__ import annotations

from importlib.resources import files

__all__ = ["FINISH", "FOREIGN", "HAND_BACK", "LEAVE", "MOVE_LIST", "RENEW", "RETRY_DEAD"]

FOREIGN = 2
"""What ``FINISH`` returns where the key of a result holds something else."""


def _read(name: str) -> str:
    return files(__package__).joinpath("lua", f"{name}.lua").read_text("utf-8")


FINISH = _read("finish")
RENEW = _read("renew")
HAND_BACK = _read("hand_back")
LEAVE = _read("leave")
RETRY_DEAD = _read("retry_dead")
MOVE_LIST = _read("move_list")
