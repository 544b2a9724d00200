//! Lists the operators that OpenVINO's provider computes wrongly or cannot run, so that souk
//! refuses them there, in addition to those that it refuses for all providers. The operator tests
//! and later investigations found them (onnxruntime-openvino 1.24.1). You should run those tests on
//! a newer version before you remove a rule.

use souk_memory::DType;
use souk_onnx::NodeProto;
use souk_onnx::graph::Graph;

/// Returns why a node would go wrong; `None` if no fault is known.
pub(super) fn find_fault(node: &NodeProto, graph: &Graph) -> Option<&'static str> {
    let operator = node.op_type();
    find_window_fault(node, operator)
        .or_else(|| find_shape_fault(node, operator, graph))
        .or_else(|| find_value_fault(node, operator, graph))
}

/// Finds faults in pooling, resizing and recurrence, whose attributes OpenVINO interprets
/// differently.
fn find_window_fault(node: &NodeProto, operator: &str) -> Option<&'static str> {
    let is_set = |name| node.int(name).unwrap_or(0) != 0;
    match operator {
        "AveragePool" | "MaxPool" | "LpPool" if is_set("ceil_mode") => {
            Some("OpenVINO gives a last window that begins in the padding")
        }
        "Resize" => {
            let policy = node.string("keep_aspect_ratio_policy");
            let stretched = policy.is_none_or(|policy| policy == "stretch");
            (!stretched).then_some("OpenVINO does not keep the ratio of the sides")
        }
        "RNN" | "GRU" | "LSTM" if is_set("layout") => {
            Some("OpenVINO takes batches that come first for steps")
        }
        _ => None,
    }
}

/// Finds faults with shapes that only a run can determine, and with empty tensors.
fn find_shape_fault(node: &NodeProto, operator: &str, graph: &Graph) -> Option<&'static str> {
    let held = |index| {
        let name = node.input_name(index);
        name.is_none_or(|name| graph.weights.contains_key(name))
    };
    match operator {
        "CenterCropPad" => Some("OpenVINO crops to nothing"),
        "Pad" if !held(1) => Some("OpenVINO pads to nothing by amounts that come in the run"),
        "Tile" if !held(1) => Some("OpenVINO leaves tiles unset whose count comes in the run"),
        "Split" if !held(1) => Some("OpenVINO fails on parts that turn out to be empty"),
        "Split" if has_zero(node, graph) => Some("OpenVINO fails on parts that are empty"),
        "Shape" | "Size" if is_all_that_reads(node, graph) => {
            Some("OpenVINO reads other inputs in place of one that only its shape is wanted of")
        }
        _ => None,
    }
}

/// Finds operators whose values OpenVINO computes differently.
fn find_value_fault(node: &NodeProto, operator: &str, graph: &Graph) -> Option<&'static str> {
    let dtype = |index| graph.dtypes.get(node.input_name(index)?).copied();
    let given = node.input.iter().filter(|name| !name.is_empty()).count();
    match operator {
        "Max" | "Min" | "Sum" | "Mean" if given == 1 => {
            Some("OpenVINO gives memory that nothing was written to")
        }
        "ReduceMax" if dtype(0).is_some_and(DType::is_float) => {
            Some("OpenVINO takes negative infinity for the least number")
        }
        "ReduceLogSumExp" => Some("OpenVINO gives infinity for what is no number"),
        "DynamicQuantizeLinear" | "QuantizeLinear" => {
            Some("OpenVINO multiplies by the inverse of the scale, which rounds otherwise")
        }
        "LpNormalization" => Some("OpenVINO divides by a length of zero"),
        "NonMaxSuppression" => Some("OpenVINO drops boxes that overlap by just the threshold"),
        _ => None,
    }
}

/// Returns whether a part of a split is empty according to the model.
fn has_zero(node: &NodeProto, graph: &Graph) -> bool {
    let stated = node.ints("split").unwrap_or(&[]).contains(&0);
    let weight = node.input_name(1).and_then(|name| graph.weights.get(name));
    let sizes = weight.and_then(|sizes| sizes.to_vec::<i64>().ok());
    stated || sizes.is_some_and(|sizes| sizes.contains(&0))
}

/// Returns whether nodes read only the shape of a model's input, not its values.
fn is_all_that_reads(node: &NodeProto, graph: &Graph) -> bool {
    let Some(name) = node.input_name(0) else {
        return false;
    };
    let asks = |node: &NodeProto| matches!(node.op_type(), "Shape" | "Size");
    let reads = |node: &NodeProto| node.input.iter().any(|input| input == name);
    let mut others = graph.nodes().iter().filter(|other| !asks(other));
    graph.inputs.iter().any(|port| port.name == name) && !others.any(reads)
}
