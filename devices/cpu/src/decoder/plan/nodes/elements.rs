//! Reads the nodes that compute each number of a row on its own (activations, scaling, gates, sums)
//! into steps of a decoder's plan, and fuses them with the step before where one pass can do both.

use souk_onnx::NodeProto;

use super::super::{Action, Curve, DecoderStep, Meaning, RowsId, View};
use super::Reader;

impl Reader<'_> {
    pub(super) fn read_swish(&self, node: &NodeProto) -> Option<Meaning> {
        let (value, view) = self.rows_input(node, 0)?;
        let is_plain = matches!(node.float("alpha"), None | Some(1.0));
        is_plain.then_some(Meaning::Open(value, Curve::Logistic, view))
    }

    pub(super) fn read_gelu(&self, node: &NodeProto) -> Option<Meaning> {
        let (value, view) = self.rows_input(node, 0)?;
        let is_by_tanh = node.string("approximate") == Some("tanh");
        is_by_tanh.then_some(Meaning::Open(value, Curve::Gauss, view))
    }

    /// Scaling, the tangent and scaling together are one step.
    pub(super) fn read_tanh(&mut self, node: &NodeProto) -> Option<Meaning> {
        let value = self.flat_input(node, 0)?;
        if !self.is_read_once(node, 0) {
            return None;
        }
        let step = &mut self.steps[self.makers[value]];
        let Action::Scale { factor } = step.action else {
            return None;
        };
        step.action = Action::Bend {
            inner: factor,
            outer: 1.0,
        };
        Some(Meaning::Rows(value, View::Flat))
    }

    pub(super) fn read_mul(&mut self, node: &NodeProto) -> Option<Meaning> {
        match self.float_weights(node, 1).as_deref() {
            Some(&[factor]) => self.scale_rows(node, factor),
            Some(_) => None,
            None => self.gate_rows(node),
        }
    }

    fn scale_rows(&mut self, node: &NodeProto, factor: f32) -> Option<Meaning> {
        let value = self.flat_input(node, 0)?;
        if self.is_read_once(node, 0)
            && let Action::Bend { outer, .. } = &mut self.steps[self.makers[value]].action
        {
            *outer *= factor;
            return Some(Meaning::Rows(value, View::Flat));
        }
        let (width, rows) = (self.widths[value], self.counts[value]);
        let made = self.add_step(Action::Scale { factor }, vec![value], width, rows);
        Some(Meaning::Rows(made, View::Flat))
    }

    fn gate_rows(&mut self, node: &NodeProto) -> Option<Meaning> {
        let (left, right) = (
            self.meaning_of(node.input_name(0)?)?,
            self.meaning_of(node.input_name(1)?)?,
        );
        let ((gate, curve, open), (up, view)) = match (left, right) {
            (Meaning::Open(gate, curve, open), Meaning::Rows(up, view))
            | (Meaning::Rows(up, view), Meaning::Open(gate, curve, open)) => {
                ((gate, curve, open), (up, view))
            }
            (left, right) => return self.read_weighting(left, right),
        };
        let alike = self.widths[gate] == self.widths[up]
            && self.counts[gate] == self.counts[up]
            && open == view;
        if !alike {
            return None;
        }
        let (width, rows) = (self.widths[gate], self.counts[gate]);
        let made = self.add_step(Action::Gate { curve }, vec![gate, up], width, rows);
        Some(Meaning::Rows(made, view))
    }

    pub(super) fn read_add(&mut self, node: &NodeProto) -> Option<Meaning> {
        let left = self.flat_input(node, 0)?;
        if let Some(bias) = self.float_weights(node, 1) {
            return self.add_bias(node, left, bias);
        }
        let right = self.flat_input(node, 1)?;
        let alike =
            self.widths[left] == self.widths[right] && self.counts[left] == self.counts[right];
        if !alike {
            return None;
        }
        if self.is_read_once(node, 1)
            && let DecoderStep {
                action: Action::Product { .. },
                reads,
                ..
            } = &mut self.steps[self.makers[right]]
            && reads.len() == 1
            && left != right
            && left < right
        {
            reads.push(left);
            return Some(Meaning::Rows(right, View::Flat));
        }
        let (width, rows) = (self.widths[left], self.counts[left]);
        let made = self.add_step(Action::Add, vec![left, right], width, rows);
        Some(Meaning::Rows(made, View::Flat))
    }

    /// A bias is added by the product before it.
    fn add_bias(&mut self, node: &NodeProto, value: RowsId, summands: Vec<f32>) -> Option<Meaning> {
        let is_one = self.weight_input(node, 1)?.dims() == [self.widths[value]];
        let read_once = self.is_read_once(node, 0);
        match &mut self.steps[self.makers[value]] {
            DecoderStep {
                action: Action::Product { bias, .. },
                reads,
                ..
            } if is_one && read_once && bias.is_empty() && reads.len() == 1 => {
                *bias = summands;
                Some(Meaning::Rows(value, View::Flat))
            }
            _ => None,
        }
    }
}
