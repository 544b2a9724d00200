//! Prints disputes (accusations that a provider's output is wrong, which validators decide): a
//! list, one in full, and the progress of one.

use serde_json::{Value, json};
use souk_node::market::{Dispute, DisputeState, Verdict};

use super::{format_credits, print_line, time_of_day};

/// Returns a dispute as JSON.
pub fn to_json(dispute: &Dispute) -> Value {
    json!({
        "dispute": dispute.id,
        "lease": dispute.lease,
        "buyer": dispute.buyer,
        "provider": dispute.provider,
        "graph": dispute.graph,
        "bond": dispute.bond,
        "opened": dispute.opened,
        "open_ms": dispute.closed_at().map(|at| at.0.saturating_sub(dispute.opened.0)),
        "state": dispute.state,
        "verdicts": dispute.verdicts.iter().map(|(juror, verdict)| {
            json!({ "validator": juror, "verdict": verdict })
        }).collect::<Vec<_>>(),
    })
}

/// Prints disputes, one on a line.
pub fn print_list(disputes: &[Dispute]) {
    if disputes.is_empty() {
        print_line("no disputes");
    }
    for dispute in disputes {
        print_line(&format!(
            "dispute {} · lease {} · {}",
            dispute.id,
            dispute.lease,
            describe_state(dispute)
        ));
    }
}

/// Prints all about a dispute.
pub fn print_one(dispute: &Dispute) {
    print_line(&format!(
        "dispute {}: {}",
        dispute.id,
        describe_state(dispute)
    ));
    print_line(&format!("  lease     {}", dispute.lease));
    print_line(&format!("  buyer     {}", dispute.buyer));
    print_line(&format!("  provider  {}", dispute.provider));
    print_line(&format!("  graph     {}", dispute.graph));
    print_line(&format!("  bond      {}", format_credits(dispute.bond.0)));
    print_line(&format!("  opened    {}", time_of_day(dispute.opened.0)));
    if let Some(closed) = dispute.closed_at() {
        let seconds = closed.0.saturating_sub(dispute.opened.0) as f64 / 1e3;
        print_line(&format!("  closed    {seconds:.2} s later"));
    }
    for (juror, verdict) in &dispute.verdicts {
        print_line(&format!("  {} by validator {juror}", word(*verdict)));
    }
}

/// Describes how far an open dispute is.
pub fn describe_progress(dispute: &Dispute) -> String {
    format!(
        "dispute {}: {} verdicts; the validators compute the work again",
        dispute.id,
        dispute.verdicts.len()
    )
}

fn word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Guilty => "guilty",
        Verdict::Innocent => "innocent",
    }
}

fn describe_state(dispute: &Dispute) -> String {
    match dispute.state {
        DisputeState::Open { until } => {
            let count = dispute.verdicts.len();
            format!("open until {}, {count} verdicts", time_of_day(until.0))
        }
        DisputeState::Guilty {
            slashed,
            compensated,
            ..
        } => format!(
            "guilty: the provider lost {}, of which the buyer got {}",
            format_credits(slashed.0),
            format_credits(compensated.0)
        ),
        DisputeState::Innocent { .. } => format!(
            "innocent: the provider got the bond of {}",
            format_credits(dispute.bond.0)
        ),
        DisputeState::Undecided { .. } => "undecided: the bond went back".to_owned(),
    }
}
