"""Records that may be set side by side: those of one run, where a folder holds several."""

from __future__ import annotations

from collections.abc import Sequence

from notsodeep.experiments.record import Record


def of_one_setting(records: Sequence[Record], names: Sequence[str]) -> list[Record]:
    """Those with these settings as the latest record has them: numbers found under different ones do not mix."""

    def chosen(record: Record) -> tuple[str, ...]:
        return tuple(repr(record.config.get(name)) for name in ("revision", *names))

    return [record for record in records if chosen(record) == chosen(records[-1])]


def of_one_run(records: Sequence[Record], apart: Sequence[str], names: Sequence[str]) -> list[Record]:
    """`of_one_setting`, for each group of records that agree in the settings `apart`."""
    groups: dict[tuple[str, ...], list[Record]] = {}
    for record in records:
        groups.setdefault(tuple(repr(record.config.get(name)) for name in apart), []).append(record)
    return [record for group in groups.values() for record in of_one_setting(group, names)]
