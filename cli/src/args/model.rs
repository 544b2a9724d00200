//! The arguments of `souk model`.

use std::path::PathBuf;

use clap::Subcommand;

/// Commands on models.
#[derive(Debug, Subcommand)]
pub enum Model {
    /// List the models that providers sell by the token, with their prices for a million tokens.
    List,
    /// Show every offer of a model.
    Show {
        /// The model, as `souk model list` shows it.
        model: String,
    },
    /// Count the nodes, weights, operations and bytes of a model.
    Inspect {
        /// The ONNX model.
        file: PathBuf,
        /// The size of a symbolic dimension: NAME=N. Other dimensions count as 1.
        #[arg(long, value_name = "NAME=N")]
        symbol: Vec<String>,
    },
    /// Convert a language model into a folder with an ONNX decoder, its weights, tokeniser and
    /// template.
    #[cfg(feature = "generate")]
    Import {
        /// A folder in the format of Hugging Face's tools, or a GGUF file.
        from: PathBuf,
        /// The output folder; souk creates it if necessary.
        to: PathBuf,
        /// The number of positions of a text; by default as many as the model was made for, and at
        /// most 4096.
        #[arg(long, value_name = "POSITIONS", value_parser = super::generate::positions)]
        context: Option<usize>,
    },
    /// Add an adapter to the weights of a language model, and write the result as another model.
    #[cfg(feature = "generate")]
    Merge {
        /// A folder in the format of Hugging Face's tools, or `bundled`.
        from: PathBuf,
        /// The folder of the adapter, which `souk train` or PEFT wrote.
        #[arg(long, value_name = "FOLDER")]
        adapter: PathBuf,
        /// The output folder, in the same format; souk creates it if necessary.
        #[arg(short, long, value_name = "FOLDER")]
        out: PathBuf,
    },
}
