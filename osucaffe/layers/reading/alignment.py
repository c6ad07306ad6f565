"""Alignment of the data layers of a net: where records are shuffled or left out, all
layers bring the same ones together, or the net is refused."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from ...backends.cores import usable_cores
from ...data.ahead.parallel_map import map_ahead
from ...data.streams.order import Arrangement
from ...data.streams.stream import RecordStream
from ...errors import UserError, listed
from ..base import Layer, Shape
from .feed import Feed

_log = logging.getLogger("osucaffe")


def align(layers: Sequence[tuple[Layer, Shape]]) -> None:
    """Let the layers without bottoms of a net, given with the shapes of their first tops, bring the
    same records together, if the run shuffles them or leaves out bad ones. UserError names a layer
    that cannot, and the option.

    A record that is bad in one of several is left out of all: each is read once for that.
    """
    readers = [(layer, shape[:1]) for layer, shape in layers if _reads(layer)]
    if not readers:
        return
    (first, batch), config = readers[0], readers[0][0].context.data
    shuffles = config.shuffle > 0 and first.phase == "TRAIN"
    options = ["--shuffle"] * shuffles + ["--on_bad_record skip"] * config.skip_bad
    if len(readers) > 1 and options:
        for layer, size in readers:
            if why := _differs(layer, first, size, batch):
                raise UserError(
                    f"{layer.title}: {why}. With {' and '.join(options)} all data layers of a net "
                    f"must bring the same records together: leave out {' and '.join(options)}"
                )
        if config.skip_bad:
            _leave_out([layer for layer, _ in readers])
    else:
        _tell_unlike([layer for layer, _ in readers if getattr(layer, "_source", None)])
    if shuffles:
        _tell(first)


def _tell_unlike(layers: Sequence[Layer]) -> None:
    """Warn where layers bring records in unlike orders, as only some shuffle or skip them."""
    for layer in layers[1:]:
        here, there = _arrangement(layers[0]), _arrangement(layer)
        if here is not there and (not (here and there) or here[1:] != there[1:]):
            _log.warning(
                "%s and %s bring their records in unlike orders: shuffle or rand_skip differs. If "
                "the records belong together, set both alike",
                *(layers[0].title, layer.title),
            )


def _reads(layer: Layer) -> bool:
    """Whether a layer without bottoms brings records."""
    if isinstance(layer, Feed):
        return layer.type not in ("DummyData", "Input")
    return layer.type == "Python"


def _arrangement(layer: Layer) -> Arrangement | None:
    """That of its records, if others can bring theirs alike."""
    source = getattr(layer, "_source", None)
    return None if source is None else source.arrangement


def _differs(layer: Layer, first: Layer, batch: Shape, others: Shape) -> str:
    """What keeps a layer from bringing the same records as the first one, if anything does."""
    here, there = _arrangement(layer), _arrangement(first)
    if here is None or there is None:
        return f"{(layer if here is None else first).title} brings records in its own order"
    texts = (
        "it has {:,} records, and {} has {:,}",
        "its order has blocks of {} records, and that of {} of {} (`shuffle: true` means 1)",
        "rand_skip makes it begin at record {}, and {} at {}",
        "its batch_size is {}, and that of {} is {}",
    )
    pairs = zip((*here, *batch), (*there, *others), strict=True)
    differ = [t.format(a, first.title, b) for t, (a, b) in zip(texts, pairs, strict=True) if a != b]
    return differ[0] if differ else ""


def _leave_out(layers: Sequence[Layer]) -> None:
    """Leave out of all layers the records that are bad in one of them."""
    sources: list[Any] = [layer._source for layer in layers]  # type: ignore[attr-defined]
    names, count = listed(layer.title for layer in layers), len(sources[0])
    _log.info("Looking for bad ones among the %s records of %s", f"{count:,}", names)
    good = np.ones(count, bool)
    for source in sources:
        if not isinstance(source, RecordStream):
            continue

        find = partial(_fault, source)
        for record, error in enumerate(map_ahead(find, range(count), usable_cores())):
            if error is not None:
                good[record] = False
                source.bad.report(error, record)
    if not good.any():
        raise UserError(f"{names} have no record that is good in all of them")
    for source, layer in zip(sources, layers, strict=True):
        source.keep(np.flatnonzero(good))
        layer.records = len(source)


def _fault(source: RecordStream[Any], record: int) -> UserError | None:
    """What is wrong with a record."""
    try:
        source.read(record, 0)
    except UserError as error:
        return error
    return None


def _tell(layer: Layer) -> None:
    """Warn where --shuffle changes nothing."""
    arrangement = _arrangement(layer)
    if arrangement is None:
        why = "it brings records in its own order"
    elif arrangement.records > arrangement.block:
        return
    else:
        why = "its {:,} records are one block of {:,}; give a smaller number".format(*arrangement)
    _log.warning("%s: --shuffle changes nothing: %s", layer.title, why)
