//! Recognises the nodes of a mixture of experts (Softmax, TopK, ReduceSum, Div, the routed products
//! and their weighted sum), and adds steps for them to a decoder's plan. `None` means that the
//! pattern is unknown, and the reader gives up the whole plan. Some nodes add no step: they return
//! a `Meaning`, which a later node turns into one. A row of a choice has k shares and then the
//! indices of k experts, so its width is 2k. A share is the weight of an expert in the sum.

use souk_onnx::NodeProto;

use super::super::super::matrix::MatrixSource;
use super::super::{Action, ChoicePart, ExpertStack, Meaning, RowsId, View};
use super::Reader;

impl Reader<'_> {
    /// Splits a weight into one matrix for each expert, and adds them to the plan once.
    pub(super) fn intern_stack(
        &mut self,
        name: &str,
        given: impl FnOnce() -> MatrixSource,
    ) -> Option<ExpertStack> {
        if let Some(known) = self.stacks.get(name) {
            return Some(*known);
        }
        let experts = given()
            .split_experts()
            .filter(|experts| !experts.is_empty())?;
        let stack = ExpertStack {
            matrix: self.matrices.len(),
            count: experts.len(),
        };
        self.matrices.extend(experts);
        self.stacks.insert(name.to_owned(), stack);
        Some(stack)
    }

    /// Returns the stack of a weight of 32-bit floats, or the stack that a node made of a weight.
    fn stack_of(&mut self, name: &str) -> Option<ExpertStack> {
        match self.meaning_of(name) {
            Some(Meaning::Experts(stack)) => Some(stack),
            Some(_) => None,
            None => {
                let tensor = self.graph.weights.get(name)?;
                let is_floats = tensor.dtype() == souk_memory::DType::F32;
                let stack = self.intern_stack(name, || MatrixSource::Floats(tensor.clone()));
                stack.filter(|_| is_floats)
            }
        }
    }

    pub(super) fn read_softmax(&mut self, node: &NodeProto) -> Option<Meaning> {
        let value = self.flat_input(node, 0)?;
        let is_last = matches!(node.int("axis"), None | Some(-1 | 2));
        let (width, rows) = (self.widths[value], self.counts[value]);
        let made = self.add_step(Action::Softmax, vec![value], width, rows);
        is_last.then_some(Meaning::Rows(made, View::Flat))
    }

    /// Reads a TopK: both of its outputs, shares and experts, are parts of one value.
    pub(super) fn read_top_k(&mut self, node: &NodeProto) -> Option<()> {
        let value = self.flat_input(node, 0)?;
        let count: Vec<i64> = self.weight_input(node, 1)?.to_vec().ok()?;
        let &[count] = &count[..] else {
            return None;
        };
        let count = usize::try_from(count).ok()?;
        let [shares, experts] = &node.output[..] else {
            return None;
        };
        let fits = matches!(node.int("axis"), None | Some(-1 | 2))
            && matches!(node.int("largest"), None | Some(1))
            && (1..=self.widths[value]).contains(&count);
        if !fits {
            return None;
        }
        let action = Action::Choose {
            is_normalised: false,
        };
        let made = self.add_step(action, vec![value], 2 * count, self.counts[value]);
        let parts = [(shares, ChoicePart::Shares), (experts, ChoicePart::Experts)];
        for (name, part) in parts {
            self.names.insert(name.clone(), Meaning::Choice(made, part));
        }
        Some(())
    }

    /// Reads a sum of shares, by which a Div then divides them, or of the weighted products, which
    /// adds a step.
    pub(super) fn read_sum(&mut self, node: &NodeProto) -> Option<Meaning> {
        let axes: Vec<i64> = self.weight_input(node, 1)?.to_vec().ok()?;
        let keeps = node.int("keepdims").unwrap_or(1) != 0;
        match (self.meaning_of(node.input_name(0)?)?, &axes[..], keeps) {
            (Meaning::Choice(choices, ChoicePart::Shares), [-1 | 2], true) => {
                Some(Meaning::Choice(choices, ChoicePart::Sum))
            }
            (Meaning::Weighted(value, choices), [-2 | 2], false) => {
                let width = self.widths[value] / self.choice_count(choices);
                let reads = vec![value, choices];
                let made = self.add_step(Action::Mix, reads, width, self.counts[value]);
                Some(Meaning::Rows(made, View::Flat))
            }
            _ => None,
        }
    }

    /// Reads the division of shares by their sum, if no other node reads them: it changes the step
    /// that chose them, and adds none.
    pub(super) fn read_div(&mut self, node: &NodeProto) -> Option<Meaning> {
        let part = |index: usize| match self.meaning_of(node.input_name(index)?)? {
            Meaning::Choice(choices, part) => Some((choices, part)),
            _ => None,
        };
        let ((choices, shares), (of, sum)) = (part(0)?, part(1)?);
        let read_twice = self.uses.get(node.input_name(0)?) == Some(&2);
        let fits = choices == of
            && (shares, sum) == (ChoicePart::Shares, ChoicePart::Sum)
            && read_twice
            && self.is_read_once(node, 1);
        match &mut self.steps[self.makers[choices]].action {
            Action::Choose { is_normalised } if fits && !*is_normalised => *is_normalised = true,
            _ => return None,
        }
        Some(Meaning::Choice(choices, ChoicePart::Shares))
    }

    /// Returns the number of experts that a choice names for each row.
    fn choice_count(&self, choices: RowsId) -> usize {
        self.widths[choices] / 2
    }

    /// Reads the reshape of shares to one more axis, which adds no step.
    pub(super) fn read_share_reshape(
        &self,
        node: &NodeProto,
        choices: RowsId,
        part: ChoicePart,
    ) -> Option<Meaning> {
        let sizes: Vec<i64> = self.weight_input(node, 1)?.to_vec().ok()?;
        let count = (self.choice_count(choices)) as i64;
        let fits = part == ChoicePart::Shares
            && sizes == [0, 0, count, 1]
            && matches!(node.int("allowzero"), None | Some(0));
        fits.then_some(Meaning::Choice(choices, ChoicePart::Column))
    }

    pub(super) fn read_routed_product(&mut self, node: &NodeProto) -> Option<Meaning> {
        let (value, view) = self.rows_input(node, 0)?;
        let experts = self.stack_of(node.input_name(1)?)?;
        let Meaning::Choice(choices, ChoicePart::Experts) = self.meaning_of(node.input_name(2)?)?
        else {
            return None;
        };
        let count = self.choice_count(choices);
        let parts = match view {
            View::Flat => 1,
            View::Split { heads } if heads == count => count,
            _ => return None,
        };
        let matrix = &self.matrices[experts.matrix];
        let ([columns, depth], is_blocks) = (matrix.valid_dims()?, matrix.kind()?.is_blocks());
        // The choice must be among as many experts as there are matrices.
        let chosen = self.steps[self.makers[choices]].reads[0];
        let fits = self.widths[value] == parts * depth
            && self.widths[chosen] == experts.count
            && self.counts[value] == self.counts[choices];
        if !fits {
            return None;
        }
        let read = match is_blocks {
            true => self.quantise_rows(value, parts),
            false => value,
        };
        let action = Action::Route {
            experts,
            has_parts: view != View::Flat,
        };
        let (reads, rows) = (vec![read, choices], self.counts[value]);
        let made = self.add_step(action, reads, count * columns, rows);
        Some(Meaning::Rows(made, View::Split { heads: count }))
    }

    pub(super) fn read_sigmoid(&self, node: &NodeProto) -> Option<Meaning> {
        let value = self.flat_input(node, 0)?;
        (self.widths[value] == 1).then_some(Meaning::Logistic(value))
    }

    /// Reads the product of parts and their shares, which adds no step, or of rows and one gate for
    /// each.
    pub(super) fn read_weighting(&mut self, left: Meaning, right: Meaning) -> Option<Meaning> {
        let (value, view, other) = match (left, right) {
            (Meaning::Rows(value, view), other) | (other, Meaning::Rows(value, view)) => {
                (value, view, other)
            }
            _ => return None,
        };
        let alike = |other: RowsId| self.counts[value] == self.counts[other];
        match (view, other) {
            (View::Split { heads }, Meaning::Choice(choices, ChoicePart::Column)) => {
                let fits = self.widths[choices] == 2 * heads && alike(choices);
                fits.then_some(Meaning::Weighted(value, choices))
            }
            (View::Flat, Meaning::Logistic(share)) if alike(share) => {
                let (width, rows) = (self.widths[value], self.counts[value]);
                let made = self.add_step(Action::Portion, vec![value, share], width, rows);
                Some(Meaning::Rows(made, View::Flat))
            }
            _ => None,
        }
    }
}
