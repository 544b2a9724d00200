//! Computes the ONNX operators that a provider's devices run, for its ask, and those that a model
//! uses, for its buyer.
//!
//! Both are sets of numbers, so comparing them needs no compilation. A device can still refuse a
//! node whose operator it has. The provider learns that when it compiles the model, and stores the
//! digest of that node.

use std::collections::BTreeSet;

use souk_folder::config::DeviceChoice;
use souk_folder::limits::ProviderLimits;
use souk_market::Operators;
use souk_onnx::custom::Custom;
use souk_onnx::{NodeProto, custom};
use souk_roles::market::operators::{NAMES, operator_number};
use souk_scheduler::graph::{Graph, Node};

/// Separates the inputs of a digest: no name or message can begin with it.
const SEPARATOR: &[u8] = &[0xff];

/// The operators of a model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelOperators {
    /// The operators with a number.
    pub operators: Operators,
    /// The names of those without a number, which no device runs.
    pub unknown: BTreeSet<String>,
    /// The digests of its nodes, sorted and without duplicates.
    pub nodes: Vec<u64>,
}

/// The description of a buyer's own kernel is wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("kernel {node:?} declares its outputs wrongly: {cause}")]
pub struct KernelFault {
    /// The name of the node.
    node: String,
    /// The error in its description.
    cause: String,
}

/// Returns the operators that an ask states: one of the devices runs them, and the provider's
/// limits allow them.
#[must_use]
pub fn offered_operators(devices: &DeviceChoice, limits: &ProviderLimits) -> Operators {
    let is_offered = |name: &str| {
        let node = bare_node(name);
        limits.check_operator(node.op_type()).is_ok() && can_run_node(devices, &node)
    };
    let names = NAMES.iter().enumerate();
    Operators::from_numbers(names.filter(|(_, name)| is_offered(name)).map(|(at, _)| at))
}

/// Returns the operators that a model needs.
#[must_use]
pub fn needed_operators(graph: &Graph) -> ModelOperators {
    let mut names = BTreeSet::new();
    for node in graph.nodes() {
        collect_operators(&node.proto, &mut names);
    }
    let (known, unknown): (Vec<&String>, Vec<&String>) = names
        .iter()
        .partition(|name| operator_number(name).is_some());
    let nodes: BTreeSet<u64> = graph
        .nodes()
        .iter()
        .map(|it| node_digest(graph, it))
        .collect();
    ModelOperators {
        operators: Operators::from_numbers(
            known.into_iter().filter_map(|name| operator_number(name)),
        ),
        unknown: unknown.into_iter().cloned().collect(),
        nodes: nodes.into_iter().collect(),
    }
}

/// Returns the first node that uses an operator, itself or in a body.
#[must_use]
pub fn first_with<'g>(graph: &'g Graph, operator: &str) -> Option<&'g str> {
    let has = |node: &&Node| {
        let mut names = BTreeSet::new();
        collect_operators(&node.proto, &mut names);
        names.contains(operator)
    };
    graph.nodes().iter().find(has).map(Node::name)
}

/// Returns a digest of a node that does not cover its names: the operator, the attributes, the
/// types of its inputs and the number of its outputs.
#[must_use]
pub fn node_digest(graph: &Graph, node: &Node) -> u64 {
    let mut hash = blake3::Hasher::new();
    hash.update(node.operator_name().as_bytes());
    let mut attributes: Vec<_> = node.proto.attribute.iter().collect();
    attributes.sort_by(|one, other| one.name().cmp(other.name()));
    for attribute in attributes {
        hash.update(SEPARATOR);
        hash.update(&souk_onnx::encode_attribute(attribute));
    }
    hash.update(SEPARATOR);
    for input in &node.inputs {
        let dtype = input.and_then(|value| graph.value(value).dtype());
        let code = dtype.map_or(0, souk_memory::DType::onnx_code);
        hash.update(&code.to_le_bytes());
    }
    hash.update(SEPARATOR);
    hash.update(&[u8::try_from(node.outputs.iter().flatten().count()).unwrap_or(u8::MAX)]);
    let bytes = hash.finalize().as_bytes()[..8].try_into();
    u64::from_le_bytes(bytes.expect("a digest has more bytes"))
}

/// Checks the descriptions of a model's own kernels.
///
/// # Errors
/// [`KernelFault`]: the first wrong description.
pub fn check_kernels(graph: &Graph) -> Result<(), KernelFault> {
    graph
        .nodes()
        .iter()
        .try_for_each(|it| check_node(&it.proto))
}

fn check_node(node: &NodeProto) -> Result<(), KernelFault> {
    if Custom::from_node(node).is_some() {
        let stated = custom::output_types(node).map(|_| ());
        let stated = stated.and_then(|()| custom::output_shapes(node).map(|_| ()));
        stated.map_err(|error| KernelFault {
            node: node.name().to_owned(),
            cause: error.to_string(),
        })?;
    }
    let mut inner = node.subgraphs().flat_map(|graph| &graph.node);
    inner.try_for_each(check_node)
}

/// Collects the operators of a node and its bodies. A buyer's own kernels are features instead, and
/// constants are weights.
fn collect_operators(node: &NodeProto, names: &mut BTreeSet<String>) {
    if Custom::from_node(node).is_none() && node.op_type() != "Constant" {
        names.insert(match node.operator_domain() {
            "" => node.op_type().to_owned(),
            domain => format!("{domain}.{}", node.op_type()),
        });
    }
    let inner = node.subgraphs().flat_map(|graph| &graph.node);
    inner.for_each(|node| collect_operators(node, names));
}

/// Returns a node of an operator, by its name among [`NAMES`].
fn bare_node(name: &str) -> NodeProto {
    let (domain, operator) = name.rsplit_once('.').unwrap_or(("", name));
    NodeProto {
        op_type: Some(operator.to_owned()),
        domain: Some(domain.to_owned()),
        ..NodeProto::default()
    }
}

/// Returns whether one of the devices runs an operator.
fn can_run_node(devices: &DeviceChoice, node: &NodeProto) -> bool {
    match devices {
        _ if devices.is_exact() => souk_cpu::exact::is_exact_operator(node),
        DeviceChoice::Exact { .. } => souk_cpu::exact::is_exact_operator(node),
        DeviceChoice::Cpu { .. } | DeviceChoice::Emulated { .. } => souk_cpu::has_operator(node),
        #[cfg(any(feature = "wgpu", feature = "cuda"))]
        DeviceChoice::Gpu { .. } | DeviceChoice::Cuda { .. } => souk_gpu::has_operator(node),
        // A build without these features opens no such device.
        #[cfg(not(any(feature = "wgpu", feature = "cuda")))]
        DeviceChoice::Gpu { .. } | DeviceChoice::Cuda { .. } => false,
        // ONNX Runtime has all operators of ONNX itself.
        DeviceChoice::Onnxruntime { .. } => node.operator_domain().is_empty(),
        DeviceChoice::Endpoint(_) | DeviceChoice::Serve(_) => false,
        DeviceChoice::Group(group) => group.iter().any(|device| can_run_node(device, node)),
    }
}

#[cfg(test)]
mod tests {
    use souk_onnx::schema::OperatorSchema;
    use souk_roles::market::operators::name;

    use super::*;

    const CPU: DeviceChoice = DeviceChoice::Cpu { threads: 1 };

    fn names(set: &Operators) -> Vec<&'static str> {
        set.numbers().map(name).collect()
    }

    #[test]
    fn every_operator_of_the_schema_has_a_number() {
        let domains = ["", "ai.onnx.ml.", "ai.souk."];
        let has_number = |name: &&str| {
            let mut names = domains.iter().map(|domain| format!("{domain}{name}"));
            names.any(|name| operator_number(&name).is_some())
        };
        let names = OperatorSchema::operator_names();
        let lacking: Vec<&str> = names.filter(|name| !has_number(name)).collect();
        assert!(lacking.is_empty(), "{lacking:?}");
    }

    #[cfg(feature = "wgpu")]
    #[test]
    fn a_gpu_offers_all_that_a_decoder_is_made_of() {
        let gpu = DeviceChoice::Gpu {
            name: String::new(),
            memory_mib: None,
        };
        let set = offered_operators(&gpu, &ProviderLimits::default());
        let words = "Gather RMSNormalization MatMul RotaryEmbedding TensorScatter Attention Swish \
                     Gelu Tanh Mul Add DequantizeLinear Cast Transpose Reshape ai.souk.Sample";
        let lacking: Vec<&str> = words
            .split_whitespace()
            .filter(|name| !set.has_operator(operator_number(name).unwrap()))
            .collect();
        assert!(lacking.is_empty(), "{lacking:?}");
    }

    #[test]
    fn an_ask_states_what_its_devices_run_and_its_limits_allow() {
        let all = ProviderLimits::default();
        let cpu = offered_operators(&CPU, &all);
        let has = |set: &Operators, name| set.has_operator(operator_number(name).unwrap());
        assert!(has(&cpu, "MatMul") && has(&cpu, "ai.onnx.ml.TreeEnsemble"));
        assert!(!has(&cpu, "ImageDecoder") && !has(&cpu, "ai.onnx.ml.ZipMap"));
        let runtime = DeviceChoice::Onnxruntime {
            provider: "cpu".to_owned(),
        };
        let group = DeviceChoice::Group(vec![CPU, runtime.clone()]);
        assert!(has(&offered_operators(&runtime, &all), "ImageDecoder"));
        assert!(offered_operators(&group, &all).is_superset_of(&cpu));
        let two = ProviderLimits {
            operators: vec!["MatMul".to_owned(), "Relu".to_owned()],
            ..all
        };
        assert_eq!(names(&offered_operators(&CPU, &two)), ["MatMul", "Relu"]);
        let bytes = postcard::to_allocvec(&cpu).unwrap().len();
        assert!(bytes <= 32, "{bytes} bytes in each ask");
    }
}
