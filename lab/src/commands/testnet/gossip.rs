//! `souk testnet gossip`: measures the traffic that gossip (by which nodes pass on each other's
//! profiles) causes for a node of a large market.

use std::time::Duration;

use crate::gossip::{self, GossipConfig, GossipReport};

use crate::args::GossipArgs;
use souk_cli::failure::{Failure, Kind, Outcome};
use souk_cli::options::Output;
use souk_cli::show::{self, print_line};

/// Runs the network in this process, and reports its traffic.
pub async fn run(output: Output, args: &GossipArgs) -> Outcome {
    let config = GossipConfig {
        seed: args.seed,
        nodes: args.nodes,
        period: Duration::from_secs(args.period),
        warm_up: Duration::from_secs(args.warm_up),
        duration: Duration::from_secs(args.seconds),
    };
    let report = gossip::run(&config)
        .await
        .map_err(|error| Failure::new(Kind::Input, error, "for example, give --nodes 1000"))?;
    match output {
        Output::Json => show::print_json(&report),
        Output::Text => print_report(&report),
    }
    Ok(())
}

fn print_report(report: &GossipReport) {
    print_line(&format!(
        "seed {}: {} nodes; each publishes a profile of {} bytes every {} s; {:.0} s measured",
        report.seed, report.nodes, report.profile_bytes, report.period_seconds, report.seconds,
    ));
    print_line(&format!(
        "  {} profiles published, each received by {:.2} % of the nodes on average",
        report.sent_count,
        report.received_share * 100.0
    ));
    print_line(&format!(
        "  bytes per second per node: {:.0} received, {:.0} sent, {:.0} in total (p99 {:.0}, \
         max {:.0})",
        report.received, report.sent, report.both, report.both_p99, report.both_max,
    ));
}
