//! `/v1/providers/{account}/earnings`: an account's earnings from its leases, over time. Any client
//! can read those of any account, because the log is public.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::{Path, State};
use serde::{Deserialize, Serialize};
use souk_api::lease::{ClosedLeaseView, Closing};
use souk_api::time::format_rfc3339;
use souk_folder::clock::unix_ms;
use souk_node::client::broker::Broker;
use souk_node::market::{AccountKey, Lease};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::closed_leases;
use crate::extract::Parameters;
use crate::problem::Problem;
use crate::state::SharedState;

/// Seconds of a step: default, least and most.
const STEP: u64 = 3_600;
const STEP_MIN: u64 = 60;
const STEP_MAX: u64 = 7 * 86_400;

/// Steps: default and most.
const STEPS: u64 = 24;
const STEPS_MAX: u64 = 1_000;

/// Statement lines to search at most, and leases to ask the market about at most.
const LINES_MAX: usize = 16_384;
const LEASES_MAX: usize = 1_024;

pub fn router() -> OpenApiRouter<SharedState> {
    OpenApiRouter::new().routes(routes!(earnings))
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct StepQuery {
    /// How long a step is: seconds, or such as `15m`, `1h` or `1d`; else an hour.
    #[param(pattern = "^[1-9][0-9]{0,5}[smhd]?$")]
    step: Option<String>,
    /// How many steps until now: 1 to 1000, else 24.
    #[param(minimum = 1, maximum = 1000)]
    steps: Option<u64>,
}

/// What an account earned.
#[derive(Debug, Serialize, ToSchema)]
struct EarningsView {
    account: String,
    /// Seconds in a step.
    step: u64,
    /// When the first step begins, and when this was put together; RFC 3339.
    from: String,
    as_of: String,
    /// All steps together.
    total: EarningView,
    /// The oldest first; for each class one, and none where nothing was earned.
    steps: Vec<EarningStep>,
    /// Whether all leases of the time are counted: those of a very busy account may be too many.
    complete: bool,
}

/// What was earned in a step by devices of a class.
#[derive(Debug, Serialize, ToSchema)]
struct EarningStep {
    /// When it begins, RFC 3339.
    start: String,
    /// The class; null where the market has forgotten the lease.
    class: Option<String>,
    #[serde(flatten)]
    earned: EarningView,
}

/// What was earned.
#[derive(Debug, Default, Serialize, ToSchema)]
struct EarningView {
    /// Leases that closed.
    leases: u64,
    /// What the account got, in micro-credits.
    paid: u64,
    /// Seconds of its devices that were paid, of leases that the market has not forgotten.
    device_time: f64,
}

/// What an account earned by leases that closed lately, step by step. `me` is the gateway's own
/// account.
#[utoipa::path(get, path = "/v1/providers/{account}/earnings", tag = "parties",
    params(("account" = String, Path, description = "Its 64 hexadecimal digits, or me"), StepQuery),
    responses((status = 200, body = EarningsView)), security(("token" = ["read"])))]
async fn earnings(
    State(state): State<SharedState>,
    Path(account): Path<String>,
    Parameters(asked): Parameters<StepQuery>,
) -> Result<Json<EarningsView>, Problem> {
    let step = asked.step.as_deref().map_or(Ok(STEP), parse_seconds)?;
    let count = match asked.steps {
        None => STEPS,
        Some(count @ 1..=STEPS_MAX) => count,
        Some(count) => {
            let detail = format!("steps is {count}, and may be 1 to {STEPS_MAX}");
            return Err(Problem::malformed_input(detail));
        }
    };
    let broker = state.buyer.broker();
    let hint = "/v1/providers lists those with something on offer";
    let none = || Problem::not_found(format!("there is no account {account}"), hint);
    let key = match account.as_str() {
        "me" => state.buyer.account(),
        text => text.parse().map_err(|_| none())?,
    };
    broker.fetch_account(key).await?.ok_or_else(none)?;
    let now = unix_ms();
    let step_ms = step * 1_000;
    let from = (now - now % step_ms).saturating_sub((count - 1) * step_ms);
    let (sold, complete) = fetch_sold_leases(broker, key, from).await?;
    let asked = &sold[..sold.len().min(LEASES_MAX)];
    let known = closed_leases::fetch_leases(broker, asked).await?;
    let (steps, total) = by_step(&sold, &known, step_ms);
    Ok(Json(EarningsView {
        account: key.to_string(),
        step,
        from: format_rfc3339(from),
        as_of: format_rfc3339(now),
        total,
        steps,
        complete: complete && sold.len() <= LEASES_MAX,
    }))
}

/// Returns the leases that an account sold and that closed since this time, the newest first, and
/// whether the list is complete.
async fn fetch_sold_leases(
    broker: &Broker,
    key: AccountKey,
    from_ms: u64,
) -> Result<(Vec<Closing>, bool), Problem> {
    let (mut before, mut sold, mut seen) = (None, Vec::new(), 0);
    loop {
        let page = broker.statement_before(key, before).await?;
        for line in &page.lines {
            if line.time.0 < from_ms {
                return Ok((sold, true));
            }
            let own =
                closed_leases::line_closings(key, line).filter(|closing| closing.provider == key);
            sold.extend(own);
        }
        seen += page.lines.len();
        before = page.lines.last().map(|line| line.place);
        if before.is_none() || !page.more {
            return Ok((sold, true));
        }
        if seen >= LINES_MAX {
            return Ok((sold, false));
        }
    }
}

fn by_step(
    sold: &[Closing],
    known: &[Option<Lease>],
    step_ms: u64,
) -> (Vec<EarningStep>, EarningView) {
    let mut steps = BTreeMap::<(u64, Option<String>), EarningView>::new();
    let mut total = EarningView::default();
    for (place, closing) in sold.iter().enumerate() {
        let lease = known.get(place).and_then(Option::as_ref);
        let view = ClosedLeaseView::new(closing, lease);
        let start = closing.at.0 - closing.at.0 % step_ms;
        let earned = steps.entry((start, view.class.clone())).or_default();
        for sum in [earned, &mut total] {
            sum.leases += 1;
            sum.paid += view.paid;
            sum.device_time += view.device_time.unwrap_or_default();
        }
    }
    let steps = steps
        .into_iter()
        .map(|((start, class), earned)| EarningStep {
            start: format_rfc3339(start),
            class,
            earned,
        });
    (steps.collect(), total)
}

/// Parses a duration such as `3600`, `90s`, `15m`, `1h` or `1d`.
fn parse_seconds(text: &str) -> Result<u64, Problem> {
    let units = [("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)];
    let unit = units.iter().find_map(|(unit, in_seconds)| {
        let number = text.strip_suffix(unit)?;
        Some((number, *in_seconds))
    });
    let (number, in_seconds) = unit.unwrap_or((text, 1));
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    let number = number.parse::<u64>().ok().filter(|_| is_number);
    let seconds = number.and_then(|number| number.checked_mul(in_seconds));
    seconds
        .filter(|seconds| (STEP_MIN..=STEP_MAX).contains(seconds))
        .ok_or_else(|| {
            let detail = format!("step is {text}, and is such as 15m, 1h or 1d, up to a week");
            Problem::malformed_input(detail)
        })
}

#[cfg(test)]
mod tests {
    use souk_node::market::{CloseReason, LeaseId, Millis};

    use super::*;

    #[test]
    fn a_step_is_seconds_or_has_a_unit() {
        for (text, wanted) in [("3600", 3_600), ("90s", 90), ("15m", 900), ("7d", STEP_MAX)] {
            assert_eq!(parse_seconds(text).ok(), Some(wanted), "{text}");
        }
        for wrong in [
            "",
            "h",
            "59",
            "8d",
            "-1h",
            "+60",
            "1w",
            "99999999999999999999d",
        ] {
            assert!(parse_seconds(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_was_earned_is_told_by_the_step_in_which_its_lease_closed() {
        let closing = |lease, at_ms, paid| Closing {
            lease: LeaseId(lease),
            at: Millis(at_ms),
            buyer: AccountKey([1; 32]),
            provider: AccountKey([2; 32]),
            reason: CloseReason::Receipt,
            paid,
            fee: 1,
            refunded: 0,
        };
        let sold = [
            closing(3, 125_000, 5),
            closing(2, 119_999, 7),
            closing(1, 60_000, 9),
        ];
        let (steps, total) = by_step(&sold, &[], 60_000);
        let told = steps
            .iter()
            .map(|step| (step.earned.leases, step.earned.paid));
        assert_eq!(told.collect::<Vec<_>>(), [(2, 16), (1, 5)]);
        assert_eq!((total.leases, total.paid), (3, 21));
        assert_eq!(steps[0].start, "1970-01-01T00:01:00Z");
    }
}
