"""The geometry of boxes: few boxes are thinned as many are."""

from __future__ import annotations

import numpy as np
import pytest

from osucaffe.forks import boxes


def test_many_boxes_are_thinned_as_few_are(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(0)
    corners = generator.random((200, 2))
    places = np.concatenate([corners, corners + generator.random((200, 2)) * 0.4], axis=1)
    scores = np.round(generator.random(200), 1)
    few = boxes.nms(places, scores, 0.4, top_k=150)
    monkeypatch.setattr(boxes, "_AT_ONCE", 0)
    np.testing.assert_array_equal(boxes.nms(places, scores, 0.4, top_k=150), few)
    assert 10 < len(few) < 150


@pytest.mark.parametrize("coding", ["CORNER", "CENTER_SIZE", "CORNER_SIZE"])
def test_codes_stand_for_their_boxes(coding: str) -> None:
    generator = np.random.default_rng(1)
    corners = generator.random((2, 30, 2))
    one, other = np.concatenate([corners, corners + 0.1 + generator.random((2, 30, 2))], axis=2)
    found = boxes.decode(boxes.encode(one, other, coding), other, coding)
    np.testing.assert_allclose(found, one, atol=1e-12)
