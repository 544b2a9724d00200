//! Labels and probabilities from the scores of classes.

use souk_memory::DType;

use super::body::Body;
use crate::NodeProto;

/// Returns the labels of the classes as numbers; if they are texts, notes that the output is text.
pub(super) fn labels(body: &mut Body<'_>, numbers: &str) -> Option<Vec<i64>> {
    let call = body.call();
    if let Some(labels) = call.ints(numbers).filter(|it| !it.is_empty()) {
        return Some(labels.to_vec());
    }
    let texts = call.strings("classlabels_strings")?;
    body.note_text(0);
    Some(body.numbers(texts))
}

/// Makes the class with the largest score of each row the first output.
pub(super) fn best(body: &mut Body<'_>, scores: &str, classes: &[i64]) {
    let largest = NodeProto::of("ArgMax", &[scores], "").with("axis", 1i64);
    let place = body.add(largest.with("keepdims", 0i64));
    called(body, &place, classes);
}

/// Makes the second class the first output where a column of booleans is true, and the first class
/// elsewhere.
pub(super) fn choose(body: &mut Body<'_>, truths: &str, classes: &[i64]) {
    let place = body.cast(truths, DType::I64);
    let place = body.reshape(&place, &[-1]);
    called(body, &place, classes);
}

fn called(body: &mut Body<'_>, place: &str, classes: &[i64]) {
    let are_places = classes.iter().enumerate().all(|(at, &it)| it == at as i64);
    if are_places {
        return body.give(0, place);
    }
    let classes = body.ints(classes.to_vec());
    let label = body.op("Gather", &[&classes, place]);
    body.give(0, &label);
}

/// The form of a row's scores.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Scores {
    /// One per class or target.
    Many,
    /// One, for the second of two classes; the first class gets the rest to 1.
    One,
    /// One that may be negative; the first of two classes gets its opposite.
    Signed,
}

/// Applies the node's transform to scores.
pub(super) fn transformed(body: &mut Body<'_>, sums: &str, scores: Scores) -> Option<String> {
    let transform = body.call().string("post_transform").unwrap_or("NONE");
    let sums = match scores {
        Scores::Many => sums.to_owned(),
        _ if transform == "PROBIT" => return None,
        Scores::One | Scores::Signed => {
            return Some(pair(body, sums, scores, transform == "LOGISTIC"));
        }
    };
    named(body, &sums, transform)
}

/// Applies the named transform to scores.
pub(super) fn named(body: &mut Body<'_>, sums: &str, transform: &str) -> Option<String> {
    Some(match transform {
        "NONE" => sums.to_owned(),
        "LOGISTIC" => body.op("Sigmoid", &[sums]),
        "SOFTMAX" => body.add(NodeProto::of("Softmax", &[sums], "").with("axis", 1i64)),
        "SOFTMAX_ZERO" => softmax_zero(body, sums),
        "PROBIT" => probit(body, sums),
        _ => return None,
    })
}

/// Returns the scores of two classes from that of the second.
fn pair(body: &mut Body<'_>, second: &str, scores: Scores, is_logistic: bool) -> String {
    let (first, second) = match (scores, is_logistic) {
        (_, true) => {
            let opposite = body.op("Neg", &[second]);
            let first = body.op("Sigmoid", &[&opposite]);
            (first, body.op("Sigmoid", &[second]))
        }
        (Scores::Signed, false) => (body.op("Neg", &[second]), second.to_owned()),
        _ => {
            let one = body.float(1.0);
            (body.op("Sub", &[&one, second]), second.to_owned())
        }
    };
    body.add(NodeProto::of("Concat", &[&first, &second], "").with("axis", 1i64))
}

/// Computes a softmax that leaves out scores of zero.
fn softmax_zero(body: &mut Body<'_>, sums: &str) -> String {
    let largest = body.reduce("ReduceMax", sums, 1, 1);
    let below = body.op("Sub", &[sums, &largest]);
    let power = body.op("Exp", &[&below]);
    let size = body.op("Abs", &[sums]);
    let least = body.float(1e-7);
    let counts = body.op("Greater", &[&size, &least]);
    let zero = body.float(0.0);
    let powers = body.op("Where", &[&counts, &power, &zero]);
    let sum = body.reduce("ReduceSum", &powers, 1, 1);
    body.op("Div", &[&powers, &sum])
}

/// Computes the probit function by Winitzki's approximation, as ONNX Runtime does.
fn probit(body: &mut Body<'_>, sums: &str) -> String {
    const A: f32 = 0.147;
    const TWO_BY_PI_A: f32 = 2.0 / (std::f32::consts::PI * A);
    let [one, two, half] = [1.0, 2.0, 0.5].map(|value| body.float(value));
    let doubled = body.op("Mul", &[sums, &two]);
    let x = body.op("Sub", &[&doubled, &one]);
    let sign = body.op("Sign", &[&x]);
    let square = body.op("Mul", &[&x, &x]);
    let rest = body.op("Sub", &[&one, &square]);
    let log = body.op("Log", &[&rest]);
    let halved = body.op("Mul", &[&log, &half]);
    let constant = body.float(TWO_BY_PI_A);
    let v = body.op("Add", &[&halved, &constant]);
    let inverse = body.float(1.0 / A);
    let part = body.op("Mul", &[&log, &inverse]);
    let squared = body.op("Mul", &[&v, &v]);
    let under = body.op("Sub", &[&squared, &part]);
    let root = body.op("Sqrt", &[&under]);
    let inner = body.op("Sub", &[&root, &v]);
    let outer = body.op("Sqrt", &[&inner]);
    let signed = body.op("Mul", &[&sign, &outer]);
    let root_of_two = body.float(std::f32::consts::SQRT_2);
    body.op("Mul", &[&signed, &root_of_two])
}
