//! The arguments of `souk demo`.

/// Options of the demo.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub struct DemoArgs {
    /// Ask the language model that comes with souk for the meaning of words, cut over two
    /// providers.
    #[cfg(feature = "generate")]
    #[arg(long)]
    pub chat: bool,
}
