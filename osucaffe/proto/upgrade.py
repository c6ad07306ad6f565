"""The upgrade of nets and solvers in older forms: pure functions, message to message.

V0 nets (layers { layer { type: "conv" … } }) become V1 nets (layers { type: CONVOLUTION … }) in
upgrade_v0.py; here V1 nets become today's (layer { type: "Convolution" … }).
"""

from __future__ import annotations

from typing import Any

from google.protobuf.message import Message

from ..errors import UserError
from .caffe_pb2 import LayerParameter, NetParameter, SolverParameter, V1LayerParameter
from .upgrade_v0 import is_v0, upgrade_v0

_V1_TYPES = """
    AbsVal Accuracy ArgMax BNLL Concat ContrastiveLoss Convolution Data Deconvolution Dropout
    DummyData EuclideanLoss Eltwise Exp Flatten HDF5Data HDF5Output HingeLoss Im2col ImageData
    InfogainLoss InnerProduct LRN MemoryData MultinomialLogisticLoss MVN Pooling Power ReLU Sigmoid
    SigmoidCrossEntropyLoss Silence Softmax Split Slice TanH WindowData Threshold
"""
_V1_TYPES_OF_FORKS = """
    BN Convolution3D Crop Deconvolution3D MultiStageMeanfield Normalize Pooling3D ReLU6 ROIPooling
    VideoData
"""
# V1 names are the same letters: SIGMOID_CROSS_ENTROPY_LOSS.
_TYPES = {name.lower(): name for name in (_V1_TYPES + _V1_TYPES_OF_FORKS).split()}
_TYPES |= {"none": "", "softmaxloss": "SoftmaxWithLoss"}
_SOLVER_TYPES = ("SGD", "Nesterov", "AdaGrad", "RMSProp", "AdaDelta", "Adam")
"""By the numbers that they had."""
# Where V1 keeps lists, one entry a parameter of the layer, there is now a list of ParamSpec.
_PARAM_SPEC_FIELDS = {
    "param": "name",
    "blob_share_mode": "share_mode",
    "blobs_lr": "lr_mult",
    "weight_decay": "decay_mult",
}
_TRANSFORM_FIELDS = ("scale", "mean_file", "crop_size", "mirror")


def upgrade_net(net: NetParameter) -> NetParameter:
    """The net in today's form: V0 and V1 layers, input fields and old BatchNorms replaced.

    Raises UserError, without the name of a file, when the old form makes no sense.
    """
    upgraded = upgrade_v0(net) if is_v0(net) else NetParameter()
    if not is_v0(net):
        upgraded.CopyFrom(net)
    _upgrade_v1(upgraded)
    _inputs_to_layer(upgraded)
    _fix_batch_norm_statistics(upgraded)
    _name_auto_crops(upgraded)
    return upgraded


def upgrade_solver(solver: SolverParameter) -> SolverParameter:
    """The solver with its type as a string and the nets that it contains upgraded.

    Raises UserError when both forms of the type are given.
    """
    upgraded = SolverParameter()
    upgraded.CopyFrom(solver)
    if upgraded.HasField("solver_type"):
        if upgraded.HasField("type"):
            raise UserError('both solver_type and type are given: keep type (a string, as "SGD")')
        upgraded.type = _SOLVER_TYPES[upgraded.solver_type]
        upgraded.ClearField("solver_type")
    for field in ("net_param", "train_net_param"):
        if upgraded.HasField(field):
            getattr(upgraded, field).CopyFrom(upgrade_net(getattr(upgraded, field)))
    for net in upgraded.test_net_param:
        net.CopyFrom(upgrade_net(net))
    return upgraded


def _upgrade_v1(net: NetParameter) -> None:
    if not net.layers:
        return
    if net.layer:
        raise UserError('the net has both "layer" and old "layers" fields: use one form for all')
    for old in net.layers:
        _upgrade_v1_layer(old, net.layer.add())
    net.ClearField("layers")


def _upgrade_v1_layer(old: V1LayerParameter, new: LayerParameter) -> None:
    for field, value in old.ListFields():
        if field.name == "type":
            name = V1LayerParameter.LayerType.Name(value)
            new.type = _TYPES[name.replace("_", "").lower()]
            if new.type == "Crop":  # V1 knew the FCN branch's alone
                new.crop_param.align = True
        elif field.name in _PARAM_SPEC_FIELDS:
            for i, entry in enumerate(value):
                spec = new.param[i] if i < len(new.param) else new.param.add()
                setattr(spec, _PARAM_SPEC_FIELDS[field.name], entry)
        else:
            _copy_field(new, field.name, value)
    for kind in ("data", "image_data", "window_data"):
        if old.type == V1LayerParameter.LayerType.Value(kind.upper()):
            _move_transform(getattr(new, f"{kind}_param"), new)


def _copy_field(message: Message, name: str, value: Any) -> None:
    """Set a field to a value of any kind: a scalar, a message, or a list of either."""
    target = getattr(message, name)
    if isinstance(target, Message):
        target.CopyFrom(value)
    elif hasattr(target, "MergeFrom"):
        target.MergeFrom(value)
    else:
        setattr(message, name, value)


def _move_transform(source: Message, layer: LayerParameter) -> None:
    """Scale, mean, crop and mirror were fields of each kind of data layer."""
    for field in _TRANSFORM_FIELDS:
        if source.HasField(field):
            setattr(layer.transform_param, field, getattr(source, field))
            source.ClearField(field)


def _inputs_to_layer(net: NetParameter) -> None:
    """One Input layer, the first, in place of the net's input fields."""
    shapes = [list(shape.dim) for shape in net.input_shape]
    if not shapes:
        shapes = [list(net.input_dim[i : i + 4]) for i in range(0, len(net.input_dim), 4)]
    if net.input and shapes:
        if len(shapes) != len(net.input) or len(net.input_dim) % 4:
            raise UserError(
                f"the net has {len(net.input)} input and shapes for {len(shapes)}: give one "
                "input_shape, or four input_dim, for each input"
            )
        layer = LayerParameter(name="input", type="Input", top=net.input)
        for shape in shapes:
            layer.input_param.shape.add(dim=shape)
        layers = [layer, *net.layer]
        net.ClearField("layer")
        net.layer.extend(layers)
    for field in ("input", "input_shape", "input_dim"):
        net.ClearField(field)


def _name_auto_crops(net: NetParameter) -> None:
    """RCF's AutoCrop, and that of other descendants of the FCN branch, is the Crop of that."""
    for layer in net.layer:
        if layer.type == "AutoCrop":
            layer.type = "Crop"
            layer.crop_param.align = True


def _fix_batch_norm_statistics(net: NetParameter) -> None:
    """Old nets gave the three statistics of a BatchNorm, which are not learned, multipliers."""
    for layer in net.layer:
        if layer.type == "BatchNorm" and len(layer.param) == 3:
            for spec in layer.param:
                spec.lr_mult = 0
                spec.decay_mult = 0
