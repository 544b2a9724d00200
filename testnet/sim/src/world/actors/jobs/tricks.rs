//! What some buyers do to their providers.

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
}
