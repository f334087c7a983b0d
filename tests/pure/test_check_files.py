"""A file of weights that is missing is one finding."""

from __future__ import annotations

import numpy as np

from tenonnx import check
from tenonnx.schema.messages import ModelProto


def external_model(folder, count):
    """A model of ``count`` FLOAT[4] initializers that lie in one file."""
    (folder / "weights.bin").write_bytes(np.ones(4 * count, np.float32).tobytes())
    model = ModelProto(ir_version=10)
    model.opset_import.add(domain="", version=21)
    model.graph.name = "g"
    for number in range(count):
        tensor = model.graph.initializer.add(name=f"w{number}", data_type=1, dims=[4], data_location=1)
        for key, value in (("location", "weights.bin"), ("offset", str(16 * number)), ("length", "16")):
            tensor.external_data.add(key=key, value=value)
    model.graph.node.add(op_type="Add", input=["w0", "w1"], output=["y"])
    output = model.graph.output.add(name="y").type.tensor_type
    output.elem_type = 1
    output.shape.dim.add(dim_value=4)
    return model


def test_a_missing_file_of_many_weights_is_one_finding(tmp_path):
    model = external_model(tmp_path, 20)
    assert check(model, data_root=tmp_path) == []
    (tmp_path / "weights.bin").unlink()
    (finding,) = check(model, data_root=tmp_path)
    assert finding.rule == "external-file" and "weights.bin" in finding.where
    assert "'w0' and 19 more values" in finding.message
