//! The arguments of `souk audit`, which replays a validator's log, or checks that bought answers
//! come from the model that the provider named.

use std::path::PathBuf;

use clap::{Args, Subcommand};

#[cfg(feature = "generate")]
use super::generate::positions;

/// What to audit: a validator's log, or the texts that this folder's account bought.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct AuditArgs {
    #[command(subcommand)]
    pub command: Option<AuditCommand>,
    /// The folder of a stopped validator, such as souk-testnet/validator-1: replay its log and
    /// compare every digest that it recorded.
    #[arg(required = true)]
    pub folder: Option<PathBuf>,
}

/// Commands on audits of texts.
#[derive(Debug, Subcommand)]
pub enum AuditCommand {
    /// Read the answers that `souk openai --keep-transcripts` kept with a copy of the model, and
    /// say for each provider whether that model gave them. It buys nothing, and no provider sees
    /// it.
    #[cfg(feature = "generate")]
    Run(AuditRunArgs),
    /// List the audits of the texts that this folder's account bought, the newest first.
    List,
    /// Forget an audit and its evidence: `souk openai` buys again from a provider that it left for
    /// this one.
    Forget {
        /// The id of the audit in `souk audit list`.
        id: String,
    },
    /// Check the evidence of an audit offline: the provider's signatures, and with a copy of the
    /// model the readings and the verdict.
    #[cfg(feature = "generate")]
    Verify {
        /// The evidence that `souk audit run` wrote.
        file: PathBuf,
        #[command(flatten)]
        reference: ReferenceArgs,
    },
}

/// The audit to make.
#[cfg(feature = "generate")]
#[derive(Debug, Args)]
pub struct AuditRunArgs {
    /// The model's name in `souk model list`.
    pub model: String,
    #[command(flatten)]
    pub reference: ReferenceArgs,
    /// Read only the newest so many transcripts.
    #[arg(long, value_name = "TABS", value_parser = clap::value_parser!(u32).range(1..))]
    pub last: Option<u32>,
    /// Leave the providers that do not fit even if no provider fits. Without it, souk takes the
    /// reference for the cause then, and `souk openai` buys from them as before.
    #[arg(long)]
    pub leave: bool,
}

/// The model to read with.
#[cfg(feature = "generate")]
#[derive(Debug, Args)]
pub struct ReferenceArgs {
    /// Your copy of the model, with weights in f32, f16 or bf16: a folder in Hugging Face's layout,
    /// a GGUF file, or `bundled`.
    #[arg(long, value_name = "MODEL")]
    pub reference: PathBuf,
    /// The most positions of a conversation and its answer; by default as many as the model was
    /// made for, and at most 4096.
    #[arg(long, value_name = "POSITIONS", value_parser = positions)]
    pub context: Option<usize>,
    /// The number of threads of this machine; by default one per core.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub threads: Option<u32>,
}
