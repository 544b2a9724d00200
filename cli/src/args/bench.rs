//! The arguments of `souk bench …`.

use std::path::PathBuf;

use clap::{Subcommand, ValueEnum};

use super::Backend;

/// What to measure.
#[derive(Debug, Subcommand)]
pub enum Bench {
    /// Run the ONNX project's operator tests, one folder a case.
    Conformance {
        /// The folder of cases.
        folder: PathBuf,
        /// What runs them.
        #[arg(long, value_enum, default_value_t = Backend::Cpu)]
        backend: Backend,
        /// A part of the GPU's name, where there are several.
        #[arg(long, default_value = "")]
        device: String,
    },
    /// Drive the bare book and the full exchange with a flow of orders.
    Market {
        /// a: deep, 100,000 orders rest; b: hot, most operations move an order.
        #[arg(long, value_enum, default_value_t = FlowName::A)]
        flow: FlowName,
        /// How many operations.
        #[arg(long, default_value_t = 1_000_000)]
        operations: usize,
    },
    /// Plan published scheduling instances.
    Plan {
        /// The instances, .json.gz.
        file: PathBuf,
        /// The planner; a wrong name lists them.
        #[arg(long, default_value = "auto")]
        planner: String,
        /// Time for each instance, in milliseconds.
        #[arg(long, default_value_t = 10)]
        budget_ms: u64,
        /// Where the schedules go, one line an instance.
        #[arg(long, default_value = "schedules.jsonl")]
        out: PathBuf,
    },
    /// Divide published graphs over accelerators for throughput.
    Partition {
        /// The graphs, .json.gz.
        file: PathBuf,
        /// Where the placements go, one line a graph.
        #[arg(long, default_value = "placements.jsonl")]
        out: PathBuf,
    },
    /// Run empty and small tasks on workers of this machine: what the executor costs for each.
    Tasks {
        /// Workers.
        #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=64))]
        devices: u8,
    },
    /// Share single operators between two unlike devices, beside the best shares an exhaustive
    /// search finds.
    Split(MachineArgs),
    /// Run models on mixes of unlike devices, beside the best single device and the plan.
    Mixes {
        /// The devices of this machine.
        #[command(flatten)]
        machine: MachineArgs,
        /// A model to run beside the bundled ones.
        #[command(flatten)]
        model: ModelArgs,
    },
    /// Run a model on the CPU bare and through the scheduler, in turn.
    Overhead {
        /// The model.
        #[command(flatten)]
        model: ModelArgs,
        /// Threads of the CPU; 0 for all.
        #[arg(long, default_value_t = 0)]
        threads: u32,
        /// Runs of each.
        #[arg(long, default_value_t = 60)]
        rounds: usize,
    },
    /// Replicate commands over processes of their own and measure.
    Consensus(ConsensusArgs),
    /// The device in another process of `souk bench tasks`.
    #[command(hide = true)]
    Serve,
    /// One replica of `souk bench consensus`.
    #[command(hide = true)]
    Node(BenchNodeArgs),
}

/// Devices of this machine beside the emulated ones.
#[derive(Debug, clap::Args)]
pub struct MachineArgs {
    /// Threads of the CPU; 0 for all, which a software GPU then competes with.
    #[arg(long, default_value_t = 1)]
    pub threads: u32,
    /// A part of the name of a GPU that runs beside the CPU, such as llvmpipe.
    #[arg(long)]
    pub gpu: Option<String>,
    /// Leave the emulated devices out.
    #[arg(long)]
    pub real_only: bool,
}

/// A model and the sizes of its inputs.
#[derive(Debug, clap::Args)]
pub struct ModelArgs {
    /// The model, .onnx with its weights inside.
    #[arg(long)]
    pub model: Option<PathBuf>,
    /// Sizes of the dimensions it leaves open, input by input.
    #[arg(long, value_delimiter = ',')]
    pub sizes: Vec<usize>,
}

/// What to replicate.
#[derive(Debug, clap::Args)]
pub struct ConsensusArgs {
    /// Replicas.
    #[arg(long, default_value_t = 3)]
    pub nodes: u64,
    /// Clients, each waiting for its answer before it asks again.
    #[arg(long, default_value_t = 64)]
    pub clients: u64,
    /// Bytes of a command.
    #[arg(long, default_value_t = 256)]
    pub size: usize,
    /// How long to measure, in seconds.
    #[arg(long, default_value_t = 10)]
    pub seconds: u64,
    /// Who signs what: none, each or batch64.
    #[arg(long, default_value = "none")]
    pub signed: String,
    /// Leave out verifying behind what other replicas took in, to see what it costs.
    #[arg(long)]
    pub no_behind: bool,
    /// Kill the leader so many times instead, and measure how long the next commit takes.
    #[arg(long, value_name = "N")]
    pub kills: Option<u64>,
    /// Replicate so many commands instead, then kill validators, start them again, and measure how
    /// long they take to serve.
    #[arg(long, value_name = "N", conflicts_with = "kills")]
    pub restart: Option<u64>,
    /// A folder on the disk to measure.
    #[arg(long, default_value = ".", value_name = "DIR")]
    pub disk: PathBuf,
}

/// One replica of a benchmark.
#[derive(Debug, clap::Args)]
pub struct BenchNodeArgs {
    /// Its id, from 1.
    #[arg(long)]
    pub id: u64,
    /// The ports of all replicas.
    #[arg(long, value_delimiter = ',')]
    pub ports: Vec<u16>,
    /// Who signs what.
    #[arg(long)]
    pub signed: String,
    /// Do not verify behind what other replicas took in.
    #[arg(long)]
    pub no_behind: bool,
}

/// A flow of orders.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FlowName {
    /// Deep.
    A,
    /// Hot.
    B,
}
