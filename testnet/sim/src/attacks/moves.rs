//! Lists the moves of a lease's parties in an attack: every command of the market that one of them
//! can send.
//!
//! The table below expands to a match without a wildcard. So a new command will not compile until
//! it has a row, which names the party that can send it, or the reason why it is no move in an
//! attack.

use souk_market::{Command, DeviceMicros, Lease, Millis};

/// The player of a command in an attack on one lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Player {
    /// The lease's buyer.
    Buyer,
    /// The lease's provider.
    Provider,
    /// Any holder of a receipt with both signatures; the receipts that an honest party signs are an
    /// attack of their own.
    Signed,
    /// No player: the command does not affect an open lease, for this reason.
    Nobody(&'static str),
}

/// The context of a move.
pub struct Scene<'a> {
    /// The lease in its current state.
    pub lease: &'a Lease,
    /// Usages for a note: the maximum that the rules allow, and the maximum that an honest buyer
    /// accepts.
    pub usages: [DeviceMicros; 2],
}

macro_rules! moves {
    ($($name:ident, $pattern:pat => $player:expr;)+) => {
        /// The commands of the market, by name.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum CommandKind {
            $(#[doc = stringify!($name)] $name,)+
        }

        impl CommandKind {
            /// Every command.
            pub const ALL: &[CommandKind] = &[$(CommandKind::$name),+];

            /// Returns the kind of a command.
            pub fn from_command(command: &Command) -> CommandKind {
                match command {
                    $($pattern => CommandKind::$name,)+
                }
            }

            /// Returns the command's player.
            pub fn player(self) -> Player {
                match self {
                    $(CommandKind::$name => $player,)+
                }
            }
        }
    };
}

const NOT_OF_A_LEASE: Player = Player::Nobody("no command about a lease");
const OPERATORS: Player = Player::Nobody("operators are trusted");

moves! {
    Register, Command::Register { .. } => NOT_OF_A_LEASE;
    Deposit, Command::Deposit { .. } => OPERATORS;
    Request, Command::Request { .. } => NOT_OF_A_LEASE;
    Lock, Command::Lock { .. } => OPERATORS;
    Confirm, Command::Confirm { .. } => OPERATORS;
    Refuse, Command::Refuse { .. } => NOT_OF_A_LEASE;
    Transfer, Command::Transfer { .. } => Player::Nobody("what a lease holds is in escrow");
    Collect, Command::Collect { .. } => OPERATORS;
    Freeze, Command::Freeze { .. } => OPERATORS;
    Thaw, Command::Thaw { .. } => OPERATORS;
    ChangeRules, Command::ChangeRules { .. } => OPERATORS;
    KeepRules, Command::KeepRules { .. } => OPERATORS;
    Upgrade, Command::Upgrade(_) => OPERATORS;
    PlaceAsk, Command::PlaceAsk(_) => NOT_OF_A_LEASE;
    PlaceBid, Command::PlaceBid(_) => NOT_OF_A_LEASE;
    PlaceGang, Command::PlaceGang(_) => NOT_OF_A_LEASE;
    Cancel, Command::Cancel { .. } => NOT_OF_A_LEASE;
    Amend, Command::Amend { .. } => NOT_OF_A_LEASE;
    StartWork, Command::StartWork { .. } => Player::Buyer;
    StateReady, Command::StateReady { .. } => Player::Provider;
    NoteUsage, Command::NoteUsage { .. } => Player::Provider;
    AcceptNote, Command::AcceptNote { .. } => Player::Buyer;
    Dispute, Command::Dispute { .. } => Player::Buyer;
    Settle, Command::Settle(_) => Player::Signed;
    EndLease, Command::EndLease { .. } => Player::Buyer;
    GiveUp, Command::GiveUp { .. } => Player::Provider;
    Reclaim, Command::Reclaim { .. } => Player::Provider;
    Extend, Command::Extend { .. } => Player::Buyer;
    Resell, Command::Resell { .. } => Player::Nobody("its provider is paid its own price");
    Stake, Command::Stake { .. } => NOT_OF_A_LEASE;
    Unstake, Command::Unstake { .. } => NOT_OF_A_LEASE;
    ProveFault, Command::ProveFault(_) => Player::Nobody("it takes two signatures of the guilty");
    Accuse, Command::Accuse(_) => Player::Nobody("validators decide, not the accuser");
}

/// Returns the commands of a kind that make sense in a scene.
pub fn command_instances(kind: CommandKind, scene: &Scene<'_>) -> Vec<Command> {
    let commands = make_commands(kind, scene);
    let are_of_kind = commands
        .iter()
        .all(|command| CommandKind::from_command(command) == kind);
    assert!(are_of_kind, "{kind:?} makes commands of its own kind");
    commands
}

fn make_commands(kind: CommandKind, scene: &Scene<'_>) -> Vec<Command> {
    let lease = scene.lease.id;
    match kind {
        CommandKind::StartWork => vec![Command::StartWork { lease }],
        CommandKind::StateReady => vec![Command::StateReady { lease }],
        CommandKind::NoteUsage => {
            let [most, borne] = scene.usages;
            let second = (borne < most).then_some(borne);
            let usages = [Some(most), second].into_iter().flatten();
            usages
                .map(|usage| Command::NoteUsage { lease, usage })
                .collect()
        }
        CommandKind::AcceptNote => {
            let note = scene.lease.note.map(|note| note.usage);
            let accept = note.map(|usage| Command::AcceptNote { lease, usage });
            accept.into_iter().collect()
        }
        CommandKind::Dispute => vec![Command::Dispute { lease }],
        CommandKind::EndLease => vec![Command::EndLease { lease }],
        CommandKind::GiveUp => vec![Command::GiveUp { lease }],
        CommandKind::Reclaim => vec![Command::Reclaim { lease }],
        CommandKind::Extend => {
            let by = Millis(1);
            vec![Command::Extend { lease, by }]
        }
        // Commands without a player have no instances, and receipts are an attack of their own.
        CommandKind::Settle
        | CommandKind::Register
        | CommandKind::Deposit
        | CommandKind::Request
        | CommandKind::Lock
        | CommandKind::Confirm
        | CommandKind::Refuse
        | CommandKind::Transfer
        | CommandKind::Collect
        | CommandKind::Freeze
        | CommandKind::Thaw
        | CommandKind::ChangeRules
        | CommandKind::KeepRules
        | CommandKind::Upgrade
        | CommandKind::PlaceAsk
        | CommandKind::PlaceBid
        | CommandKind::PlaceGang
        | CommandKind::Cancel
        | CommandKind::Amend
        | CommandKind::Resell
        | CommandKind::Stake
        | CommandKind::Unstake
        | CommandKind::ProveFault
        | CommandKind::Accuse => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use souk_market::LeaseId;

    use super::super::position::noted_lease;
    use super::*;

    #[test]
    fn every_command_that_a_party_plays_has_an_instance() {
        for kind in CommandKind::ALL {
            let is_played = matches!(kind.player(), Player::Buyer | Player::Provider);
            let lease = noted_lease();
            let scene = Scene {
                lease: &lease,
                usages: [DeviceMicros(2), DeviceMicros(1)],
            };
            let commands = command_instances(*kind, &scene);
            assert_eq!(!commands.is_empty(), is_played, "{kind:?}");
            assert!(
                commands
                    .iter()
                    .all(|it| CommandKind::from_command(it) == *kind)
            );
            assert_eq!(lease.id, LeaseId(1));
        }
    }
}
