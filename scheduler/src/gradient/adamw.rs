//! Writes the nodes of one step of the optimiser AdamW, with the same arithmetic as PyTorch: two
//! moments of the gradient, corrected for their start at zero, and a separate decay of the weights.

use super::writer::Writer;

/// The settings of the optimiser.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamW {
    /// The part of the mean of the gradients that each step keeps.
    pub beta1: f64,
    /// The part of the mean of their squares that each step keeps.
    pub beta2: f64,
    /// A small number that keeps the denominator from zero.
    pub epsilon: f64,
    /// The decay of the weights, for a learning rate of 1.
    pub weight_decay: f64,
}

impl Default for AdamW {
    fn default() -> Self {
        Self {
            beta1: 0.9,
            beta2: 0.999,
            epsilon: 1e-8,
            weight_decay: 0.01,
        }
    }
}

impl AdamW {
    /// Returns the names of the states besides the parameters, each a vector of zeros at first.
    pub(super) fn state_names(&self) -> &'static [&'static str] {
        &["mean", "square"]
    }

    /// Returns the numbers of a step that depend on its position, which counts from 0. They come
    /// from 64 bits: in 32, one minus a power of `beta2` would lose most of its digits.
    pub(super) fn schedule(&self, position: u64, learning_rate: f64) -> Vec<f32> {
        let steps = (position + 1) as f64;
        let first = 1.0 - self.beta1.powf(steps);
        let second = 1.0 - self.beta2.powf(steps);
        let kept = 1.0 - learning_rate * self.weight_decay;
        vec![
            kept as f32,
            (learning_rate / first) as f32,
            second.sqrt() as f32,
        ]
    }

    /// Writes the step. Returns the next parameters and states.
    pub(super) fn write(
        &self,
        parameters: &str,
        gradient: &str,
        states: &[String],
        schedule: &[String],
        writer: &mut Writer,
    ) -> Vec<String> {
        let [mean, square] = states else {
            unreachable!("the graph has the states that the optimiser names");
        };
        let [kept, rate, correction] = schedule else {
            unreachable!("the schedule has three numbers");
        };
        let new = writer.scale(gradient, 1.0 - self.beta1);
        let old = writer.scale(mean, self.beta1);
        let mean = writer.add("Add", &[&old, &new]);
        let squares = writer.add("Mul", &[gradient, gradient]);
        let new = writer.scale(&squares, 1.0 - self.beta2);
        let old = writer.scale(square, self.beta2);
        let square = writer.add("Add", &[&old, &new]);
        let root = writer.add("Sqrt", &[&square]);
        let root = writer.add("Div", &[&root, correction]);
        let epsilon = writer.add_float(self.epsilon);
        let denominator = writer.add("Add", &[&root, &epsilon]);
        let direction = writer.add("Div", &[&mean, &denominator]);
        let change = writer.add("Mul", &[&direction, rate]);
        let decayed = writer.add("Mul", &[parameters, kept]);
        let next = writer.add("Sub", &[&decayed, &change]);
        vec![next, mean, square]
    }
}
