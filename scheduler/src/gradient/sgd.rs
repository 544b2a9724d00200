//! Writes the nodes of one step of stochastic gradient descent, with momentum and weight decay as
//! in PyTorch.

use super::writer::Writer;

/// The settings of the optimiser.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sgd {
    /// The share of the last velocity in the next one; 0 for none.
    pub momentum: f64,
    /// The share of each parameter that is added to its gradient.
    pub weight_decay: f64,
}

impl Sgd {
    /// Returns the names of the states besides the parameters, each a vector of zeros at first.
    pub(super) fn state_names(&self) -> &'static [&'static str] {
        if self.momentum == 0.0 {
            &[]
        } else {
            &["velocity"]
        }
    }

    /// Returns the numbers of a step that depend on its position.
    pub(super) fn schedule(&self, learning_rate: f64) -> Vec<f32> {
        vec![learning_rate as f32]
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
        let mut gradient = gradient.to_owned();
        if self.weight_decay != 0.0 {
            let decay = writer.scale(parameters, self.weight_decay);
            gradient = writer.add("Add", &[&gradient, &decay]);
        }
        let mut next = Vec::new();
        if let [velocity] = states {
            // PyTorch's first velocity is the gradient, which a velocity of zero gives too.
            let kept = writer.scale(velocity, self.momentum);
            gradient = writer.add("Add", &[&kept, &gradient]);
            next.push(gradient.clone());
        }
        let change = writer.add("Mul", &[&gradient, &schedule[0]]);
        next.insert(0, writer.add("Sub", &[parameters, &change]));
        next
    }
}
