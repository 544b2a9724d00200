//! Refuses, before a model is loaded, the operators that ONNX Runtime computes differently from
//! ONNX's definition, and those that would fail only during a run. The ONNX project's operator
//! tests revealed these operators. The submodule adds the operators that only OpenVINO's provider
//! gets wrong.

mod openvino;

use souk_memory::DType;
use souk_onnx::NodeProto;
use souk_onnx::graph::Graph;
use souk_onnx::schema::is_drawn;
use souk_onnx::subgraph::{CompileError, Unsupported, UnsupportedReason};

use super::Provider;

/// Checks that an operator is one of ONNX's own, whose meaning is known.
pub(super) fn check_operator(node: &NodeProto) -> Result<(), Unsupported> {
    if node.operator_domain().is_empty() {
        return Ok(());
    }
    Err(Unsupported::new(node, UnsupportedReason::Operator))
}

/// Refuses a graph with a node that ONNX Runtime fails on, or computes wrongly on this provider.
pub(super) fn check_graph(graph: &Graph, provider: &Provider) -> Result<(), CompileError> {
    for node in graph.nodes() {
        check_operator(node)?;
        if let Err(reason) = check_node(node, graph) {
            return Err(Unsupported::new(node, reason).into());
        }
        if provider.is_host() && !multiplies_bytes_exactly() && mixes_bytes(node, graph) {
            let why = "ONNX Runtime loses digits of u8 by i8 on a CPU without VNNI";
            let reason = UnsupportedReason::Engine(why.to_owned());
            return Err(Unsupported::new(node, reason).into());
        }
        let of_provider = provider
            .is_openvino()
            .then(|| openvino::find_fault(node, graph));
        if let Some(fault) = of_provider.flatten() {
            let reason = UnsupportedReason::Engine(fault.to_owned());
            return Err(Unsupported::new(node, reason).into());
        }
    }
    Ok(())
}

fn check_node(node: &NodeProto, graph: &Graph) -> Result<(), UnsupportedReason> {
    let refused = |why: &str| Err(UnsupportedReason::Engine(why.to_owned()));
    let has_input = |index| node.input_name(index).is_some();
    let has_output = |index: usize| node.output.get(index).is_some_and(|name| !name.is_empty());
    let dtype = |index| graph.dtypes.get(node.input_name(index)?).copied();
    match node.op_type() {
        // Its scores do not include the mask, and it rejects lengths of padded keys during the run.
        "Attention" if has_output(3) || has_input(6) => {
            refused("ONNX Runtime gets the scores and the padding of attention wrong")
        }
        "ConvInteger"
            if node
                .ints("pads")
                .is_some_and(|pads| pads.iter().any(|&pad| pad != 0)) =>
        {
            refused("ONNX Runtime fails integer convolutions with padding")
        }
        "DFT" => refused("ONNX Runtime's transform is less exact than ONNX asks for"),
        "MaxUnpool" if has_input(2) => {
            refused("ONNX Runtime misplaces values when it is given a size")
        }
        "ReduceMax" | "ReduceMin" if dtype(0) == Some(DType::Bool) => {
            Err(UnsupportedReason::DType(DType::Bool))
        }
        "Resize" if node.string("coordinate_transformation_mode") == Some("align_corners") => {
            refused("ONNX Runtime aligns corners by another size")
        }
        "Dropout" if is_training_dropout(node, graph) => {
            refused("what it drops is drawn at random")
        }
        operator if is_drawn(operator) => refused("its result is drawn at random"),
        _ => Ok(()),
    }
}

/// Returns whether the library's own kernels multiply u8 by i8 exactly on this CPU. Without an
/// instruction for it they add two products in 16 bits, which cannot hold large ones.
pub(super) fn multiplies_bytes_exactly() -> bool {
    #[cfg(target_arch = "x86_64")]
    return is_x86_feature_detected!("avx512vnni") || is_x86_feature_detected!("avxvnni");
    #[cfg(not(target_arch = "x86_64"))]
    true
}

/// Returns whether a node multiplies u8 by i8.
fn mixes_bytes(node: &NodeProto, graph: &Graph) -> bool {
    let second = match node.op_type() {
        "MatMulInteger" | "ConvInteger" => 1,
        "QLinearMatMul" | "QLinearConv" => 3,
        _ => return false,
    };
    let dtype = |index| graph.dtypes.get(node.input_name(index)?).copied();
    dtype(0) == Some(DType::U8) && dtype(second) == Some(DType::I8)
}

/// Returns whether a dropout drops elements, or can do so in a run.
fn is_training_dropout(node: &NodeProto, graph: &Graph) -> bool {
    node.input_name(2).is_some_and(|name| {
        let flag = graph.weights.get(name);
        flag.is_none_or(|flag| flag.bytes().iter().any(|&byte| byte != 0))
    })
}
