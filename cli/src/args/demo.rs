//! The arguments of `souk demo`.

/// What the demo shows.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub struct DemoArgs {
    /// Ask the language model that comes with souk what words mean, cut over two providers.
    #[cfg(feature = "generate")]
    #[arg(long)]
    pub chat: bool,
}
