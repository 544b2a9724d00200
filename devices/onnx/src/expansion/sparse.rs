//! Replaces sparse constants, which list only some values and their indices, with nodes that build
//! the whole tensor: zeros, with the values at their indices. The module does not build the tensor
//! itself, because a small file can declare a huge one; as nodes, it costs memory only in a run,
//! whose memory souk plans.

use souk_memory::DType;

use super::string_table::encode_vector;
use crate::{GraphProto, NodeProto, SparseTensorProto, TensorProto};

/// Replaces the sparse constants of a graph, and of those within it, with dense values.
pub(super) fn resolve_sparse(graph: &mut GraphProto) {
    let mut nodes = Vec::with_capacity(graph.node.len());
    let mut held = Vec::new();
    for sparse in std::mem::take(&mut graph.sparse_initializer) {
        let name = sparse.values.as_ref().map_or("", TensorProto::name);
        let name = name.to_owned();
        match dense_nodes(&name, &sparse, &mut held) {
            Some(written) => nodes.extend(written),
            None => graph.sparse_initializer.push(sparse),
        }
    }
    for mut node in std::mem::take(&mut graph.node) {
        for attribute in &mut node.attribute {
            let bodies = attribute.g.iter_mut().chain(&mut attribute.graphs);
            bodies.for_each(resolve_sparse);
        }
        match sparse_constant(&node).and_then(|(name, sparse)| dense_nodes(name, sparse, &mut held))
        {
            Some(written) => nodes.extend(written),
            None => nodes.push(node),
        }
    }
    graph.node = nodes;
    graph.initializer.extend(held);
}

/// Returns the name and value of a node that is a sparse constant.
fn sparse_constant(node: &NodeProto) -> Option<(&str, &SparseTensorProto)> {
    if node.op_type() != "Constant" || !node.operator_domain().is_empty() {
        return None;
    }
    let sparse = node.attribute("sparse_value")?.sparse_tensor.as_deref()?;
    Some((node.output.first()?, sparse))
}

/// Returns the nodes that make a sparse tensor, and adds the constants that they read to `held`;
/// returns `None` if the tensor is malformed.
fn dense_nodes(
    name: &str,
    sparse: &SparseTensorProto,
    held: &mut Vec<TensorProto>,
) -> Option<Vec<NodeProto>> {
    let (values, indices) = (sparse.values.as_ref()?, sparse.indices.as_ref()?);
    let dtype = DType::from_onnx_code(values.data_type()).ok()?;
    let count = sparse
        .dims
        .iter()
        .try_fold(1i64, |all, dim| all.checked_mul(*dim))?;
    // Indices are per dimension, or into the flattened tensor.
    let is_flat = indices.dims.len() < 2;
    let extents = if is_flat {
        vec![count]
    } else {
        sparse.dims.clone()
    };
    let of = |what: &str| format!("{name}/{what}");
    held.push(TensorProto {
        name: Some(of("values")),
        ..values.clone()
    });
    let stated = *indices.dims.first().unwrap_or(&1);
    held.push(TensorProto {
        name: Some(of("indices")),
        dims: if is_flat {
            vec![stated, 1]
        } else {
            indices.dims.clone()
        },
        ..indices.clone()
    });
    held.push(encode_vector(&of("extents"), extents));
    held.push(encode_vector(&of("shape"), sparse.dims.clone()));
    let zero = TensorProto {
        dims: vec![1],
        data_type: Some(dtype.onnx_code()),
        raw_data: Some(vec![0; dtype.byte_width()?].into()),
        ..TensorProto::default()
    };
    let zeros = NodeProto::for_operator("ConstantOfShape", &[&of("extents")], &of("zeros"));
    let scattered = [of("zeros"), of("indices"), of("values")];
    let scattered = scattered.each_ref().map(String::as_str);
    Some(vec![
        zeros.with("value", zero),
        NodeProto::for_operator("ScatterND", &scattered, &of("scattered")),
        NodeProto::for_operator("Reshape", &[&of("scattered"), &of("shape")], name),
    ])
}
