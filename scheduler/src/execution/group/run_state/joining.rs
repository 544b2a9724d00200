//! Joins the parts of a value, which several devices computed, in host memory.

use bytes::Bytes;
use souk_memory::location::Location;
use souk_memory::{Shape, Tensor};

use super::RunState;
use crate::execution::group::execution_plan::Join;
use crate::execution::group::fragment::Fragment;
use crate::execution::group::memories::MemoryError;
use crate::execution::lock::lock;
use crate::execution::timeline::SpanKind;
use crate::execution::worker_pool::Call;

impl RunState {
    /// Joins a value if a fragment produced its last part. Copies each byte once.
    pub(super) fn join_value(&self, call: Call, fragment: &Fragment) -> Result<(), MemoryError> {
        let of_piece = |join: &&Join| {
            let mut made = fragment.makes.iter();
            made.any(|made| join.parts.contains(&made.held))
        };
        let Some(join) = self.plan.joins.iter().find(of_piece) else {
            return Ok(());
        };
        // The fragment that ends last takes all parts.
        let Some(parts) = lock(&self.state).values.take_all(&join.parts) else {
            return Ok(());
        };
        let begin = (self.clock)();
        let dtype = parts[0].dtype;
        let mut tensors = Vec::with_capacity(parts.len());
        for part in &parts {
            // The host can reach every part.
            tensors.push(self.on_host(part)?);
        }
        let bytes = join_parts(&tensors, join.pieces);
        drop(tensors);
        for part in parts {
            self.release_tensor(&part)?;
        }
        let copied = bytes.len() as u64;
        let shape = Shape::new(join.dims.clone()).expect("the graph knows it");
        let whole = Tensor::new(dtype, shape, bytes).expect("the parts make up the whole");
        let adopted =
            self.memories
                .adopt_host(&join.value, &whole, Location::Host, Some(&self.log));
        self.hold_value(adopted?)?;
        let end = (self.clock)();
        let mut state = lock(&self.state);
        state.joined_bytes += copied;
        state.partitioned_tasks += 1;
        match &mut state.modelled {
            Some(modelled) => modelled.record_join(&self.plan, join),
            None => {
                let name = format!("joining {}", join.value);
                let kind = SpanKind::TransferOut;
                self.log
                    .record_activity(call.device, &name, kind, [begin, end]);
            }
        }
        Ok(())
    }
}

/// Joins parts: takes one of `pieces` pieces of each part in turn.
fn join_parts(parts: &[Tensor], pieces: usize) -> Bytes {
    let length = parts.iter().map(|part| part.bytes().len()).sum();
    let mut whole = Vec::with_capacity(length);
    for piece in 0..pieces {
        for part in parts.iter().map(Tensor::bytes) {
            let own = part.len() / pieces;
            whole.extend_from_slice(&part[piece * own..(piece + 1) * own]);
        }
    }
    Bytes::from(whole)
}
