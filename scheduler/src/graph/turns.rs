//! How often bodies are taken to run whose count only a run tells: once, until runs have told.

use super::Graph;

/// What is counted at most, and one part in so many at least: an estimate beyond that is none.
const TURNS_MAX: f64 = 1e7;

impl Graph {
    /// The same graph, with so many times the work of nodes that do not say beforehand what they
    /// do, as earlier runs of the model told.
    #[must_use]
    pub fn with_turns(mut self, turns: f64) -> Self {
        let turns = if turns.is_finite() { turns } else { 1.0 };
        let turns = turns.clamp(1.0 / TURNS_MAX, TURNS_MAX);
        let times = turns / self.turns;
        for node in self.nodes.iter_mut().filter(|node| !node.cost.certain) {
            node.cost = node.cost.times(times);
        }
        self.turns = turns;
        self
    }

    /// How many times that work is counted.
    #[must_use]
    pub fn turns(&self) -> f64 {
        self.turns
    }

    /// Whether it is known beforehand what all of its nodes do.
    #[must_use]
    pub fn is_certain(&self) -> bool {
        self.nodes.iter().all(|node| node.cost.certain)
    }
}
