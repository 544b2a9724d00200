//! Builds the standard ONNX nodes that turn the scores of a classifier's classes into its outputs,
//! labels and probabilities, where souk expands linear models, support vector machines and trees
//! into such nodes.

use souk_memory::DType;

use super::builder::ExpansionBuilder;
use crate::NodeProto;

/// Returns the labels of the classes as numbers; if they are texts, notes that the output is text.
pub(super) fn class_labels(body: &mut ExpansionBuilder<'_>, numbers: &str) -> Option<Vec<i64>> {
    let call = body.call();
    if let Some(labels) = call.ints(numbers).filter(|it| !it.is_empty()) {
        return Some(labels.to_vec());
    }
    let texts = call.strings("classlabels_strings")?;
    body.note_text(0);
    Some(body.text_numbers(texts))
}

/// Makes the class with the largest score of each row the first output.
pub(super) fn output_best_class(body: &mut ExpansionBuilder<'_>, scores: &str, classes: &[i64]) {
    let largest = NodeProto::for_operator("ArgMax", &[scores], "").with("axis", 1i64);
    let place = body.add(largest.with("keepdims", 0i64));
    output_label(body, &place, classes);
}

/// Makes the second class the first output where a column of booleans is true, and the first class
/// elsewhere.
pub(super) fn output_binary_class(body: &mut ExpansionBuilder<'_>, truths: &str, classes: &[i64]) {
    let place = body.add_cast(truths, DType::I64);
    let place = body.add_reshape(&place, &[-1]);
    output_label(body, &place, classes);
}

fn output_label(body: &mut ExpansionBuilder<'_>, place: &str, classes: &[i64]) {
    let are_places = classes.iter().enumerate().all(|(at, &it)| it == at as i64);
    if are_places {
        return body.set_output(0, place);
    }
    let classes = body.add_ints(classes.to_vec());
    let label = body.add_operator("Gather", &[&classes, place]);
    body.set_output(0, &label);
}

/// The form of a row's scores.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Scores {
    /// One per class or target.
    Many,
    /// One, for the second of two classes; the first class gets the rest to 1.
    One,
    /// One that can be negative; the first of two classes gets its opposite.
    Signed,
}

/// Applies the node's transform to scores.
pub(super) fn apply_node_transform(
    body: &mut ExpansionBuilder<'_>,
    sums: &str,
    scores: Scores,
) -> Option<String> {
    let transform = body.call().string("post_transform").unwrap_or("NONE");
    let sums = match scores {
        Scores::Many => sums.to_owned(),
        _ if transform == "PROBIT" => return None,
        Scores::One | Scores::Signed => {
            return Some(both_class_scores(
                body,
                sums,
                scores,
                transform == "LOGISTIC",
            ));
        }
    };
    apply_transform(body, &sums, transform)
}

/// Applies the named transform to scores.
pub(super) fn apply_transform(
    body: &mut ExpansionBuilder<'_>,
    sums: &str,
    transform: &str,
) -> Option<String> {
    Some(match transform {
        "NONE" => sums.to_owned(),
        "LOGISTIC" => body.add_operator("Sigmoid", &[sums]),
        "SOFTMAX" => body.add(NodeProto::for_operator("Softmax", &[sums], "").with("axis", 1i64)),
        "SOFTMAX_ZERO" => softmax_zero(body, sums),
        "PROBIT" => probit(body, sums),
        _ => return None,
    })
}

/// Returns the scores of two classes from that of the second.
fn both_class_scores(
    body: &mut ExpansionBuilder<'_>,
    second: &str,
    scores: Scores,
    is_logistic: bool,
) -> String {
    let (first, second) = match (scores, is_logistic) {
        (_, true) => {
            let opposite = body.add_operator("Neg", &[second]);
            let first = body.add_operator("Sigmoid", &[&opposite]);
            (first, body.add_operator("Sigmoid", &[second]))
        }
        (Scores::Signed, false) => (body.add_operator("Neg", &[second]), second.to_owned()),
        _ => {
            let one = body.add_float(1.0);
            (body.add_operator("Sub", &[&one, second]), second.to_owned())
        }
    };
    body.add(NodeProto::for_operator("Concat", &[&first, &second], "").with("axis", 1i64))
}

/// Computes a softmax that leaves out scores of zero.
fn softmax_zero(body: &mut ExpansionBuilder<'_>, sums: &str) -> String {
    let largest = body.add_reduction("ReduceMax", sums, 1, 1);
    let below = body.add_operator("Sub", &[sums, &largest]);
    let power = body.add_operator("Exp", &[&below]);
    let size = body.add_operator("Abs", &[sums]);
    let least = body.add_float(1e-7);
    let counts = body.add_operator("Greater", &[&size, &least]);
    let zero = body.add_float(0.0);
    let powers = body.add_operator("Where", &[&counts, &power, &zero]);
    let sum = body.add_reduction("ReduceSum", &powers, 1, 1);
    body.add_operator("Div", &[&powers, &sum])
}

/// Computes the probit function by Winitzki's approximation, as ONNX Runtime does.
fn probit(body: &mut ExpansionBuilder<'_>, sums: &str) -> String {
    const A: f32 = 0.147;
    const TWO_BY_PI_A: f32 = 2.0 / (std::f32::consts::PI * A);
    let [one, two, half] = [1.0, 2.0, 0.5].map(|value| body.add_float(value));
    let doubled = body.add_operator("Mul", &[sums, &two]);
    let x = body.add_operator("Sub", &[&doubled, &one]);
    let sign = body.add_operator("Sign", &[&x]);
    let square = body.add_operator("Mul", &[&x, &x]);
    let rest = body.add_operator("Sub", &[&one, &square]);
    let log = body.add_operator("Log", &[&rest]);
    let halved = body.add_operator("Mul", &[&log, &half]);
    let constant = body.add_float(TWO_BY_PI_A);
    let v = body.add_operator("Add", &[&halved, &constant]);
    let inverse = body.add_float(1.0 / A);
    let part = body.add_operator("Mul", &[&log, &inverse]);
    let squared = body.add_operator("Mul", &[&v, &v]);
    let under = body.add_operator("Sub", &[&squared, &part]);
    let root = body.add_operator("Sqrt", &[&under]);
    let inner = body.add_operator("Sub", &[&root, &v]);
    let outer = body.add_operator("Sqrt", &[&inner]);
    let signed = body.add_operator("Mul", &[&sign, &outer]);
    let root_of_two = body.add_float(std::f32::consts::SQRT_2);
    body.add_operator("Mul", &[&signed, &root_of_two])
}
