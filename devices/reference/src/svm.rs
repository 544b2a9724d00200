//! Computes `SVMRegressor` and `SVMClassifier` (support vector machines), which score or classify a
//! row by its similarity to the model's support vectors.

use souk_memory::{DType, Tensor};
use souk_onnx::NodeProto;
use souk_onnx::subgraph::UnsupportedReason;

use super::call::{Call, KernelError, Results};
use super::trees::matrix_dims;
use super::value::{from_floats, from_indices};

/// The conversion of pairwise into class probabilities can take at most this many iterations.
const ROUNDS_MAX: usize = 100;

/// The error at which the iteration stops, divided by the number of classes.
const ERROR_MAX: f64 = 0.005;

/// The least probability of a pair, so that no pair rules out a class.
const PROBABILITY_MIN: f64 = 1e-7;

/// The kernel function that compares two rows.
enum SvmKernel {
    Linear,
    Polynomial,
    Radial,
    Sigmoid,
}

/// The support vectors, and the parameters of the comparison.
struct Machine<'a> {
    likeness: SvmKernel,
    gamma: f64,
    offset: f64,
    degree: f64,
    vectors: &'a [f32],
    coefficients: &'a [f32],
    rho: &'a [f32],
}

/// Checks that the node has no texts and no transform of the scores, which the kernels do not
/// support.
pub(super) fn check_attributes(node: &NodeProto) -> Result<(), UnsupportedReason> {
    let has_texts = node
        .strings("classlabels_strings")
        .is_some_and(|it| !it.is_empty());
    match node.string("post_transform").unwrap_or("NONE") {
        _ if has_texts => Err(UnsupportedReason::Attribute("classlabels_strings")),
        "NONE" => Ok(()),
        _ => Err(UnsupportedReason::Attribute("post_transform")),
    }
}

impl<'a> Machine<'a> {
    fn from_node(node: &'a NodeProto) -> Result<Self, KernelError> {
        let floats = |name| node.floats(name).unwrap_or_default();
        let parameter = |index: usize| {
            let given = floats("kernel_params").get(index);
            given.map_or(0.0, |value| f64::from(*value))
        };
        Ok(Self {
            likeness: match node.string("kernel_type").unwrap_or("LINEAR") {
                "LINEAR" => SvmKernel::Linear,
                "POLY" => SvmKernel::Polynomial,
                "RBF" => SvmKernel::Radial,
                "SIGMOID" => SvmKernel::Sigmoid,
                _ => return Err(KernelError::Attribute("kernel_type")),
            },
            gamma: parameter(0),
            offset: parameter(1),
            degree: parameter(2),
            vectors: floats("support_vectors"),
            coefficients: floats("coefficients"),
            rho: floats("rho"),
        })
    }

    fn kernel_value(&self, row: &[f64], other: &[f32]) -> f64 {
        let pairs = row.iter().zip(other).map(|(x, y)| (*x, f64::from(*y)));
        if matches!(self.likeness, SvmKernel::Radial) {
            let distance: f64 = pairs.map(|(x, y)| (x - y) * (x - y)).sum();
            return (-self.gamma * distance).exp();
        }
        let product: f64 = pairs.map(|(x, y)| x * y).sum();
        match self.likeness {
            SvmKernel::Polynomial => (self.gamma * product + self.offset).powf(self.degree),
            SvmKernel::Sigmoid => (self.gamma * product + self.offset).tanh(),
            SvmKernel::Linear | SvmKernel::Radial => product,
        }
    }

    /// Returns the likeness of a row to each support vector.
    fn kernel_values(&self, row: &[f64]) -> Vec<f64> {
        let kept = self.vectors.chunks_exact(row.len().max(1));
        kept.map(|other| self.kernel_value(row, other)).collect()
    }

    /// Returns the product of a row with each row of coefficients.
    fn linear_scores(&self, row: &[f64]) -> Vec<f64> {
        let first = self.rho.first().map_or(0.0, |rho| f64::from(*rho));
        let rows = self.coefficients.chunks_exact(row.len().max(1));
        let product = |other: &[f32]| {
            let pairs = row.iter().zip(other);
            pairs.map(|(x, y)| x * f64::from(*y)).sum::<f64>() + first
        };
        rows.map(product).collect()
    }
}

/// Returns the rows of the first input.
fn input_rows(call: &Call<'_>) -> Result<(Vec<f64>, usize, usize), KernelError> {
    let input = call.input(0)?;
    let (rows, width) = matrix_dims(input)?;
    let narrow = super::value::to_floats(input)?.into_iter();
    Ok((narrow.map(|it| f64::from(it as f32)).collect(), rows, width))
}

pub(super) fn svm_regressor(call: &Call<'_>) -> Results {
    let machine = Machine::from_node(call.node)?;
    let (values, count, width) = input_rows(call)?;
    let first = machine.rho.first().map_or(0.0, |rho| f64::from(*rho));
    let supports = call.int_attribute("n_supports", 0) > 0;
    let is_one_class = call.is_flag_set("one_class");
    let score = |row: &[f64]| {
        let sum = match supports {
            true => weighted_sum(machine.coefficients, &machine.kernel_values(row)) + first,
            false => machine.linear_scores(row).first().copied().unwrap_or(first),
        };
        match is_one_class {
            true if sum > 0.0 => 1.0,
            true => -1.0,
            false => sum,
        }
    };
    let scores = values.chunks_exact(width.max(1)).map(score).collect();
    Ok(vec![from_floats(DType::F32, &[count, 1], scores)?])
}

fn weighted_sum(weights: &[f32], values: &[f64]) -> f64 {
    let pairs = weights.iter().zip(values);
    pairs
        .map(|(weight, value)| f64::from(*weight) * value)
        .sum()
}

/// A machine with the classes of its support vectors.
struct ClassMachine<'a> {
    machine: Machine<'a>,
    labels: &'a [i64],
    /// The first vector of each class, and the end of the last.
    bounds: Vec<usize>,
    /// Scale and offset of the logistic function of each pair of classes.
    logistic: Vec<(f64, f64)>,
}

impl<'a> ClassMachine<'a> {
    fn from_node(node: &'a NodeProto) -> Result<Self, KernelError> {
        let machine = Machine::from_node(node)?;
        let labels = node.ints("classlabels_ints").unwrap_or_default();
        let mut bounds = vec![0];
        for count in node.ints("vectors_per_class").unwrap_or_default() {
            let count = usize::try_from(*count);
            let count = count.map_err(|_| KernelError::Attribute("vectors_per_class"))?;
            bounds.push(bounds[bounds.len() - 1] + count);
        }
        let floats = |name| node.floats(name).unwrap_or_default().iter();
        let wide = |(a, b): (&f32, &f32)| (f64::from(*a), f64::from(*b));
        let logistic: Vec<(f64, f64)> = floats("prob_a").zip(floats("prob_b")).map(wide).collect();
        let classes = Self {
            machine,
            labels,
            bounds,
            logistic,
        };
        classes.validate_sizes()
    }

    fn validate_sizes(self) -> Result<Self, KernelError> {
        let count = self.labels.len();
        let (pairs, kept) = (count * count.saturating_sub(1) / 2, self.vector_count());
        let coefficients = self.machine.coefficients.len();
        let is_whole = !self.has_vectors()
            || (self.bounds.len() == count + 1
                && coefficients >= (count - 1) * kept
                && self.machine.rho.len() >= pairs);
        match is_whole && count > 0 && (self.logistic.is_empty() || self.logistic.len() >= pairs) {
            true => Ok(self),
            false => Err(KernelError::Attribute("vectors_per_class")),
        }
    }

    /// Returns the number of support vectors.
    fn vector_count(&self) -> usize {
        self.bounds.last().copied().unwrap_or(0)
    }

    fn has_vectors(&self) -> bool {
        self.vector_count() > 0
    }

    /// Returns the decision value of each pair of classes, positive if the first wins.
    fn decision_values(&self, row: &[f64]) -> Result<Vec<f64>, KernelError> {
        let likenesses = self.machine.kernel_values(row);
        if likenesses.len() != self.vector_count() {
            return Err(KernelError::Attribute("support_vectors"));
        }
        let part = |coefficients: usize, class: usize| {
            let own = self.bounds[class]..self.bounds[class + 1];
            let weights = &self.machine.coefficients[coefficients * self.vector_count()..];
            weighted_sum(&weights[own.clone()], &likenesses[own])
        };
        let rho = self.machine.rho.iter();
        let duels = class_pairs(self.labels.len()).zip(rho);
        let duels = duels
            .map(|((one, other), rho)| part(other - 1, one) + part(one, other) + f64::from(*rho));
        Ok(duels.collect())
    }

    /// Returns the index of the class and the scores of a row.
    fn classify_row(&self, row: &[f64]) -> Result<(usize, Vec<f64>), KernelError> {
        if !self.has_vectors() {
            let scores = self.machine.linear_scores(row);
            return Ok((self.linear_choice(&scores), scores));
        }
        let duels = self.decision_values(row)?;
        let mut votes = vec![0; self.labels.len()];
        for ((one, other), duel) in class_pairs(self.labels.len()).zip(&duels) {
            votes[if *duel > 0.0 { one } else { other }] += 1;
        }
        let best = first_largest(&votes);
        if !self.logistic.is_empty() {
            return Ok((best, self.class_probabilities(&duels)));
        }
        let scores = match duels.as_slice() {
            [duel] => vec![-duel, *duel],
            _ => duels,
        };
        Ok((best, scores))
    }

    /// Returns the class with the largest score. Of two classes with mixed coefficients, returns
    /// the second if the largest score is above zero, as ONNX Runtime does.
    fn linear_choice(&self, scores: &[f64]) -> usize {
        let best = first_largest(scores);
        let is_mixed = self.machine.coefficients.iter().any(|it| *it < 0.0);
        let is_above = scores.get(best).is_some_and(|score| *score > 0.0);
        match self.labels.len() {
            2 if is_mixed && is_above => 1,
            _ => best,
        }
    }

    /// Computes class probabilities from pairwise ones, by the second method of Wu, Lin and Weng
    /// (2004), which minimises the contradictions with the pairs.
    fn class_probabilities(&self, duels: &[f64]) -> Vec<f64> {
        let count = self.labels.len();
        let mut wins = vec![vec![0.0; count]; count];
        for (((one, other), duel), (scale, offset)) in
            class_pairs(count).zip(duels).zip(&self.logistic)
        {
            let chance = 1.0 / (1.0 + (duel * scale + offset).exp());
            let chance = chance.clamp(PROBABILITY_MIN, 1.0 - PROBABILITY_MIN);
            wins[one][other] = chance;
            wins[other][one] = 1.0 - chance;
        }
        let entry = |row: usize, column: usize| match row == column {
            true => (0..count).map(|it| wins[it][row] * wins[it][row]).sum(),
            false => -wins[column][row] * wins[row][column],
        };
        let row = |row: usize| (0..count).map(|column| entry(row, column)).collect();
        let matrix: Vec<Vec<f64>> = (0..count).map(row).collect();
        solve_probabilities(&matrix)
    }
}

/// Returns the probabilities that minimise the quadratic form of a matrix.
fn solve_probabilities(matrix: &[Vec<f64>]) -> Vec<f64> {
    let count = matrix.len();
    let mut chances = vec![1.0 / count as f64; count];
    for _ in 0..ROUNDS_MAX {
        let of = |row: &Vec<f64>| row.iter().zip(&chances).map(|(a, p)| a * p).sum::<f64>();
        let mut slopes: Vec<f64> = matrix.iter().map(of).collect();
        let mut form: f64 = slopes.iter().zip(&chances).map(|(a, p)| a * p).sum();
        let errors = slopes.iter().map(|slope| (slope - form).abs());
        if errors.fold(0.0, f64::max) < ERROR_MAX / count as f64 {
            break;
        }
        for at in 0..count {
            let step = (form - slopes[at]) / matrix[at][at];
            chances[at] += step;
            let shrunk = 1.0 + step;
            form = (form + step * (step * matrix[at][at] + 2.0 * slopes[at])) / shrunk / shrunk;
            for (slope, own) in slopes.iter_mut().zip(&matrix[at]) {
                *slope = (*slope + step * own) / shrunk;
            }
            chances.iter_mut().for_each(|chance| *chance /= shrunk);
        }
    }
    chances
}

/// Returns each pair of `count` classes, in order.
fn class_pairs(count: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..count).flat_map(move |one| (one + 1..count).map(move |other| (one, other)))
}

fn first_largest<T: PartialOrd>(values: &[T]) -> usize {
    let mut best = 0;
    for at in 1..values.len() {
        if values[at] > values[best] {
            best = at;
        }
    }
    best
}

pub(super) fn svm_classifier(call: &Call<'_>) -> Results {
    let classes = ClassMachine::from_node(call.node)?;
    let (values, count, width) = input_rows(call)?;
    let (mut labels, mut scores) = (Vec::new(), Vec::new());
    for row in values.chunks_exact(width.max(1)) {
        let (place, own) = classes.classify_row(row)?;
        labels.push(classes.labels[place]);
        scores.extend(own);
    }
    let columns = scores.len().checked_div(count).unwrap_or(0);
    let labels: Tensor = from_indices(&[count], labels)?;
    Ok(vec![
        labels,
        from_floats(DType::F32, &[count, columns], scores)?,
    ])
}
