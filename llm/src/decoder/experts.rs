//! Builds the feed-forward part of a decoder layer in a mixture-of-experts model.
//!
//! A router weights all experts for each row. The experts with the largest weights process the row,
//! and the graph adds their outputs by weight. If there is a shared expert for all rows, a gate
//! scales its output before the sum.

use super::DecoderGraph;
use crate::config::Experts;
use crate::weights::WeightError;

impl DecoderGraph<'_> {
    pub(super) fn add_experts(
        &mut self,
        experts: &Experts,
        base: &str,
        from: &str,
    ) -> Result<String, WeightError> {
        let hidden = self.config.hidden;
        let Experts {
            count,
            feed_forward,
            ..
        } = *experts;
        let name = |part: &str| format!("{base}.{part}");
        let [shares, chosen] = self.add_router(experts, base, from)?;
        let wide = [count, feed_forward, hidden];
        let gate = self.add_routed_products(&name("experts.gate_proj"), wide, [from, &chosen])?;
        let open = self.nodes.add("Swish", &[&gate], &name("open"), &[]);
        let up = self.add_routed_products(&name("experts.up_proj"), wide, [from, &chosen])?;
        let gated = self.nodes.add("Mul", &[&open, &up], &name("gated"), &[]);
        let narrow = [count, hidden, feed_forward];
        let made =
            self.add_routed_products(&name("experts.down_proj"), narrow, [&gated, &chosen])?;
        let weighed = self
            .nodes
            .add("Mul", &[&made, &shares], &name("weighed"), &[]);
        let sum = self.nodes.sum(&weighed, -2, false, &name("routed"));
        match experts.shared {
            Some(width) => {
                let shared = self.add_shared_expert(base, width, from)?;
                Ok(self.nodes.add("Add", &[&sum, &shared], base, &[]))
            }
            None => Ok(sum),
        }
    }

    /// Adds the product of each row with the matrices of its experts, which are a stack of `sizes`.
    fn add_routed_products(
        &mut self,
        name: &str,
        sizes: [usize; 3],
        [from, chosen]: [&str; 2],
    ) -> Result<String, WeightError> {
        let stack = self.nodes.stack(&format!("{name}.weight"), sizes)?;
        Ok(self.nodes.add_routed_products([from, &stack, chosen], name))
    }

    /// Adds the router: returns the weights of each row's experts, `[1, sequence, used, 1]`, and
    /// the experts' indices, `[1, sequence, used]`.
    fn add_router(
        &mut self,
        experts: &Experts,
        base: &str,
        from: &str,
    ) -> Result<[String; 2], WeightError> {
        let Experts { count, used, .. } = *experts;
        let name = |part: &str| format!("{base}.{part}");
        let sizes = [count, self.config.hidden];
        let router = self.linear(&name("gate"), sizes, from, false)?;
        let axis = [("axis", -1)];
        let shares = self
            .nodes
            .add("Softmax", &[&router], &name("shares"), &axis);
        let [mut largest, chosen] = self.nodes.add_top_k(&shares, used, &name("chosen"));
        if experts.is_normalised {
            let sum = self.nodes.sum(&largest, -1, true, &name("chosen.sum"));
            let whole = name("chosen.whole");
            largest = self.nodes.add("Div", &[&largest, &sum], &whole, &[]);
        }
        let column = self
            .nodes
            .split(&largest, [used, 1], &name("chosen.column"));
        Ok([column, chosen])
    }

    fn add_shared_expert(
        &mut self,
        base: &str,
        width: usize,
        from: &str,
    ) -> Result<String, WeightError> {
        let name = format!("{base}.shared_expert");
        let made = self.add_gated_product(&name, width, from)?;
        let gate = format!("{name}_gate");
        let number = self.linear(&gate, [1, self.config.hidden], from, false)?;
        let share = self
            .nodes
            .add("Sigmoid", &[&number], &format!("{gate}.share"), &[]);
        Ok(self
            .nodes
            .add("Mul", &[&made, &share], &format!("{name}.part"), &[]))
    }
}
