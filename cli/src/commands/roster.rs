//! Counts the validators for commands that check saved proofs without a network: by the operators'
//! orders that the proof carries, and those that the folder has seen. Commands that ask the market
//! keep the orders in the folder, so that whoever was removed counts no more there.

use std::fmt::{self, Display, Formatter};
use std::path::Path;

use serde_json::{Value, json};
use souk_folder::market_file::MarketFile;
use souk_node::client::history::{
    CosigningRoster, CountedRoster, ROSTER_FILE, RosterFault, RosterProof, StoredHistory,
    read_orders,
};
use souk_node::market::{Genesis, MarketId};

use crate::failure::{Failure, Kind};
use crate::folder::from_config;
use crate::show;

/// What a folder knows about the validators of its market.
pub struct KnownRoster {
    /// The beginning of the market.
    pub genesis: Genesis,
    /// The orders that the folder has seen.
    orders: RosterProof,
}

impl KnownRoster {
    /// Reads what a folder knows.
    pub fn read(folder: &Path) -> Result<Self, Failure> {
        let market = MarketFile::read_nearest(folder).map_err(from_config)?;
        Ok(Self {
            genesis: market.genesis,
            orders: read_seen(folder)?,
        })
    }

    /// Returns what somebody knows who has only the genesis.
    pub fn of_genesis(genesis: &Genesis) -> Self {
        Self {
            genesis: genesis.clone(),
            orders: RosterProof::default(),
        }
    }

    /// Checks a proof with `verify` by the roster of the orders that it carries, then by that of
    /// the orders in the folder. A proof without orders is of the founders' roster. Returns the
    /// result, and the roster by which the proof is valid.
    pub fn check_proof<T, E>(
        &self,
        carried: &[u8],
        verify: impl Fn(MarketId, &CosigningRoster) -> Result<T, E>,
    ) -> Result<(T, CountedRoster), ProofRefusal<E>> {
        let carried = RosterProof::decode(carried)?;
        let counted = carried.count_validators(&self.genesis, &self.orders)?;
        let market = self.genesis.market_id();
        let refusal = match verify(market, &counted.roster) {
            Ok(found) => return Ok((found, counted)),
            Err(refusal) => ProofRefusal::Proof(refusal),
        };
        if let Some(own) = self.count_own()
            && let Ok(found) = verify(market, &own.roster)
        {
            return Ok((found, own));
        }
        warn_of_removed(&counted);
        Err(refusal)
    }

    /// Returns the roster of the orders in the folder; none if it has seen none.
    pub fn count_own(&self) -> Option<CountedRoster> {
        let own = self.orders.without_former_admissions();
        let counted = own.count_validators(&self.genesis, &self.orders).ok();
        counted.filter(|_| !own.is_empty())
    }

    /// Returns the rosters of the orders that folders of heads carry, then that of this folder, and
    /// the founders. It says which folder's orders count for nothing, and leaves them out: whoever
    /// wrote a folder must not keep others from judging its heads.
    pub fn count_folders(&self, stored: &StoredHistory) -> Vec<CountedRoster> {
        let mut found = Vec::new();
        for (folder, orders) in &stored.orders {
            let counted = orders.as_ref().map_err(ToString::to_string);
            let counted = counted.and_then(|orders| {
                let orders = orders.without_former_admissions();
                let counted = orders.count_validators(&self.genesis, &self.orders);
                counted.map_err(|fault| fault.to_string())
            });
            match counted {
                Ok(counted) => found.push(counted),
                Err(fault) => show::print_notice(&format!(
                    "the operators' orders in {} do not count: {fault}",
                    folder.display()
                )),
            }
        }
        found.extend(self.count_own());
        let founders = RosterProof::default();
        found.extend(founders.count_validators(&self.genesis, &self.orders));
        found
    }
}

/// Why a proof shows nothing.
#[derive(Debug)]
pub enum ProofRefusal<E> {
    /// The operators' orders in it are not a roster.
    Orders(RosterFault),
    /// The proof is not valid.
    Proof(E),
}

impl<E> From<RosterFault> for ProofRefusal<E> {
    fn from(fault: RosterFault) -> Self {
        Self::Orders(fault)
    }
}

impl<E: Display> Display for ProofRefusal<E> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Orders(fault) => fault.fmt(f),
            Self::Proof(fault) => fault.fmt(f),
        }
    }
}

/// Adds orders to those that the folder has seen. If the folder is not writable, it forgets them.
pub fn keep_orders(folder: &Path, orders: &RosterProof) -> Result<(), Failure> {
    let before = read_seen(folder)?;
    let mut seen = before.clone();
    seen.merge_orders(orders);
    if seen != before
        && let Err(error) = write_orders(folder, &seen)
    {
        tracing::debug!(%error, "the operators' orders could not be stored");
    }
    Ok(())
}

/// Writes the file of a folder with orders, unless there are none.
pub fn write_orders(folder: &Path, orders: &RosterProof) -> std::io::Result<()> {
    // Too long a file could not be read again: then those of former validators go.
    let mut orders = orders.clone();
    if !orders.fits_file() {
        orders = orders.without_former_admissions();
    }
    if orders.is_empty() || !orders.fits_file() {
        return Ok(());
    }
    // A file that is not complete never has the name.
    let path = folder.join(ROSTER_FILE);
    let new = path.with_extension("roster.new");
    std::fs::write(&new, orders.to_text())?;
    std::fs::rename(new, path)
}

fn read_seen(folder: &Path) -> Result<RosterProof, Failure> {
    read_orders(folder).map_err(|error| {
        let hint = "remove the file: commands that ask the market write it anew";
        Failure::new(Kind::Verification, error, hint)
    })
}

/// Returns the facts about a roster for `--json`.
pub fn to_json(counted: &CountedRoster) -> Value {
    json!({
        "changes": counted.changes,
        "changed": counted.changed_at.map(|at| at.0),
        "removed_since": counted.known_removed,
    })
}

/// Prints as of which change the validators were counted, unless all are founders.
pub fn print_counted(counted: &CountedRoster) {
    let changes = show::format_count(counted.changes, "change");
    if let Some(at) = counted.changed_at {
        let at = show::time_of_day(at.0);
        show::print_line(&format!(
            "validators  as of {changes} by the operators' orders, the last of {at}"
        ));
    }
    warn_of_removed(counted);
}

/// Says whose signatures do not count because the folder knows of their removal.
fn warn_of_removed(counted: &CountedRoster) {
    if counted.known_removed.is_empty() {
        return;
    }
    let ids = counted.known_removed.iter().map(u64::to_string);
    let ids: Vec<String> = ids.collect();
    show::print_notice(&format!(
        "validator {} was removed since, as this folder knows: its signature does not count",
        ids.join(", ")
    ));
}
