//! Builds the losses, which measure how far the model's output is from the targets, and their
//! gradients. A loss is a sum over the batch, divided once by its number of terms.

use souk_memory::DType;
use souk_onnx::NodeProto;

use crate::gradient::error::{GradientError, TargetMismatch};
use crate::gradient::writer::Writer;

/// The loss that training minimises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// The cross-entropy of logits, whose last axis is the classes, with integers as labels.
    CrossEntropy,
    /// The same over the labels from 0: the sum over them, divided by their number. A negative
    /// label does not count. It is for tokens of which only some are answers.
    CountedCrossEntropy,
    /// The mean of the squared differences.
    MeanSquaredError,
}

/// The value of which a loss is taken, or its target.
#[derive(Clone, Debug)]
pub(in crate::gradient) struct LossValue {
    pub name: String,
    pub dtype: DType,
    pub dims: Vec<usize>,
}

/// The names of the values that a loss writes.
pub(in crate::gradient) struct WrittenLoss {
    /// The loss, a scalar.
    pub loss: String,
    /// The gradient of the output.
    pub gradient: String,
}

impl Loss {
    /// Returns the name for people.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Loss::CrossEntropy => "cross-entropy",
            Loss::CountedCrossEntropy => "cross-entropy of the answers",
            Loss::MeanSquaredError => "mse",
        }
    }

    /// Returns whether the targets are numbers of classes.
    #[must_use]
    pub fn has_labels(self) -> bool {
        self != Loss::MeanSquaredError
    }

    /// Checks that a target fits an output.
    ///
    /// # Errors
    /// [`GradientError::Target`] with what it should be.
    pub(in crate::gradient) fn check_target(
        self,
        output: &LossValue,
        target: &LossValue,
    ) -> Result<(), GradientError> {
        let (types, dims): (&[DType], &[usize]) = match self {
            Loss::CrossEntropy => (
                &[DType::I64, DType::I32],
                &output.dims[..output.dims.len().saturating_sub(1)],
            ),
            Loss::CountedCrossEntropy => (
                &[DType::I64],
                &output.dims[..output.dims.len().saturating_sub(1)],
            ),
            Loss::MeanSquaredError => (std::slice::from_ref(&output.dtype), &output.dims),
        };
        let has_classes = !self.has_labels() || output.dims.len() > 1;
        if types.contains(&target.dtype) && target.dims == dims && has_classes {
            return Ok(());
        }
        let expected = match has_classes {
            true => format!("{} {dims:?}", types[0]),
            false => "an output with the classes as its last axis".to_owned(),
        };
        Err(GradientError::Target(Box::new(TargetMismatch {
            target: target.name.clone(),
            found_type: target.dtype,
            found: target.dims.clone(),
            loss: self.name(),
            output: output.name.clone(),
            dims: output.dims.clone(),
            expected,
        })))
    }

    /// Writes the loss and its gradient.
    pub(in crate::gradient) fn write(
        self,
        output: &LossValue,
        target: &LossValue,
        writer: &mut Writer,
    ) -> WrittenLoss {
        match self {
            Loss::CrossEntropy => write_cross_entropy(output, target, writer),
            Loss::CountedCrossEntropy => write_counted_cross_entropy(output, target, writer),
            Loss::MeanSquaredError => write_squared_error(output, target, writer),
        }
    }
}

fn write_cross_entropy(output: &LossValue, target: &LossValue, writer: &mut Writer) -> WrittenLoss {
    let axis = output.dims.len() - 1;
    let count: usize = output.dims[..axis].iter().product();
    let share = 1.0 / count as f64;
    // The largest logit becomes 0, so that no exponential overflows.
    let largest = writer.reduce_max(&output.name, axis);
    let logits = writer.add("Sub", &[&output.name, &largest]);
    let exponentials = writer.add("Exp", &[&logits]);
    let sum = writer.reduce_sum(&exponentials, &[axis]);
    let logarithm = writer.add("Log", &[&sum]);
    let log_shares = writer.add("Sub", &[&logits, &logarithm]);
    let depth = writer.add_int(output.dims[axis] as i64);
    let values = writer.add_floats(&[0.0, 1.0]);
    let chosen = NodeProto::for_operator("OneHot", &[&target.name, &depth, &values], "");
    let chosen = writer.add_node(chosen.with("axis", -1));
    // A product would make a class of logit −∞, which is not the label, no number.
    let zero = writer.add_float(0.0);
    let is_chosen = writer.add("Greater", &[&chosen, &zero]);
    let terms = writer.add("Where", &[&is_chosen, &log_shares, &zero]);
    let loss = write_total(&terms, &output.dims, -share, writer);
    let shares = writer.add("Div", &[&exponentials, &sum]);
    let difference = writer.add("Sub", &[&shares, &chosen]);
    let gradient = writer.scale(&difference, share);
    WrittenLoss { loss, gradient }
}

/// Writes a cross-entropy that reads the labelled logit of each row, instead of multiplying by a
/// row of zeros and a one, because a vocabulary is much longer than the classes of a classifier.
fn write_counted_cross_entropy(
    output: &LossValue,
    target: &LossValue,
    writer: &mut Writer,
) -> WrittenLoss {
    let axis = output.dims.len() - 1;
    let rows = [&output.dims[..axis], &[1]].concat();
    let first = writer.add_int(0);
    let is_ignored = writer.add("Less", &[&target.name, &first]);
    let labels = writer.add("Where", &[&is_ignored, &first, &target.name]);
    let is_ignored = writer.reshape(&is_ignored, &rows);
    let is_counted = writer.add("Not", &[&is_ignored]);
    let counted = writer.cast_to_float(&is_counted);
    let all: Vec<usize> = (0..rows.len()).collect();
    let count = writer.reduce_sum(&counted, &all);
    let one = writer.add_float(1.0);
    // A batch without a counted label has the loss 0.
    let count = writer.add("Max", &[&count, &one]);
    let largest = writer.reduce_max(&output.name, axis);
    let logits = writer.add("Sub", &[&output.name, &largest]);
    let exponentials = writer.add("Exp", &[&logits]);
    let sum = writer.reduce_sum(&exponentials, &[axis]);
    let logarithm = writer.add("Log", &[&sum]);
    let places = writer.reshape(&labels, &rows);
    let node = NodeProto::for_operator("GatherElements", &[&logits, &places], "");
    let chosen = writer.add_node(node.with("axis", axis as i64));
    let terms = writer.add("Sub", &[&logarithm, &chosen]);
    let zero = writer.add_float(0.0);
    let terms = writer.add("Where", &[&is_ignored, &zero, &terms]);
    let total = write_total(&terms, &rows, 1.0, writer);
    let divisor = writer.reshape(&count, &[]);
    let loss = writer.add("Div", &[&total, &divisor]);
    let share = writer.add("Div", &[&counted, &count]);
    let factor = writer.add("Div", &[&share, &sum]);
    let shares = writer.add("Mul", &[&exponentials, &factor]);
    let depth = writer.add_int(output.dims[axis] as i64);
    let values = writer.add_floats(&[0.0, 1.0]);
    let node = NodeProto::for_operator("OneHot", &[&labels, &depth, &values], "");
    let is_label = writer.add_node(node.with("axis", -1));
    let expected = writer.add("Mul", &[&is_label, &share]);
    let gradient = writer.add("Sub", &[&shares, &expected]);
    WrittenLoss { loss, gradient }
}

fn write_squared_error(output: &LossValue, target: &LossValue, writer: &mut Writer) -> WrittenLoss {
    let count: usize = output.dims.iter().product();
    let share = 1.0 / count.max(1) as f64;
    let difference = writer.add("Sub", &[&output.name, &target.name]);
    let squares = writer.add("Mul", &[&difference, &difference]);
    let loss = write_total(&squares, &output.dims, share, writer);
    let gradient = writer.scale(&difference, 2.0 * share);
    WrittenLoss { loss, gradient }
}

/// Writes the sum of all elements times a number, as a scalar.
fn write_total(value: &str, dims: &[usize], factor: f64, writer: &mut Writer) -> String {
    let axes: Vec<usize> = (0..dims.len()).collect();
    let sum = writer.reduce_sum(value, &axes);
    let sum = writer.reshape(&sum, &[]);
    writer.scale(&sum, factor)
}
