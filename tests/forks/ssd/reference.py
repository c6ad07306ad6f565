"""Plain float64 versions of the primitives of boxes, one box after another."""

from __future__ import annotations

import math

import numpy as np


def area(box):
    return max(0.0, box[2] - box[0]) * max(0.0, box[3] - box[1])


def overlap(a, b):
    inside = area([*np.maximum(a[:2], b[:2]), *np.minimum(a[2:], b[2:])])
    return inside / (area(a) + area(b) - inside) if inside else 0.0


def encode(box, prior, coding):
    width, height = prior[2] - prior[0], prior[3] - prior[1]
    if coding == "CORNER":
        return box - prior
    if coding == "CORNER_SIZE":
        return (box - prior) / [width, height, width, height]
    return np.array([
        ((box[0] + box[2]) - (prior[0] + prior[2])) / 2 / width,
        ((box[1] + box[3]) - (prior[1] + prior[3])) / 2 / height,
        math.log((box[2] - box[0]) / width), math.log((box[3] - box[1]) / height),
    ])  # fmt: skip


def decode(code, prior, variance, coding, scaled):
    code = code * variance if scaled else code
    size = np.array([prior[2] - prior[0], prior[3] - prior[1]])
    if coding == "CORNER":
        return prior + code
    if coding == "CORNER_SIZE":
        return prior + code * [*size, *size]
    middle = (prior[:2] + prior[2:]) / 2 + code[:2] * size
    half = np.exp(code[2:]) * size / 2
    return np.array([*(middle - half), *(middle + half)])


def decode_all(location, priors, coding, scaled):
    result = np.empty(location.shape)
    for n, p, k in np.ndindex(*location.shape[:3]):
        result[n, p, k] = decode(location[n, p, k], priors[0, p], priors[1, p], coding, scaled)
    return result


def match(priors, ground_truth, location, *, coding, scaled, background, difficult, threshold,
          inside, items):  # fmt: skip
    places = np.broadcast_to(priors[0][:, None], (items, priors.shape[1], 1, 4))
    if location is not None:
        places = decode_all(location, priors, coding, scaled)
    count, wide = places.shape[1:3]
    found, best = np.full((items, wide, count), -2.0), np.zeros((items, wide, count))
    for n, k in np.ndindex(items, wide):
        rows = [
            r for r, row in enumerate(ground_truth)
            if row[0] == n and (difficult or not row[7])
            and (wide == 1 or (row[1] == k and k != background))
        ]  # fmt: skip
        shared = np.zeros((count, len(rows)))
        for p in range(count if rows else 0):
            found[n, k, p] = -1
            box = places[n, p, k]
            if inside and (box.min() < 0 or box.max() > 1):
                found[n, k, p] = -2
                continue
            shared[p] = [overlap(box, ground_truth[r, 3:7]) for r in rows]
        shared[shared <= 1e-6] = 0
        best[n, k] = shared.max(axis=1, initial=0)
        left = list(range(len(rows)))
        while left:
            pairs = [
                (-shared[p, j], p, j) for p in range(count) if found[n, k, p] == -1
                for j in left if shared[p, j]
            ]  # fmt: skip
            if not pairs:
                break
            _, p, j = min(pairs)
            found[n, k, p], best[n, k, p] = rows[j], shared[p, j]
            left.remove(j)
        for p in range(count):
            most = shared[p].max(initial=0)
            if found[n, k, p] == -1 and most and threshold is not None and most >= threshold:
                found[n, k, p] = rows[int(shared[p].argmax())]
    return {"match": found, "iou": best}


def losses(location, confidence, priors, ground_truth, match, *, coding, scaled, smooth, softmax,
           background, agnostic, bounded, matched_only):  # fmt: skip
    items, count, classes = confidence.shape
    boxes, scores = np.zeros((items, count)), np.zeros((items, count))
    for n, p in np.ndindex(items, count):
        x, targets, wrong = confidence[n, p], np.zeros(classes), False
        for k in range(match.shape[1]):
            if match[n, k, p] < 0:
                continue
            row = ground_truth[int(match[n, k, p])]
            prior, variance = priors[:, p]
            label = int(row[1])
            code = location[n, p, label if location.shape[2] > 1 else 0]
            error = code * variance if scaled else code
            error = (error - encode(row[3:7], prior, coding)) / variance
            if bounded:
                place = prior
                if bounded == "decoded":
                    place = decode(code, prior, variance, coding, scaled)
                error = np.where((place < 0) | (place > 1), 0, error)
            size = np.abs(error)
            linear = smooth & (size >= 1)
            boxes[n, p] += np.where(linear, size - 0.5, error * error / 2).sum()
            label = background + 1 if agnostic else label
            wrong |= not 0 <= label < classes
            if not wrong:
                targets = targets * (not softmax)
                targets[label] = 1
        if not targets.any() and not wrong and not matched_only:
            targets[background] = 1
        if softmax:
            scores[n, p] = (targets * (np.log(np.exp(x - x.max()).sum()) + x.max() - x)).sum()
        else:
            scores[n, p] = (np.log1p(np.exp(x)) - x * targets).sum()
        if wrong:
            scores[n, p] = np.nan
    return {"location_loss": boxes, "confidence_loss": scores}


def mine(loss, match, iou, boxes, *, hard, ratio, most_overlap, size, threshold, top_k):
    negative, after = np.zeros(loss.shape), match.copy()
    for n in range(len(loss)):
        eligible = [
            p for p in range(loss.shape[1])
            if hard or (match[n, p] == -1 and iou[n, p] < most_overlap)
        ]  # fmt: skip
        order = sorted(eligible, key=lambda p: -loss[n, p])
        if hard and boxes is not None:
            own = boxes[n % len(boxes)]
            order = [p for p in order[: top_k if top_k >= 0 else None] if area(own[p]) >= 1e-5]
            order = nms(own, order, threshold, 1.0)
        chosen = order[: size if hard else int((match[n] > -1).sum() * ratio)]
        for p in range(loss.shape[1]):
            negative[n, p] = p in chosen and match[n, p] == -1
            if hard and match[n, p] > -1 and p not in chosen:
                after[n, p] = -1
    return {"negative": negative, "match": after}


def nms(boxes, order, threshold, eta):
    kept = []
    for p in order:
        if all(overlap(boxes[p], boxes[q]) <= threshold for q in kept):
            kept.append(p)
            threshold *= eta if eta < 1 and threshold > 0.5 else 1
    return kept


def detect(boxes, confidence, *, rows, background, least, threshold, eta, top_k, keep):
    items, count, classes = confidence.shape
    found = []
    for n in range(items):
        own = []
        for c in range(classes):
            scores = confidence[n, :, c]
            eligible = [p for p in range(count) if least is None or scores[p] > least]
            order = sorted(eligible, key=lambda p, s=scores: -s[p])[: top_k if top_k >= 0 else None]
            places = boxes[n, :, c if boxes.shape[2] > 1 else 0]
            if c != background:
                own += [[n, c, scores[p], *places[p]] for p in nms(places, order, threshold, eta)]
        if keep >= 0:
            best = sorted(range(len(own)), key=lambda i, own=own: -own[i][2])[:keep]
            own = [own[i] for i in sorted(best)]
        found += own
    found = found or [[n, *[-1] * 6] for n in range(items)]
    y = np.full((rows, 7), -1.0)
    y[: len(found)] = found
    return {"y": y, "length": np.array([len(found)])}


def evaluate(found, ground_truth, *, classes, background, threshold, difficult):
    labels = [c for c in range(classes) if c != background]
    known = [row for row in ground_truth if row[0] != -1]
    rows = [
        [-1, c, sum(row[1] == c and (difficult or not row[7]) for row in known), -1, -1]
        for c in labels
    ]
    valid = [row for row in found if row[0] != -1 and row[1] != -1]
    for image, label in sorted({(row[0], row[1]) for row in valid}):
        mine = [row for row in valid if (row[0], row[1]) == (image, label)]
        goals = [row for row in known if (row[0], row[1]) == (image, label)]
        hit = set()
        for row in sorted(mine, key=lambda row: -row[2]) if goals else mine:
            shared = [overlap(row[3:7], goal[3:7]) for goal in goals]
            best = int(np.argmax(shared)) if goals else -1
            verdict = [0, 1]
            if goals and shared[best] >= threshold:
                if goals[best][7] and not difficult:
                    verdict = [0, 0]
                elif best not in hit:
                    verdict = [1, 0]
                    hit.add(best)
            rows.append([*row[:3], *verdict])
    y = np.full((len(labels) + len(found), 5), -1.0)
    y[: len(rows)] = rows
    return {"y": y, "length": np.array([len(rows)])}
