//! Publishes the state of the market to followers: each topic as a whole, and only if it changed.
//!
//! Without followers the gateway asks the market nothing. It asks for a book at most four times a
//! second, for the list of classes, the validators and a provider once a second, and for the map of
//! the network every four seconds.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;
use souk_node::client::broker::BrokerError;
use tokio::time::{MissedTickBehavior, interval};

use crate::market_view::{AccountView, ClassView, DepthView, LEVELS, TradesView};
use crate::parties_view;
use crate::state::{SharedState, State};
use crate::topic::Topic;

/// Period of the questions for a book.
const BOOK_PERIOD: Duration = Duration::from_millis(250);

/// Ticks between two expensive questions.
const DEAR_TICKS: u64 = 4;

/// Ticks between two maps of the network, which are long and differ every time.
const MAP_TICKS: u64 = 16;

/// The last published text of each topic.
type Snapshots = BTreeMap<String, String>;

/// Asks the market about the followed topics and publishes changes, for as long as you await it.
pub async fn follow(state: SharedState) {
    let mut ticks = interval(BOOK_PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut told, mut number) = (Snapshots::new(), 0_u64);
    let mut account = state.buyer.broker().watch(state.buyer.account());
    loop {
        ticks.tick().await;
        number += 1;
        let wanted = state.hub.wanted();
        told.retain(|topic, _| wanted.contains_key(topic));
        let is_dear = number.is_multiple_of(DEAR_TICKS);
        if !wanted.is_empty() && is_dear {
            reach(&state).await;
        }
        let changed = account.has_changed().unwrap_or_default();
        for (topic, is_new) in wanted {
            if is_new {
                told.remove(&topic);
            }
            let is_due = match Topic::parse(&topic) {
                Some(Topic::Market | Topic::Validators | Topic::Provider(_)) => is_new || is_dear,
                Some(Topic::Network) => is_new || number.is_multiple_of(MAP_TICKS),
                Some(Topic::Account) => is_new || changed,
                Some(Topic::Depth(_) | Topic::Trades(_)) => true,
                // The task that runs a job publishes these topics.
                Some(Topic::Jobs | Topic::Job(_)) | None => false,
            };
            if is_due && let Err(error) = ask(&state, &mut told, &topic).await {
                tracing::debug!(%error, topic, "what is followed is not known now");
            }
        }
        if changed {
            account.mark_unchanged();
        }
    }
}

/// Learns the furthest index of the log that a validator has applied.
async fn reach(state: &State) {
    let all = state.buyer.broker().statuses().await;
    let furthest = all.iter().flatten().map(|status| status.applied).max();
    state.hub.reached(furthest.unwrap_or_default());
}

async fn ask(state: &State, told: &mut Snapshots, topic: &str) -> Result<(), BrokerError> {
    let broker = state.buyer.broker();
    match Topic::parse(topic) {
        Some(Topic::Market) => {
            let classes = state.classes().await?;
            let view: Vec<ClassView> = classes.iter().map(ClassView::from).collect();
            tell(state, told, topic, &view);
        }
        Some(Topic::Depth(class)) => {
            if let Some(quotes) = broker.quotes(class).await? {
                tell(state, told, topic, &DepthView::new(&quotes, LEVELS));
            }
        }
        Some(Topic::Trades(class)) => {
            if let Some(quotes) = broker.quotes(class).await? {
                tell(state, told, topic, &TradesView::from(&quotes));
            }
        }
        Some(Topic::Network) => tell(state, told, topic, &*state.map().await?),
        Some(Topic::Validators) => {
            tell(state, told, topic, &parties_view::validators(broker).await?);
        }
        Some(Topic::Provider(key)) => {
            let book = state.book().await?;
            if let Some(found) = parties_view::provider(broker, &book, key).await? {
                tell(state, told, topic, &found);
            }
        }
        Some(Topic::Account) => {
            if let Some(account) = broker.account(state.buyer.account()).await? {
                tell(state, told, topic, &AccountView::from(&account));
            }
        }
        Some(Topic::Jobs | Topic::Job(_)) | None => {}
    }
    Ok(())
}

/// Publishes a view if it differs from the last one of its topic.
fn tell(state: &State, told: &mut Snapshots, topic: &str, view: &impl Serialize) {
    let text = serde_json::to_string(view).unwrap_or_default();
    if told.get(topic) != Some(&text) {
        state.hub.tell(topic, view);
        told.insert(topic.to_owned(), text);
    }
}
