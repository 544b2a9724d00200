//! Differentiates operators that compute each element by itself, such as sums, products and
//! activations. The gradient of a value that was broadcast is summed over the axes of the
//! broadcast.

use super::Gradients;
use crate::gradient::GradientError;
use crate::gradient::node_view::NodeView;
use crate::gradient::writer::Writer;

/// `LeakyRelu`'s slope below zero, if the node states none.
const LEAKY_SLOPE: f32 = 0.01;

/// Sums a gradient to the extents of an input.
fn fit_to_input(
    view: &NodeView<'_>,
    place: usize,
    gradient: &str,
    writer: &mut Writer,
) -> Result<String, GradientError> {
    let (from, to) = (view.output_dims()?, view.input_dims(place)?);
    Ok(writer.unbroadcast(gradient, &from, &to))
}

/// `Add` and `Sub`.
pub(super) fn differentiate_sum(
    view: &NodeView<'_>,
    gradient: &str,
    writer: &mut Writer,
) -> Gradients {
    let mut gradients = vec![None, None];
    if view.is_wanted(0) {
        gradients[0] = Some(fit_to_input(view, 0, gradient, writer)?);
    }
    if view.is_wanted(1) {
        let fitted = fit_to_input(view, 1, gradient, writer)?;
        gradients[1] = Some(match view.node.proto.op_type() {
            "Sub" => writer.add("Neg", &[&fitted]),
            _ => fitted,
        });
    }
    Ok(gradients)
}

/// `Mul`.
pub(super) fn differentiate_product(
    view: &NodeView<'_>,
    gradient: &str,
    writer: &mut Writer,
) -> Gradients {
    let mut gradients = vec![None, None];
    for (place, other) in [(0, 1), (1, 0)] {
        if view.is_wanted(place) {
            let product = writer.add("Mul", &[gradient, view.input(other)?]);
            gradients[place] = Some(fit_to_input(view, place, &product, writer)?);
        }
    }
    Ok(gradients)
}

/// `Div`: `G/b` and `−G·y/b`.
pub(super) fn differentiate_quotient(
    view: &NodeView<'_>,
    gradient: &str,
    writer: &mut Writer,
) -> Gradients {
    let mut gradients = vec![None, None];
    let quotient = writer.add("Div", &[gradient, view.input(1)?]);
    if view.is_wanted(0) {
        gradients[0] = Some(fit_to_input(view, 0, &quotient, writer)?);
    }
    if view.is_wanted(1) {
        let product = writer.add("Mul", &[&quotient, view.output()?]);
        let fitted = fit_to_input(view, 1, &product, writer)?;
        gradients[1] = Some(writer.add("Neg", &[&fitted]));
    }
    Ok(gradients)
}

/// `Pow` with a constant exponent: `G·e·x^(e−1)`.
pub(super) fn differentiate_power(
    view: &NodeView<'_>,
    gradient: &str,
    writer: &mut Writer,
) -> Gradients {
    if view.is_wanted(1) {
        return Err(view.unsupported("its exponent is trained"));
    }
    let floats = view.input_floats(1);
    let exponent = floats.filter(|floats| floats.len() == 1);
    let exponent = exponent.ok_or_else(|| view.unsupported("its exponent is not one constant"))?[0];
    if exponent == 0.0 {
        return Ok(vec![None]);
    }
    let less = writer.add_float(exponent - 1.0);
    let power = match exponent {
        // The power of zero is no number at some values, and the gradient is the plain value.
        2.0 => view.input(0)?.to_owned(),
        _ => writer.add("Pow", &[view.input(0)?, &less]),
    };
    let product = writer.add("Mul", &[gradient, &power]);
    let scaled = writer.scale(&product, exponent);
    Ok(vec![Some(fit_to_input(view, 0, &scaled, writer)?)])
}

/// Functions of one value.
pub(super) fn differentiate_function(
    view: &NodeView<'_>,
    gradient: &str,
    writer: &mut Writer,
) -> Gradients {
    let (x, y) = (view.input(0)?, view.output()?);
    let gradient = match view.node.proto.op_type() {
        "Neg" => writer.add("Neg", &[gradient]),
        "Relu" => {
            let zero = writer.add_float(0.0);
            let positive = writer.add("Greater", &[x, &zero]);
            let factor = writer.cast_to_float(&positive);
            writer.add("Mul", &[gradient, &factor])
        }
        "LeakyRelu" => {
            let slope = view.node.proto.float("alpha").unwrap_or(LEAKY_SLOPE);
            let (zero, one) = (writer.add_float(0.0), writer.add_float(1.0));
            let slope = writer.add_float(f64::from(slope));
            let positive = writer.add("Greater", &[x, &zero]);
            let factor = writer.add("Where", &[&positive, &one, &slope]);
            writer.add("Mul", &[gradient, &factor])
        }
        "Abs" => {
            let sign = writer.add("Sign", &[x]);
            writer.add("Mul", &[gradient, &sign])
        }
        "Sigmoid" => {
            let one = writer.add_float(1.0);
            let rest = writer.add("Sub", &[&one, y]);
            let slope = writer.add("Mul", &[y, &rest]);
            writer.add("Mul", &[gradient, &slope])
        }
        "Tanh" => {
            let one = writer.add_float(1.0);
            let square = writer.add("Mul", &[y, y]);
            let slope = writer.add("Sub", &[&one, &square]);
            writer.add("Mul", &[gradient, &slope])
        }
        "Exp" => writer.add("Mul", &[gradient, y]),
        "Log" => writer.add("Div", &[gradient, x]),
        "Sqrt" => {
            let half = writer.scale(gradient, 0.5);
            writer.add("Div", &[&half, y])
        }
        "Reciprocal" => {
            let square = writer.add("Mul", &[y, y]);
            let product = writer.add("Mul", &[gradient, &square]);
            writer.add("Neg", &[&product])
        }
        "Erf" => {
            let square = writer.add("Mul", &[x, x]);
            let negative = writer.add("Neg", &[&square]);
            let bell = writer.add("Exp", &[&negative]);
            let product = writer.add("Mul", &[gradient, &bell]);
            writer.scale(&product, std::f64::consts::FRAC_2_SQRT_PI)
        }
        _ => unreachable!("the caller lists the functions"),
    };
    Ok(vec![Some(gradient)])
}

/// `Swish`: with `s` the sigmoid of `α·x`, the slope of `x·s` is `s + α·x·s·(1 − s)`.
pub(super) fn differentiate_swish(
    view: &NodeView<'_>,
    gradient: &str,
    writer: &mut Writer,
) -> Gradients {
    let alpha = f64::from(view.node.proto.float("alpha").unwrap_or(1.0));
    let one = writer.add_float(1.0);
    let scaled = writer.scale(view.input(0)?, alpha);
    let open = writer.add("Sigmoid", &[&scaled]);
    let rest = writer.add("Sub", &[&one, &open]);
    let bend = writer.add("Mul", &[view.output()?, &rest]);
    let bend = writer.scale(&bend, alpha);
    let slope = writer.add("Add", &[&open, &bend]);
    Ok(vec![Some(writer.add("Mul", &[gradient, &slope]))])
}
