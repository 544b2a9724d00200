//! `/v1/events`: one stream of all followed topics, which a client can resume where it broke off.

use std::collections::{BTreeSet, VecDeque};
use std::convert::Infallible;
use std::time::Duration;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::sse::{Event, KeepAlive, Sse};
use futures::{Stream, stream};
use serde::Deserialize;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::extract::Parameters;
use crate::hub::{EventId, FollowerSlot, Occurrence, STREAMS_MAX};
use crate::job_view;
use crate::problem::{Code, Problem};
use crate::state::SharedState;
use crate::topic::Topic;

/// Largest number of topics of one stream.
const TOPICS_MAX: usize = 64;

/// Period of the pings on an idle stream.
const PING_PERIOD: Duration = Duration::from_secs(15);

pub fn router() -> OpenApiRouter<SharedState> {
    OpenApiRouter::new().routes(routes!(events))
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct Topics {
    /// The topics to follow, separated by commas: `market`, `account`, `jobs`, `job:ID`,
    /// `depth:CLASS`, `trades:CLASS`, `network`, `validators`, `provider:ACCOUNT`.
    topics: String,
}

/// The state of one stream.
struct Follower {
    topics: BTreeSet<String>,
    /// Missed events that the stream has not sent yet.
    missed: VecDeque<Occurrence>,
    coming: Receiver<Occurrence>,
    /// Number of the last event that the stream sent.
    last: Option<u64>,
    is_over: bool,
    _place: FollowerSlot,
}

/// Follow topics. Each event has the name of its topic and its whole state. With `Last-Event-ID` a
/// stream resumes where it broke off; `event: reset` means that the gateway no longer has the
/// events in between.
#[utoipa::path(get, path = "/v1/events", tag = "events",
    params(Topics, ("Last-Event-ID" = Option<String>, Header, description = "The id told last")),
    responses((status = 200, body = String, content_type = "text/event-stream")),
    security(("token" = ["read"])))]
async fn events(
    State(state): State<SharedState>,
    Parameters(asked): Parameters<Topics>,
    headers: HeaderMap,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, Problem> {
    let topics = parse_topics(&state, &asked.topics)?;
    let last = headers.get("last-event-id").map(|id| {
        let known = id.to_str().ok().and_then(EventId::parse);
        known.ok_or_else(|| Problem::malformed_input("Last-Event-ID is none that was told"))
    });
    let last = last.transpose()?;
    let place = state.hub.reserve_place(topics.clone()).ok_or_else(|| {
        let detail = format!("{STREAMS_MAX} streams are open");
        Problem::new(Code::TooMany, detail, "close one, or ask again in a moment")
    })?;
    let followed = state.hub.subscribe_from(last);
    let reset = followed.missed.is_none().then(reset_event);
    let following = Follower {
        topics,
        missed: followed.missed.unwrap_or_default().into(),
        coming: followed.coming,
        last: None,
        is_over: false,
        _place: place,
    };
    let told = stream::unfold((reset, following), |(reset, mut following)| async move {
        let event = match reset {
            Some(reset) => Some(reset),
            None => following.next().await,
        };
        Some((Ok(event?), (None, following)))
    });
    let ping = KeepAlive::new().interval(PING_PERIOD).text("ping");
    Ok(Sse::new(told).keep_alive(ping))
}

impl Follower {
    async fn next(&mut self) -> Option<Event> {
        while !self.is_over {
            let happened = match self.missed.pop_front() {
                Some(missed) => missed,
                None => match self.coming.recv().await {
                    Ok(happened) => happened,
                    Err(RecvError::Closed) => return None,
                    // The follower is too far behind and must start anew.
                    Err(RecvError::Lagged(_)) => {
                        self.is_over = true;
                        return Some(reset_event());
                    }
                },
            };
            let is_told = self.last.is_some_and(|last| happened.id.number <= last);
            if !is_told && self.topics.contains(&*happened.topic) {
                self.last = Some(happened.id.number);
                let event = Event::default().id(happened.id.to_string());
                return Some(event.event(&*happened.topic).data(&*happened.data));
            }
        }
        None
    }
}

fn reset_event() -> Event {
    Event::default().event("reset").data("{}")
}

fn parse_topics(state: &SharedState, asked: &str) -> Result<BTreeSet<String>, Problem> {
    let all: Vec<&str> = asked
        .split(',')
        .map(str::trim)
        .filter(|text| !text.is_empty())
        .collect();
    if all.is_empty() || all.len() > TOPICS_MAX {
        let detail = format!("topics names {}, and may name 1 to {TOPICS_MAX}", all.len());
        return Err(Problem::malformed_input(detail));
    }
    let mut topics = BTreeSet::new();
    for text in all {
        let topic = Topic::parse(text);
        let topic = topic.ok_or_else(|| {
            let detail = format!("there is no topic \"{text}\"; give classes by their whole names");
            Problem::malformed_input(detail)
        })?;
        let topic = match topic {
            Topic::Job(begins) => Topic::Job(job_view::full_name(state, &begins)?),
            other => other,
        };
        topics.insert(topic.to_string());
    }
    Ok(topics)
}
