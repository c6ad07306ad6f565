"""Python layers that the tests name in prototxts."""

from __future__ import annotations

import numpy as np

import osucaffe.pycaffe as caffe


class TimesTen(caffe.Layer):
    def setup(self, bottom, top):
        self.set_up = getattr(self, "set_up", 0) + 1

    def reshape(self, bottom, top):
        top[0].reshape(*bottom[0].data.shape)

    def forward(self, bottom, top):
        top[0].data[...] = 10 * bottom[0].data

    def backward(self, top, propagate_down, bottom):
        assert propagate_down == [True]
        bottom[0].diff[...] = 10 * top[0].diff


class Times(TimesTen):
    def setup(self, bottom, top):
        try:
            self.factor = float(self.param_str)
        except ValueError:
            raise ValueError("param_str must be a number") from None

    def forward(self, bottom, top):
        top[0].data[...] = self.factor * bottom[0].data

    def backward(self, top, propagate_down, bottom):
        bottom[0].diff[...] = self.factor * top[0].diff


class Raises(TimesTen):
    def setup(self, bottom, top):
        raise RuntimeError("no")


class RaisesOnce(TimesTen):
    failed = False

    def forward(self, bottom, top):
        if not self.failed:
            self.failed = True
            raise KeyError("once")
        super().forward(bottom, top)


class Bias(TimesTen):
    """Has a parameter, which it adds to each item."""

    def setup(self, bottom, top):
        self.blobs.add_blob(bottom[0].shape[1])
        self.blobs[0].data[...] = 3

    def forward(self, bottom, top):
        top[0].data[...] = bottom[0].data + self.blobs[0].data

    def backward(self, top, propagate_down, bottom):
        self.blobs[0].diff[...] += top[0].diff.sum(axis=0)
        if propagate_down[0]:
            bottom[0].diff[...] = top[0].diff


class Parameter(caffe.Layer):
    def setup(self, bottom, top):
        self.blobs.add_blob(1)
        self.blobs[0].data[0] = 0

    def reshape(self, bottom, top):
        top[0].reshape(10)

    def forward(self, bottom, top):
        pass

    def backward(self, top, propagate_down, bottom):
        self.blobs[0].diff[0] = 1


class Phase(caffe.Layer):
    def reshape(self, bottom, top):
        top[0].reshape()

    def forward(self, bottom, top):
        top[0].data[()] = self.phase


class Scripted(TimesTen):
    """Reads what py-faster-rcnn's Caffe calls otherwise than BVLC's."""

    def setup(self, bottom, top):
        self.read = self.param_str_, str(self.phase), self.phase == 1


class Empty(caffe.Layer):
    """Has a top without elements, and one whose shape `forward` finds."""

    def reshape(self, bottom, top):
        top[0].reshape(0, 4)
        top[1].reshape(1)

    def forward(self, bottom, top):
        assert top[0].data.shape == (0, 4)
        top[1].reshape(int(bottom[0].data.flat[0]))

    def backward(self, top, propagate_down, bottom):
        bottom[0].diff[...] = 1


class Growing(caffe.Layer):
    """Data of another size each time, which `reshape` settles."""

    count = 0

    def reshape(self, bottom, top):
        self.count += 1
        top[0].reshape(self.count, 3)
        top[1].reshape(self.count)

    def forward(self, bottom, top):
        top[0].data[...] = self.count
        top[1].data[...] = 0


class Positive(caffe.Layer):
    """Those items whose first value is positive: only `forward` knows how many."""

    def reshape(self, bottom, top):
        top[0].reshape(1, *bottom[0].shape[1:])

    def forward(self, bottom, top):
        found = bottom[0].data[bottom[0].data[:, 0] > 0]
        top[0].reshape(*found.shape)
        top[0].data[...] = found


class Loss(caffe.Layer):
    """The mean of half the squared distances."""

    def reshape(self, bottom, top):
        top[0].reshape(1)

    def forward(self, bottom, top):
        self.difference = bottom[0].data - bottom[1].data
        top[0].data[...] = np.sum(self.difference**2) / bottom[0].num / 2

    def backward(self, top, propagate_down, bottom):
        for index, sign in ((0, 1), (1, -1)):
            if propagate_down[index]:
                scale = sign * top[0].diff[0] / bottom[index].num
                bottom[index].diff[...] = scale * self.difference


class NoGradient(TimesTen):
    """As those of py-faster-rcnn that find targets."""

    def backward(self, top, propagate_down, bottom):
        pass


class NoLayer:
    pass
