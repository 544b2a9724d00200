//! Asks the market for its state and publishes it to followers, the clients of the gateway's event
//! stream: each topic as a whole, and only if it changed.
//!
//! Without followers the gateway asks the market nothing. It asks for a book at most four times a
//! second, for the list of classes, the validators and a provider once a second, and for the map of
//! the network every four seconds.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;
use souk_api::account::AccountView;
use souk_api::market::{ClassView, DepthView, LEVELS, TradesView};
use souk_node::client::broker::BrokerError;
use tokio::time::{MissedTickBehavior, interval};

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
pub async fn follow_market(state: SharedState) {
    let mut ticks = interval(BOOK_PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut told, mut number) = (Snapshots::new(), 0_u64);
    let mut account = state.buyer.broker().watch_account(state.buyer.account());
    loop {
        ticks.tick().await;
        number += 1;
        let wanted = state.hub.take_wanted_topics();
        told.retain(|topic, _| wanted.contains_key(topic));
        let is_dear = number.is_multiple_of(DEAR_TICKS);
        if !wanted.is_empty() && is_dear {
            update_reached_index(&state).await;
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
            if is_due && let Err(error) = refresh_topic(&state, &mut told, &topic).await {
                tracing::debug!(%error, topic, "a followed topic could not be refreshed");
            }
        }
        if changed {
            account.mark_unchanged();
        }
    }
}

/// Learns the furthest index of the log that a validator has applied.
async fn update_reached_index(state: &State) {
    let all = state.buyer.broker().fetch_statuses().await;
    let furthest = all.iter().flatten().map(|status| status.applied).max();
    state.hub.record_index(furthest.unwrap_or_default());
}

async fn refresh_topic(
    state: &State,
    told: &mut Snapshots,
    topic: &str,
) -> Result<(), BrokerError> {
    let broker = state.buyer.broker();
    match Topic::parse(topic) {
        Some(Topic::Market) => {
            let classes = state.classes().await?;
            let view: Vec<ClassView> = classes.iter().map(ClassView::from).collect();
            publish_if_changed(state, told, topic, &view);
        }
        Some(Topic::Depth(class)) => {
            if let Some(quotes) = broker.fetch_quotes(class).await? {
                publish_if_changed(state, told, topic, &DepthView::new(&quotes, LEVELS));
            }
        }
        Some(Topic::Trades(class)) => {
            if let Some(quotes) = broker.fetch_quotes(class).await? {
                publish_if_changed(state, told, topic, &TradesView::from(&quotes));
            }
        }
        Some(Topic::Network) => publish_if_changed(state, told, topic, &*state.map().await?),
        Some(Topic::Validators) => {
            publish_if_changed(
                state,
                told,
                topic,
                &parties_view::list_validators(broker).await?,
            );
        }
        Some(Topic::Provider(key)) => {
            let book = state.book().await?;
            if let Some(found) = parties_view::find_provider(broker, &book, key).await? {
                publish_if_changed(state, told, topic, &found);
            }
        }
        Some(Topic::Account) => {
            if let Some(account) = broker.fetch_account(state.buyer.account()).await? {
                publish_if_changed(state, told, topic, &AccountView::from(&account));
            }
        }
        Some(Topic::Jobs | Topic::Job(_)) | None => {}
    }
    Ok(())
}

/// Publishes a view if it differs from the last one of its topic.
fn publish_if_changed(state: &State, told: &mut Snapshots, topic: &str, view: &impl Serialize) {
    let text = serde_json::to_string(view).unwrap_or_default();
    if told.get(topic) != Some(&text) {
        state.hub.publish_event(topic, view);
        told.insert(topic.to_owned(), text);
    }
}
