//! `souk testnet gossip`: measures the cost of gossip for a node of a large market.

use std::time::Duration;

use crate::gossip::{self, GossipConfig, GossipReport};

use crate::args::GossipArgs;
use souk_cli::failure::{Failure, Kind, Outcome};
use souk_cli::options::Output;
use souk_cli::show::{self, print_line};

/// Runs the network in this process, and reports its counts.
pub async fn run(output: Output, args: &GossipArgs) -> Outcome {
    let config = GossipConfig {
        seed: args.seed,
        nodes: args.nodes,
        period: Duration::from_secs(args.period),
        warm: Duration::from_secs(args.warm_up),
        length: Duration::from_secs(args.seconds),
    };
    let report = gossip::run(&config)
        .await
        .map_err(|error| Failure::new(Kind::Input, error, "a thousand is what is measured"))?;
    match output {
        Output::Json => show::print_json(&report),
        Output::Text => print_report(&report),
    }
    Ok(())
}

fn print_report(report: &GossipReport) {
    print_line(&format!(
        "seed {}: {} nodes, a profile of {} bytes each in {} s; {:.0} s counted",
        report.seed, report.nodes, report.profile_bytes, report.period_seconds, report.seconds,
    ));
    print_line(&format!(
        "  {} profiles said, each heard by {:.2} % of the nodes",
        report.sent_count,
        report.heard_share * 100.0
    ));
    print_line(&format!(
        "  bytes a second and node: {:.0} received, {:.0} sent, {:.0} together (p99 {:.0}, most \
         {:.0})",
        report.received, report.sent, report.both, report.both_p99, report.both_max,
    ));
}
