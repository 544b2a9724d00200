//! Builds the metrics page of a validator in the text format of Prometheus: its log, its exchange,
//! and its connections.

use souk_consensus::replica::{Role, Status};
use souk_market::{Census, Totals};
use souk_network::Network;
use souk_network::metrics::{MetricKind, Page, peers};
use souk_roles::validator::questions::{Question, Reply};

use crate::validator::account_watchers::AccountWatchers;
use crate::validator::exchange_machine::ExchangeMachine;
use crate::validator::request_server::QuestionCounts;
use crate::validator::{Consistency, ReadMoment, Validator};

/// The parts of a validator that its metrics come from.
#[derive(Clone)]
pub(super) struct MetricsSources {
    pub(super) validator: Validator<ExchangeMachine>,
    pub(super) network: Network,
    pub(super) watchers: AccountWatchers,
    pub(super) questions: QuestionCounts,
}

/// Returns a page of metrics, or none once the validator has stopped. It shows this validator's own
/// state, however old; its age is among the figures.
pub(super) async fn metrics_page(sources: MetricsSources) -> Option<Page> {
    let MetricsSources {
        validator,
        network,
        watchers,
        questions,
    } = sources;
    let mut page = Page::of_machine();
    let waiting = validator.queue_length();
    let sums = validator.query_machine(Consistency::Stale, Question::Sums);
    let (Reply::Sums(sums), seen) = sums.await.ok()? else {
        unreachable!("sums were asked for")
    };
    let (census, totals) = *sums;
    let market = (census, totals, seen);
    add_log(&mut page, &validator.status().await.ok()?);
    page.add_gauge(
        "souk_log_events_waiting",
        "Events that wait for the validator's task.",
        waiting,
    );
    add_exchange(&mut page, &market);
    let help = "Accounts that peers watch here.";
    page.add_gauge(
        "souk_market_accounts_watched",
        help,
        watchers.account_count(),
    );
    let help = "Questions and commands of peers, by kind.";
    let mut asked = page.add_family(MetricKind::Counter, "souk_market_questions_total", help);
    for (kind, count) in questions.by_kind() {
        asked.add_figure(&[("kind", kind)], count);
    }
    peers::add_metrics(&mut page, &network).await;
    Some(page)
}

fn add_log(page: &mut Page, status: &Status) {
    let help = "What the validator is: 1 of these.";
    let mut roles = page.add_family(MetricKind::Gauge, "souk_log_role", help);
    for (name, role) in [
        ("leader", Role::Leader),
        ("follower", Role::Follower),
        ("candidate", Role::Candidate),
    ] {
        roles.add_figure(&[("role", name)], status.role == role);
    }
    page.add_gauge(
        "souk_log_has_leader",
        "1 while it knows whom to follow.",
        status.leader.is_some(),
    );
    page.add_gauge("souk_log_term", "The term of the log.", status.term.0);
    let help = "Entries of the log: the last one, the last on a majority, the last applied here, \
                and the last in a snapshot.";
    page.add_family(MetricKind::Gauge, "souk_log_index", help)
        .add_figure(&[("position", "last")], status.last.0)
        .add_figure(&[("position", "committed")], status.commit.0)
        .add_figure(&[("position", "applied")], status.applied.0)
        .add_figure(&[("position", "snapshot")], status.snapshot.0);
    let help = "Commands on their way into the log.";
    page.add_gauge("souk_log_proposals_waiting", help, status.proposals);
}

fn add_exchange(page: &mut Page, (census, totals, seen): &(Census, Totals, ReadMoment)) {
    page.add_gauge(
        "souk_log_age_seconds",
        "Time since a leader was heard from.",
        seen.age_ms as f64 / 1e3,
    );
    page.add_gauge("souk_market_accounts", "Accounts.", census.accounts);
    page.add_gauge(
        "souk_market_classes",
        "Classes that are traded.",
        census.classes,
    );
    page.add_gauge("souk_market_orders", "Orders that rest.", census.orders);
    page.add_counter(
        "souk_market_orders_total",
        "Orders ever placed.",
        census.orders_made,
    );
    page.add_gauge(
        "souk_market_leases",
        "Leases that are not closed.",
        census.leases,
    );
    page.add_counter(
        "souk_market_trades_total",
        "Trades ever made.",
        census.trades_made,
    );
    let help = "Credits of all accounts, in micro-credits, by where they are.";
    page.add_family(MetricKind::Gauge, "souk_market_micro_credits", help)
        .add_figure(&[("balance", "available")], totals.available.0)
        .add_figure(&[("balance", "escrow")], totals.escrow.0)
        .add_figure(&[("balance", "stake")], totals.stake.0)
        .add_figure(&[("balance", "fees")], totals.fees.0);
}
