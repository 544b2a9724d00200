//! Estimates the work of nodes whose bodies (inner graphs, such as that of `Loop`) run for a number
//! of rounds that is known only at run time. The import counts one round; a factor from earlier
//! runs of the model corrects this estimate.

use super::Graph;

/// Largest factor, and the inverse of the smallest: an estimate beyond it is useless.
const TURNS_MAX: f64 = 1e7;

impl Graph {
    /// Returns the same graph with `turns` times the work of the nodes whose work is unknown in
    /// advance. You can take the factor from earlier runs of the model.
    #[must_use]
    pub fn with_turns(mut self, turns: f64) -> Self {
        let turns = if turns.is_finite() { turns } else { 1.0 };
        let turns = turns.clamp(1.0 / TURNS_MAX, TURNS_MAX);
        let times = turns / self.turns;
        for node in self.nodes.iter_mut().filter(|node| !node.cost.certain) {
            node.cost = node.cost.scale_by(times);
        }
        self.turns = turns;
        self
    }

    /// Returns the factor for the work that is unknown in advance.
    #[must_use]
    pub fn unknown_work_factor(&self) -> f64 {
        self.turns
    }

    /// Returns whether the work of all nodes is known in advance.
    #[must_use]
    pub fn is_certain(&self) -> bool {
        self.nodes.iter().all(|node| node.cost.certain)
    }
}
