//! `souk bench consensus`: measures how many commands a second a group of validators replicates,
//! and how fast it answers. Each validator is a separate process; each client waits for its answer
//! before it sends the next command.

use std::path::Path;

use crate::consensus_bench::{self as bench, Bench, ReplicaArguments, Signing};

use crate::args::{BenchNodeArgs, ConsensusArgs};
use souk_cli::failure::{Failure, Kind, Outcome};
use souk_cli::options::Output;
use souk_cli::program::program_path;
use souk_cli::show;

/// Measures throughput and latency. With `--kills` or `--restart` it measures the time to recover
/// from a killed leader, or to restart validators behind a long log.
pub async fn run(output: Output, args: &ConsensusArgs) -> Outcome {
    let scratch = tempfile::tempdir_in(&args.disk).map_err(|error| {
        let cause = format!("cannot make a folder in {}: {error}", args.disk.display());
        Failure::new(
            Kind::State,
            cause,
            "give a folder on the disk to measure with --disk",
        )
    })?;
    let measured = Bench {
        nodes: args.nodes,
        clients: args.clients,
        size_bytes: args.size,
        seconds: args.seconds,
        signed: parse_signing(&args.signed)?,
        is_cosigned: args.cosigned,
        folder: scratch.path().to_owned(),
        program: (program_path()?, vec!["bench".to_owned(), "node".to_owned()]),
    };
    let unexpected = |error| Failure::new(Kind::Unexpected, error, "see what the nodes print");
    let facts = match (args.kills, args.restart) {
        (Some(kills), _) => {
            let failover = bench::run_failover(&measured, kills).await;
            serde_json::to_value(failover.map_err(unexpected)?)
        }
        (None, Some(commands)) => {
            let restarted = bench::run_restart(&measured, commands).await;
            serde_json::to_value(restarted.map_err(unexpected)?)
        }
        (None, None) => serde_json::to_value(bench::run(&measured).await.map_err(unexpected)?),
    };
    let facts = facts.map_err(|error| Failure::new(Kind::Unexpected, error, ""))?;
    show::print_result(output, &facts, &facts.to_string());
    Ok(())
}

/// Runs one replica of the benchmark until its process is killed.
pub async fn run_replica(folder: &Path, args: &BenchNodeArgs) -> Outcome {
    let node = ReplicaArguments {
        id: args.id,
        ports: args.ports.clone(),
        folder: folder.to_owned(),
        signed: parse_signing(&args.signed)?,
        is_cosigning: args.cosigned,
    };
    let served = bench::serve_replica(node).await;
    served.map_err(|error| Failure::new(Kind::Unexpected, error, ""))
}

fn parse_signing(name: &str) -> Result<Signing, Failure> {
    Signing::of_name(name).ok_or_else(|| {
        let cause = format!("\"{name}\" is not a way to sign");
        Failure::new(Kind::Input, cause, "give --signed none, each or batch64")
    })
}
