//! The arguments of `souk dispute …`: accuse the provider of a receipt of a wrong output, and show
//! disputes and the validators' verdicts.

use std::path::PathBuf;

use clap::Subcommand;

/// Commands on disputes.
#[derive(Debug, Subcommand)]
pub enum Dispute {
    /// Accuse the provider of a receipt of a wrong output. The validators fetch the graph and the
    /// inputs from this command and compute them again, so it stays until they have decided. If the
    /// provider is guilty, it loses its stake and you get the lease's cost, at most half the stake;
    /// if not, it gets your bond. So this machine computes the work first, and the command refuses
    /// if the provider's outputs are right.
    Open {
        /// The receipt that `souk submit --exact` wrote; the job must be one of --dir.
        receipt: PathBuf,
        /// Accuse without computing the work on this machine first.
        #[arg(long)]
        unchecked: bool,
    },
    /// Compute the work of a receipt again on this machine, as a validator would, and say whether
    /// the provider's outputs are right. This sends nothing and costs nothing.
    Check {
        /// The receipt that `souk submit --exact` wrote; the job must be one of --dir.
        receipt: PathBuf,
    },
    /// List the open disputes of the market, and the last closed ones.
    List,
    /// Show a dispute: what it is about, and each validator's verdict.
    Show {
        /// The dispute's number.
        dispute: u64,
    },
}
