"""MultiStageMeanfield, a conditional random field as a recurrent network (Zheng et al. 2015;
torrvision/caffe), and its filter: the permutohedral lattice (Adams et al. 2010).

Points are splatted on the vertices of the simplex that they lie in, values are blurred along each
of the lattice's axes, and read again where the points lie. As the fork does
(src/caffe/util/modified_permutohedral.cpp): a missing neighbour of a vertex counts as 0,
and what comes out is scaled by 1 / (1 + 2 ** -dimensions).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...errors import UserError
from ...layers.base import Arrays, Blobs, Flags, Layer, Program, Shapes, Tensor, register
from ...parsing import as_float


class Lattice:
    """A Gaussian filter of standard deviation 1 over points with these features, (points, d).

    ValueError where features are not finite, or too far apart for the codes of the vertices.
    """

    def __init__(self, features: np.ndarray) -> None:
        points, dimensions = features.shape
        origin, rank, shares = _simplices(features.astype(np.float64))
        # A unique number for each vertex, so that sorting finds equal ones.
        codes, steps = _codes(origin, rank)
        order = np.argsort(codes, axis=None, kind="stable")
        ordered = codes.reshape(-1)[order]
        is_first = np.append(True, ordered[1:] != ordered[:-1])
        self._starts = np.flatnonzero(is_first)
        self._points = order % points
        self._shares = shares
        self._splats = shares.reshape(-1)[order]
        vertices = np.empty(codes.size, np.int64)
        vertices[order] = np.cumsum(is_first) - 1
        self._vertices = vertices.reshape(codes.shape)
        unique = ordered[self._starts]
        self._neighbors = [(_find(unique, unique + s), _find(unique, unique - s)) for s in steps]
        self._scale = 1 / (1 + 2.0**-dimensions)

    def filter(self, values: np.ndarray, *, reverse: bool = False) -> np.ndarray:
        """The filtered values, (k, points) as they are. reverse: of the transposed filter."""
        kind = values.dtype.type
        splats, shares = self._splats.astype(kind), (self._shares * self._scale).astype(kind)
        # The last one stands for all the vertices that there are not.
        old, new = (np.zeros(len(self._starts) + 1, kind) for _ in range(2))
        neighbors = np.empty_like(new[:-1])
        result = np.empty_like(values)
        for row, smooth in zip(values, result, strict=True):
            parts = np.take(row, self._points)
            parts *= splats
            np.add.reduceat(parts, self._starts, out=old[:-1])
            for before, behind in self._neighbors[:: -1 if reverse else 1]:
                inner = new[:-1]
                np.take(old, before, out=inner, mode="clip")
                np.take(old, behind, out=neighbors, mode="clip")
                inner += neighbors
                inner *= kind(0.5)
                inner += old[:-1]
                old, new = new, old
            read = np.take(old, self._vertices)
            read *= shares
            np.sum(read, axis=0, out=smooth)
        return result


def _simplices(features: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of each point: the nearest vertex of remainder 0, the rank of each axis in its simplex, both
    (points, d + 1), and its barycentric coordinates, (d + 1, points)."""
    if not np.isfinite(features).all():
        raise ValueError("features are not all finite numbers")
    points, dimensions = features.shape
    around = dimensions + 1
    axes = np.arange(1, around)
    # Onto the plane where coordinates sum to 0, scaled so that all blurs have deviation 1.
    scaled = features * (np.sqrt(2 / 3) * around / np.sqrt(axes * (axes + 1)))
    elevated = np.zeros((points, around))
    elevated[:, :-1] = scaled[:, ::-1].cumsum(axis=1)[:, ::-1]
    elevated[:, 1:] -= scaled * axes
    nearest = np.rint(elevated / around)
    excess = nearest.sum(axis=1, keepdims=True).astype(np.int64)
    origin = nearest.astype(np.int64) * around
    order = np.argsort(origin - elevated, axis=1, kind="stable")
    rank = np.empty_like(order)
    np.put_along_axis(rank, order, np.broadcast_to(np.arange(around), order.shape), axis=1)
    # Back to the plane, where rounding has left it.
    rank += excess
    moved = around * ((rank < 0).astype(np.int64) - (rank >= around))
    rank += moved
    origin += moved
    sorted_gaps = np.empty_like(elevated)
    np.put_along_axis(sorted_gaps, rank, (elevated - origin) / around, axis=1)
    shares = np.empty((around, points))
    shares[0] = 1 + sorted_gaps[:, -1] - sorted_gaps[:, 0]
    shares[1:] = (sorted_gaps[:, :-1] - sorted_gaps[:, 1:]).T[::-1]
    return origin, rank, shares


def _codes(origin: np.ndarray, rank: np.ndarray) -> tuple[np.ndarray, list[int]]:
    """A number for each vertex of each point, (d + 1, points), and how far apart the numbers of
    neighbours are along each of the d + 1 axes."""
    around = origin.shape[1]
    dimensions = around - 1
    low = origin[:, :-1].min(axis=0) - 2 * around
    extents = origin[:, :-1].max(axis=0) - low + 2 * around
    strides, total = [], 1
    for extent in extents:
        strides.append(total)
        total *= int(extent)
    if total >= 2**62:
        raise ValueError("features are too far apart")
    weights = np.array(strides)
    base = (origin[:, :-1] - low) @ weights
    above = np.array([
        ((rank[:, :-1] > dimensions - remainder) @ weights) for remainder in range(around)
    ])  # fmt: skip
    codes = base + np.arange(around)[:, None] * weights.sum() - around * above
    steps = [int(around * stride - weights.sum()) for stride in (*strides, 0)]
    return codes, steps


def _find(ordered: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Where these stand in what is ordered; after its end where they do not."""
    at = np.searchsorted(ordered, values)
    present = ordered[np.minimum(at, len(ordered) - 1)] == values
    return np.where(present, at, len(ordered))


Filter = tuple[Lattice, np.ndarray]
"""A lattice, and what makes a filtered constant what it was at each point, (1, points)."""

ONE: dict[str, Any] = {"stride": (1, 1), "pad": (0, 0), "dilation": (1, 1), "group": 1}
"""The settings of a convolution that mixes channels."""


@register("MultiStageMeanfield")
class MultiStageMeanfield(Layer):
    """Mean-field iterations of a dense CRF: unaries, what to begin with, images -> unaries.

    Each one filters the probabilities by place (theta_gamma) and by place and colour (theta_alpha,
    theta_beta), mixes their channels by learned matrices, and takes that from the unaries. Filters
    are permutohedral lattices, computed on the host. The parameters begin as diagonals of
    spatial_filter_weights_str and bilateral_filter_weights_str, else of spatial_filter_weight and
    bilateral_filter_weight (the fork reads files), and of -1.
    """

    host_is_pure = True
    bottoms = (3, 3)
    no_gradient = (2,)

    def setup(self, bottom: Shapes) -> Shapes:
        param, (unary, _, image) = self.param.multi_stage_meanfield_param, bottom
        self.check_axes(unary, field="bottom[0]")
        self.check_alike(bottom[:2])
        self.check_axes(image, field="bottom[2]")
        self.check_bottom(bottom, 2, (unary[0], image[1], *unary[2:]), ", of the size of bottom[0]")
        for field in ("theta_alpha", "theta_beta", "theta_gamma", "num_iterations"):
            if not getattr(param, field) > 0:
                self.fail(f"multi_stage_meanfield_param.{field}", "must be above 0")
        channels = unary[1]
        self.initial = [
            (self.add_parameter((1, 1, channels, channels)).data, np.diag(diagonal)[None, None])
            for diagonal in (
                self._diagonal("spatial", channels),
                self._diagonal("bilateral", channels),
                np.full(channels, -1.0),
            )
        ]
        rows, columns = np.indices(unary[2:]).reshape(2, -1)
        self.coordinates = np.stack([columns, rows], axis=1)
        self.spatial = self._filter(self.coordinates / param.theta_gamma)
        return [unary]

    def _diagonal(self, kind: str, channels: int) -> np.ndarray:
        """What the weights of a filter begin with."""
        param = self.param.multi_stage_meanfield_param
        field = f"{kind}_filter_weights_str"
        words = getattr(param, field).split()
        if not words:
            return np.full(channels, getattr(param, f"{kind}_filter_weight"))
        with self.blame(f"multi_stage_meanfield_param.{field}"):
            try:
                values = np.array([as_float(word) for word in words[:channels]])
            except ValueError as error:
                raise UserError(str(error)) from None
            if len(values) < channels:
                raise UserError(f"has {len(values)} numbers, but there are {channels} channels")
        return values

    def _filter(self, features: np.ndarray) -> Filter:
        try:
            lattice = Lattice(features)
        except ValueError as error:
            self.fail("multi_stage_meanfield_param", f"places and colours over theta: {error}")
        return lattice, 1 / (lattice.filter(np.ones((1, len(features)))) + 1e-20)

    # -- what is recorded ------------------------------------------------------------------------

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        unary, begin, image = (blob.data for blob in bottom)
        shape = top[0].shape
        # Who filters reads this, so that the lattices are there by then.
        self.ready = self.tensor((1,))
        program.host([image], [self.ready], function=self._look)
        self.steps = []
        for number in range(self.param.multi_stage_meanfield_param.num_iterations):
            last = number + 1 == self.param.multi_stage_meanfield_param.num_iterations
            probability, *filtered, message, one, pairwise = (self.tensor(shape) for _ in range(6))
            program.softmax(begin, probability, axis=1)
            program.host([probability, self.ready], filtered, function=self._smooth)
            self._mix(program, filtered[0], 0, message)
            self._mix(program, filtered[1], 1, one)
            program.sum([message, one], message)
            self._mix(program, message, 2, pairwise)
            self.steps.append((probability, filtered, message))
            begin = top[0].data if last else self.tensor(shape)
            program.elementwise([unary, pairwise], [begin], formula="y = a - b")

    def backward(self, program: Program, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        shape = top[0].shape
        diffs = [top[0].diff]
        for number, (probability, filtered, message) in reversed(list(enumerate(self.steps))):
            dpairwise, dmessage = self.tensor(shape), self.tensor(shape)
            program.elementwise([diffs[-1]], [dpairwise], formula="y = -a")
            self._learn(program, message, 2, dpairwise)
            self._mix_backward(program, dpairwise, 2, dmessage)
            dfiltered = [self.tensor(shape) for _ in filtered]
            for i, (x, dy) in enumerate(zip(filtered, dfiltered, strict=True)):
                self._learn(program, x, i, dmessage)
                self._mix_backward(program, dmessage, i, dy)
            if number or propagate_down[1]:
                dprobability = self.tensor(shape)
                program.host(
                    [*dfiltered, self.ready], [dprobability], function=self._smooth_backward
                )
                diffs.append(self.tensor(shape) if number else bottom[1].diff)
                program.softmax_backward(probability, dprobability, diffs[-1], axis=1)
        if propagate_down[0]:
            program.sum(diffs[: len(self.steps)], bottom[0].diff)

    def _matrix(self, tensor: Tensor) -> Tensor:
        """A parameter as the filters of a convolution."""
        return tensor.view((*tensor.shape[2:], 1, 1))

    def _mix(self, program: Program, x: Tensor, parameter: int, y: Tensor) -> None:
        program.convolution(x, self._matrix(self.parameters[parameter].data), None, y, **ONE)

    def _mix_backward(self, program: Program, dy: Tensor, parameter: int, dx: Tensor) -> None:
        weight = self._matrix(self.parameters[parameter].data)
        program.convolution_backward_data(dy, weight, dx, **ONE)

    def _learn(self, program: Program, x: Tensor, parameter: int, dy: Tensor) -> None:
        gradient = self.gradient(parameter)
        if gradient is not None:
            program.convolution_backward_filter(x, dy, self._matrix(gradient), None, **ONE)

    # -- what runs on the host -------------------------------------------------------------------

    def _look(self, reads: Arrays, writes: Arrays) -> None:
        """Build the filters of the images."""
        param = self.param.multi_stage_meanfield_param
        self.bilateral = []
        for image in reads[0]:
            colours = image.reshape(len(image), -1).T.astype(np.float64) / param.theta_beta
            features = np.concatenate([self.coordinates / param.theta_alpha, colours], axis=1)
            self.bilateral.append(self._filter(features))
        writes[0].fill(1)

    def _smooth(self, reads: Arrays, writes: Arrays) -> None:
        for item, image in enumerate(reads[0]):
            values = image.reshape(len(image), -1)
            for (lattice, factor), result in zip(self._filters(item), writes, strict=True):
                result[item] = (lattice.filter(values) * factor).reshape(image.shape)

    def _smooth_backward(self, reads: Arrays, writes: Arrays) -> None:
        for item, result in enumerate(writes[0]):
            result.fill(0)
            for (lattice, factor), image in zip(self._filters(item), reads[:2], strict=True):
                values = image[item].reshape(len(result), -1) * factor
                result += lattice.filter(values, reverse=True).reshape(result.shape)

    def _filters(self, item: int) -> tuple[Filter, Filter]:
        return self.spatial, self.bilateral[item]
