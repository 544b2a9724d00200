"""Write the operator tests of the ONNX project as plain files, for `souk bench conformance`.

    python3 -m venv v && v/bin/pip install onnx==1.23.2
    v/bin/python devices/compare/cases.py cases
    souk bench conformance cases --backend cpu

Each case is a folder: model.onnx; meta.json with its tolerances and, for inputs and outputs, name,
element type and shape of each; and ins_<i>.bin and outs_<i>.bin, their elements little-endian in C
order, those of fewer than 8 bits packed as in ONNX, low bits first. Texts are lists in ins_<i>.json
and outs_<i>.json. Left out are cases with sequences or optionals, and with operators of other domains than ONNX's own.
"""
import json
import pathlib
import sys

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.case.node import collect_testcases

KINDS = ("ins", "outs")


def tensor(value):
    if isinstance(value, onnx.TensorProto):
        return value
    return numpy_helper.from_array(np.asarray(value))


def is_plain(case):
    values = [value for inputs, outputs in case.data_sets for value in (*inputs, *outputs)]
    domains = {opset.domain for opset in case.model.opset_import}
    tensors = all(isinstance(it, (np.ndarray, np.generic, onnx.TensorProto)) for it in values)
    return tensors and domains <= {"", "ai.onnx"}


def raw(proto):
    """A tensor's bytes."""
    if not proto.HasField("raw_data"):
        proto = numpy_helper.from_array(numpy_helper.to_array(proto))
    return proto.raw_data


def write(case, folder):
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(case.model, folder / "model.onnx")
    meta = {"rtol": case.rtol, "atol": case.atol}
    ports = (case.model.graph.input, case.model.graph.output)
    for kind, values, named in zip(KINDS, case.data_sets[0], ports):
        meta[kind] = []
        for index, (port, value) in enumerate(zip(named, values)):
            proto = tensor(value)
            dtype = onnx.helper.tensor_dtype_to_np_dtype(proto.data_type)
            meta[kind].append([port.name, str(dtype), list(proto.dims)])
            if proto.data_type == onnx.TensorProto.STRING:
                texts = [it.decode() for it in proto.string_data]
                (folder / f"{kind}_{index}.json").write_text(json.dumps(texts))
            else:
                (folder / f"{kind}_{index}.bin").write_bytes(raw(proto))
    (folder / "meta.json").write_text(json.dumps(meta))


def main():
    target = pathlib.Path(sys.argv[1])
    cases = [case for case in collect_testcases(None) if is_plain(case)]
    for case in cases:
        write(case, target / case.name)
    print(f"{len(cases)} cases in {target}")


if __name__ == "__main__":
    main()
