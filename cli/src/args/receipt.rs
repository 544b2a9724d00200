//! The arguments of `souk receipt …`. A receipt is the statement of a run, its device and its price
//! that buyer and provider sign.

use std::path::PathBuf;

use clap::Subcommand;

/// Commands on receipts.
#[derive(Debug, Subcommand)]
pub enum ReceiptCommand {
    /// Check the arithmetic and both signatures of a receipt; no node needs to run.
    Verify {
        /// The receipt that `souk submit` wrote.
        file: PathBuf,
        /// Also prove that the market settled it: validators certify a history that contains the
        /// settlement. You need the market's folder, and no account.
        #[arg(long)]
        certified: bool,
        /// Write that proof to this file, which anyone can check offline.
        #[arg(short = 'o', long = "out", requires = "certified", value_name = "FILE")]
        proof_output: Option<PathBuf>,
        /// Check such a proof offline, with the market's genesis alone.
        #[arg(long, conflicts_with = "certified", value_name = "FILE")]
        proof: Option<PathBuf>,
    },
    /// Check that a job's receipts lead from its inputs to its outputs, and add up what they cost;
    /// no node needs to run.
    Chain(ChainArgs),
    /// Prove a fault with two receipts of one lease, both signed by its provider, that name
    /// different outputs for the same graph and inputs. The provider loses its stake, from which
    /// the buyer gets the cost of the lease, at most half. Any account can prove a fault, once.
    Prove {
        /// The first receipt.
        first: PathBuf,
        /// The second receipt; it needs no signature of the buyer.
        second: PathBuf,
    },
}

/// The files of a job to check together.
#[derive(Debug, clap::Args)]
pub struct ChainArgs {
    /// All receipts of the job, which `souk submit` wrote.
    #[arg(required = true, value_name = "RECEIPT")]
    pub receipts: Vec<PathBuf>,
    /// An input of the job, as .npy or .safetensors. Give all of them, each with its own --input.
    #[arg(short = 'i', long, value_name = "FILE")]
    pub input: Vec<PathBuf>,
    /// An output that one of the receipts must name.
    #[arg(long, value_name = "FILE")]
    pub result: Vec<PathBuf>,
    /// A proof that the market settled one of the receipts, made with `souk receipt verify
    /// --certified -o`; give one for each. You need the market's genesis.
    #[arg(long, value_name = "FILE")]
    pub proof: Vec<PathBuf>,
}
