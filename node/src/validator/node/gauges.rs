//! The metrics of a validator.

use souk_consensus::replica::{Role, Status};
use souk_market::{Census, Totals};
use souk_roles::validator::questions::{Question, Reply};

use crate::metrics::{Kind, Page, peers};
use crate::network::Network;
use crate::validator::exchange_machine::ExchangeMachine;
use crate::validator::{Consistency, ReadMoment, Validator};

/// Returns a page of metrics, or none once the validator has stopped. It shows this validator's own
/// state, however old; its age is among the figures.
pub(super) async fn page(validator: Validator<ExchangeMachine>, network: Network) -> Option<Page> {
    let mut page = Page::of_machine();
    let waiting = validator.queued();
    let sums = validator.query(Consistency::Stale, Question::Sums);
    let (Reply::Sums(sums), seen) = sums.await.ok()? else {
        unreachable!("sums were asked for")
    };
    let (census, totals) = *sums;
    let market = (census, totals, seen);
    log(&mut page, &validator.status().await.ok()?);
    page.gauge(
        "souk_log_events_waiting",
        "Events that wait for the validator's task.",
        waiting,
    );
    exchange(&mut page, &market);
    peers::tell(&mut page, &network).await;
    Some(page)
}

fn log(page: &mut Page, status: &Status) {
    let help = "What the validator is: 1 of these.";
    let mut roles = page.family(Kind::Gauge, "souk_log_role", help);
    for (name, role) in [
        ("leader", Role::Leader),
        ("follower", Role::Follower),
        ("candidate", Role::Candidate),
    ] {
        roles.put(&[("role", name)], status.role == role);
    }
    page.gauge(
        "souk_log_has_leader",
        "1 while it knows whom to follow.",
        status.leader.is_some(),
    );
    page.gauge("souk_log_term", "The term of the log.", status.term.0);
    let help = "Entries of the log: the last one, the last on a majority, the last applied here, \
                and the last in a snapshot.";
    page.family(Kind::Gauge, "souk_log_index", help)
        .put(&[("reached", "last")], status.last.0)
        .put(&[("reached", "committed")], status.commit.0)
        .put(&[("reached", "applied")], status.applied.0)
        .put(&[("reached", "snapshot")], status.snapshot.0);
    let help = "Commands on their way into the log.";
    page.gauge("souk_log_proposals_waiting", help, status.proposals);
}

fn exchange(page: &mut Page, (census, totals, seen): &(Census, Totals, ReadMoment)) {
    page.gauge(
        "souk_log_age_seconds",
        "Time since a leader was heard from.",
        seen.age_ms as f64 / 1e3,
    );
    page.gauge("souk_market_accounts", "Accounts.", census.accounts);
    page.gauge(
        "souk_market_classes",
        "Classes that are traded.",
        census.classes,
    );
    page.gauge("souk_market_orders", "Orders that rest.", census.orders);
    page.counter(
        "souk_market_orders_total",
        "Orders ever placed.",
        census.orders_made,
    );
    page.gauge(
        "souk_market_leases",
        "Leases that are not closed.",
        census.leases,
    );
    page.counter(
        "souk_market_trades_total",
        "Trades ever made.",
        census.trades_made,
    );
    let help = "Credits of all accounts, in micro-credits, by where they are.";
    page.family(Kind::Gauge, "souk_market_micro_credits", help)
        .put(&[("held", "available")], totals.available.0)
        .put(&[("held", "escrow")], totals.escrow.0)
        .put(&[("held", "stake")], totals.stake.0)
        .put(&[("held", "fees")], totals.fees.0);
}
