"""The cases of the primitives of boxes: matching, mining, losses, detections."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.backends.cases import Gradients, case, eighths, labels, random
from tests.backends.running import Output

from . import reference

CODINGS = ("CORNER", "CENTER_SIZE", "CORNER_SIZE")
Settings = dict[str, Any]


def boxes(*shape: int) -> np.ndarray:
    """Random boxes with corners on a grid of 16ths (ties among overlaps), some beyond the image."""
    low = random.integers(-2, 12, size=(*shape, 2)) / 16
    size = random.integers(2, 8, size=(*shape, 2)) / 16
    return np.concatenate([low, low + size], axis=-1)


def priors_of(count: int) -> np.ndarray:
    variances = np.broadcast_to([0.125, 0.125, 0.25, 0.25], (count, 4))
    return np.stack([boxes(count), variances])


def ground_truth_of(items: int, rows: int, classes: int) -> np.ndarray:
    """Rows of truth in any order, some of which stand for nothing."""
    image = random.integers(-1, items, size=rows)
    label = random.integers(1, classes, size=rows)
    difficult = random.integers(2, size=rows)
    number = np.arange(rows)
    columns = [image, label, number, *boxes(rows).T, difficult]
    return np.stack(columns, axis=1).astype(np.float64)


def box_cases() -> None:
    _decoding()
    _matching()
    _losses()
    _mining()
    _results()


def _decoding() -> None:
    for coding in CODINGS:
        for scaled in True, False:
            read = {"location": eighths(2, 5, 3, 4) / 4, "priors": priors_of(5)}
            settings: Settings = {"coding": coding, "scaled": scaled}
            case(f"{coding}, {scaled}", "decode_boxes", read, settings,
                 {"boxes": reference.decode_all(**read, **settings)})  # fmt: skip


def _matching() -> None:
    usual = {"coding": "CORNER", "scaled": True, "background": 0, "difficult": True,
             "threshold": 0.25, "inside": False}  # fmt: skip
    table: list[tuple[str, int, int, Settings]] = [
        ("by prediction", 0, 7, {}),
        ("bipartite", 0, 7, {"threshold": None}),
        ("without difficult", 0, 9, {"difficult": False}),
        ("inside", 0, 7, {"inside": True}),
        ("decoded", 1, 7, {"coding": "CENTER_SIZE"}),
        ("decoded, a box a class", 4, 12, {"coding": "CORNER", "scaled": False}),
        ("little truth", 0, 1, {"threshold": 0.0625}),
        ("many", 0, 40, {"threshold": 0.3}),
    ]
    for label, wide, rows, given in table:
        items, count, settings = 3, 70 if rows > 12 else 18, usual | given
        read = {"priors": priors_of(count), "ground_truth": ground_truth_of(items, rows, 4),
                "location": eighths(items, count, wide, 4) / 4 if wide else None}  # fmt: skip
        case(label, "match_boxes", read, settings,
             reference.match(**read, **settings, items=items))  # fmt: skip
    case("no truth", "match_boxes",
         {"priors": priors_of(4), "ground_truth": np.full((1, 8), -1.0), "location": None},
         usual | {"inside": True},
         {"match": np.full((2, 1, 4), -2), "iou": np.zeros((2, 1, 4))})  # fmt: skip


def _losses() -> None:
    usual: Settings = {
        "coding": "CENTER_SIZE", "scaled": True, "smooth": True, "softmax": True, "background": 0,
        "agnostic": False, "bounded": None, "matched_only": False,
    }  # fmt: skip
    table: list[tuple[str, int, int, Settings]] = [
        ("SSD's", 1, 1, {}),
        ("squares, corners", 1, 1, {"smooth": False, "coding": "CORNER", "scaled": False}),
        ("sigmoids", 1, 1, {"softmax": False, "coding": "CORNER_SIZE"}),
        ("sigmoids, matched only", 1, 1, {"softmax": False, "matched_only": True}),
        ("agnostic, bounded", 1, 1, {"agnostic": True, "bounded": "prior"}),
        ("bounded decoded", 1, 1, {"bounded": "decoded", "scaled": False}),
        ("a box a class", 4, 1, {"background": 3}),
        ("a match a class", 4, 4, {"softmax": False}),
        ("a match a class, softmax", 4, 4, {}),
    ]
    for label, wide, matches, given in table:
        settings = usual | given
        items, count, classes = 2, 9, 4
        location = eighths(items, count, wide, 4) / 2 + 1 / 64  # off the knees
        confidence = eighths(items, count, classes)
        priors, ground_truth = priors_of(count), ground_truth_of(items, 6, classes)
        ground_truth[:, 1] -= settings["background"] == 3
        match = labels(8, items, matches, count) - 2
        if matches > 1:  # each is matched with truth of its class
            match = np.where(match < 0, -1, match)
            own = ground_truth[match.astype(int), 1] == np.arange(matches)[:, None]
            match = np.where(own, match, -1)
        read = {"location": location, "confidence": confidence, "priors": priors,
                "ground_truth": ground_truth, "match": match}  # fmt: skip
        case(label, "multibox_losses", read, settings, reference.losses(**read, **settings))
        for chosen in None, labels(2, items, count):
            case(f"{label}, {'all' if chosen is None else 'some'}", "multibox_losses_backward",
                 read | {"chosen": chosen, "dloss": np.array([1.5])}, settings | {"weight": 2.0},
                 _gradients(read, chosen, settings))  # fmt: skip
    wrong = read | {
        "ground_truth": np.where(np.arange(8) == 1, 7.0, ground_truth),
        "match": match * 0,
    }
    case("no such class", "multibox_losses", wrong | {"location_loss": Output((2, 9))}, usual,
         {"confidence_loss": np.full((2, 9), np.nan)})  # fmt: skip


def _gradients(read: dict[str, np.ndarray], chosen: Any, settings: Settings) -> Gradients:
    counts = np.ones(read["confidence"].shape[:2]) if chosen is None else chosen
    counts = np.maximum(counts, (read["match"] >= 0).any(axis=1))
    # Of the codes with variances, if those are not in the codes.
    variances = 1 if settings["scaled"] else read["priors"][1][:, None]

    def total(**given: np.ndarray) -> np.ndarray:
        found = reference.losses(**read | given, **settings)
        return 2 * found["location_loss"].sum() + (counts * found["confidence_loss"]).sum()

    return Gradients(
        dlocation=(lambda x: total(location=x * variances), read["location"] / variances, 1.5),
        dconfidence=(lambda x: total(confidence=x), read["confidence"], 1.5),
    )


def _mining() -> None:
    usual = {"hard": False, "ratio": 1.5, "most_overlap": 0.5, "size": 5, "threshold": 0.3,
             "top_k": -1}  # fmt: skip
    table: list[tuple[str, int, Settings]] = [
        ("negatives", 0, {}),
        ("many negatives", 0, {"ratio": 40.0}),
        ("hard", 0, {"hard": True}),
        ("hard, thinned", 2, {"hard": True}),
        ("hard, thinned priors", 1, {"hard": True, "top_k": 8}),
    ]
    for label, places, given in table:
        settings, shape = usual | given, (2, 30)
        own = boxes(places, 30) if places else None
        if own is not None:
            own[:, ::5, 2:] = own[:, ::5, :2]  # too small
        read = {"loss": np.abs(eighths(*shape)), "match": np.maximum(labels(12, *shape) - 9, -2),
                "iou": labels(9, *shape) / 8, "boxes": own}  # fmt: skip
        case(label, "mine_boxes", read, settings, reference.mine(**read, **settings))


def _results() -> None:
    usual = {"background": 0, "least": 0.125, "threshold": 0.4, "eta": 1.0, "top_k": -1, "keep": -1}
    table: list[tuple[str, int, Settings]] = [
        ("all", 1, {}),
        ("no limits", 1, {"least": None, "threshold": 1.0}),
        ("a box a class", 3, {"keep": 7, "background": 2}),
        ("some", 1, {"top_k": 6, "keep": 5, "background": -1}),
        ("falling threshold", 1, {"eta": 0.8, "threshold": 0.75}),
        ("nothing", 1, {"least": 9.0}),
    ]
    for label, wide, given in table:
        settings = usual | given
        read = {"boxes": boxes(2, 20, wide), "confidence": np.abs(eighths(2, 20, 3)) / 2}
        case(label, "detect_boxes", read, settings,
             reference.detect(**read, **settings, rows=120))  # fmt: skip
    for difficult in True, False:
        for background in 0, 4:
            count = 40
            ground_truth = ground_truth_of(3, 12, 3)
            found = np.concatenate(
                [labels(4, count, 1), labels(4, count, 1), np.abs(eighths(count, 1)), boxes(count)],
                axis=1,
            )
            found[:, 1] = np.where(found[:, 1] == background, -1, found[:, 1])
            found[::9, :2] = -1
            found[::4, 3:] = ground_truth[np.arange(10) + 1, 3:7]  # some hits
            found[::4, :2] = ground_truth[np.arange(10) + 1, :2]
            settings = {"classes": 4, "background": background, "threshold": 0.5,
                        "difficult": difficult}  # fmt: skip
            read = {"found": found, "ground_truth": ground_truth}
            case(f"background {background}, difficult {difficult}", "evaluate_boxes", read,
                 settings, reference.evaluate(**read, **settings))  # fmt: skip
