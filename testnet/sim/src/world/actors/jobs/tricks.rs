//! What some buyers do to their providers.

use souk_market::{Command, Lease};

use super::buyer::BuyerAsked;
use crate::world::World;
use crate::world::actors::Role;

/// What a buyer does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trick {
    None,
    /// What it signs reaches nobody.
    NeverSigns,
    /// The same, and it disputes whatever its providers note.
    Disputes,
    /// Where its process ends nobody starts it again.
    Vanishes,
}

impl World {
    pub(super) fn never_signs(&self, actor: usize) -> bool {
        self.has_trick(actor, Trick::NeverSigns) || self.has_trick(actor, Trick::Disputes)
    }

    pub(super) fn has_trick(&self, actor: usize, trick: Trick) -> bool {
        matches!(&self.actors.list[actor].role, Role::Buyer(buyer) if buyer.trick == trick)
    }

    /// What its providers noted is disputed, whatever they did.
    pub(super) fn dispute_all(&mut self, actor: usize, leases: &[Lease]) {
        let noted = leases.iter().filter(|lease| lease.note.is_some());
        for lease in noted.map(|lease| lease.id) {
            self.counts.disputes_false += 1;
            let command = Command::DisputeNote { lease };
            self.carry_for_buyer(actor, BuyerAsked::FalseDispute, command);
        }
    }
}
