//! Differentiates matrix products (`MatMul` and `Gemm`).

use souk_onnx::NodeProto;

use super::Gradients;
use crate::gradient::node_view::NodeView;
use crate::gradient::writer::Writer;

/// `MatMul`: the gradient of the left matrix is `G·Bᵀ`, that of the right one `Aᵀ·G`, summed over
/// the axes along which it was broadcast.
pub(super) fn differentiate_matmul(
    view: &NodeView<'_>,
    gradient: &str,
    writer: &mut Writer,
) -> Gradients {
    let (left, right) = (view.input_dims(0)?, view.input_dims(1)?);
    // A vector on the left is a row, one on the right a column.
    let is_row = left.len() == 1;
    let is_column = right.len() == 1;
    let left_matrix = if is_row {
        vec![1, left[0]]
    } else {
        left.clone()
    };
    let right_matrix = if is_column {
        vec![right[0], 1]
    } else {
        right.clone()
    };
    let mut dims = view.output_dims()?;
    if is_column {
        dims.push(1);
    }
    if is_row {
        dims.insert(dims.len() - 1, 1);
    }
    let as_matrix = |name: &str, is_vector: bool, dims: &[usize], writer: &mut Writer| {
        if is_vector {
            writer.reshape(name, dims)
        } else {
            name.to_owned()
        }
    };
    let gradient = as_matrix(gradient, is_row || is_column, &dims, writer);
    let a = as_matrix(view.input(0)?, is_row, &left_matrix, writer);
    let b = as_matrix(view.input(1)?, is_column, &right_matrix, writer);
    let (rows, depth, columns) = (
        left_matrix[left_matrix.len() - 2],
        left_matrix[left_matrix.len() - 1],
        right_matrix[right_matrix.len() - 1],
    );
    let batch = &dims[..dims.len() - 2];
    let left_gradient = view.is_wanted(0).then(|| {
        let transposed = writer.transpose_last(&b, right_matrix.len());
        let product = writer.add("MatMul", &[&gradient, &transposed]);
        let from = [batch, &[rows, depth]].concat();
        let summed = writer.unbroadcast(&product, &from, &left_matrix);
        as_matrix(&summed, is_row, &left, writer)
    });
    let right_gradient = view.is_wanted(1).then(|| {
        let summed = if right_matrix.len() == 2 && left_matrix.len() > 2 {
            // One product over all rows of the batch, without an intermediate result for each.
            let all = batch.iter().product::<usize>() * rows;
            let flat = writer.reshape(&a, &[all, depth]);
            let transposed = writer.transpose(&flat, &[1, 0]);
            let gradient = writer.reshape(&gradient, &[all, columns]);
            writer.add("MatMul", &[&transposed, &gradient])
        } else {
            let transposed = writer.transpose_last(&a, left_matrix.len());
            let product = writer.add("MatMul", &[&transposed, &gradient]);
            let from = [batch, &[depth, columns]].concat();
            writer.unbroadcast(&product, &from, &right_matrix)
        };
        as_matrix(&summed, is_column, &right, writer)
    });
    Ok(vec![left_gradient, right_gradient])
}

/// `Gemm`: the same for `α·A·B + β·C`, where each matrix can be transposed.
pub(super) fn differentiate_gemm(
    view: &NodeView<'_>,
    gradient: &str,
    writer: &mut Writer,
) -> Gradients {
    let proto = &view.node.proto;
    let (alpha, beta) = (
        f64::from(proto.float("alpha").unwrap_or(1.0)),
        f64::from(proto.float("beta").unwrap_or(1.0)),
    );
    let (left, right) = (view.int("transA", 0), view.int("transB", 0));
    let mut multiply = |a: &str, b: &str, transposed: (i64, i64)| {
        let node = NodeProto::for_operator("Gemm", &[a, b], "")
            .with("alpha", alpha as f32)
            .with("transA", transposed.0)
            .with("transB", transposed.1);
        writer.add_node(node)
    };
    let (a, b) = (view.input(0)?, view.input(1)?);
    let left_gradient = view.is_wanted(0).then(|| match left {
        0 => multiply(gradient, b, (0, 1 - right)),
        _ => multiply(b, gradient, (right, 1)),
    });
    let right_gradient = view.is_wanted(1).then(|| match right {
        0 => multiply(a, gradient, (1 - left, 0)),
        _ => multiply(gradient, a, (1, left)),
    });
    let mut gradients = vec![left_gradient, right_gradient];
    if view.is_wanted(2) {
        let (from, to) = (view.output_dims()?, view.input_dims(2)?);
        let summed = writer.unbroadcast(gradient, &from, &to);
        gradients.push(Some(writer.scale(&summed, beta)));
    }
    Ok(gradients)
}
