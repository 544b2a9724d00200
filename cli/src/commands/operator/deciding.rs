//! `souk operator decide`: requests for credits are decided by a program, or by a faucet.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use serde::Deserialize;
use serde_json::json;
use souk_node::client::trader::{TradeError, Trader};
use souk_node::market::{Acceptance, Command, Direction, MoneyRequest, Refusal};
use tokio::io::AsyncWriteExt;
use tokio::process;

use super::operator;
use crate::args::{DecideArgs, Output};
use crate::commands::account::{from_trade, short_text};
use crate::failure::{Failure, Outcome};
use crate::folder::unreachable_market;
use crate::{show, stop};

/// How often the market is asked for requests that wait.
const PERIOD: Duration = Duration::from_secs(1);

/// How long a program may take to decide one.
const PATIENCE: Duration = Duration::from_secs(60);

/// What becomes of a request.
#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case", tag = "decision", deny_unknown_fields)]
enum Decision {
    /// The credits have come in, or have been paid out.
    Confirm,
    /// Nothing comes of it.
    Refuse {
        /// Why, for its account.
        reason: String,
    },
    /// It is asked about again.
    Wait,
}

/// Decides what waits, and what comes, until told to stop.
pub(super) async fn run(folder: &Path, output: Output, args: &DecideArgs) -> Outcome {
    let operator = operator(folder, &args.key).await?;
    let mut stop = stop::Requests::new();
    loop {
        let requests = operator.broker().money_requests(None).await;
        match requests.map_err(unreachable_market) {
            Ok(requests) => {
                for request in requests {
                    decide(&operator, output, args, &request).await?;
                }
            }
            Err(failure) if args.once => return Err(failure),
            Err(failure) => show::tell(&format!("not yet: {}", failure.cause)),
        }
        if args.once {
            return Ok(());
        }
        tokio::select! {
            () = stop.next() => return Ok(()),
            () = tokio::time::sleep(PERIOD) => {}
        }
    }
}

async fn decide(
    operator: &Trader,
    output: Output,
    args: &DecideArgs,
    request: &MoneyRequest,
) -> Outcome {
    let decision = match (&args.hook, args.faucet) {
        (Some(hook), _) => asked(hook, request).await.unwrap_or_else(|cause| {
            show::tell(&format!(
                "request {}: {cause}; it is asked again",
                request.id
            ));
            Decision::Wait
        }),
        (None, Some(most)) => given(request, most),
        (None, None) => Decision::Wait,
    };
    let id = request.id;
    let (command, text) = match decision {
        Decision::Wait => return Ok(()),
        Decision::Confirm => {
            let command = Command::Confirm { request: id };
            (command, format!("request {id} is confirmed"))
        }
        Decision::Refuse { reason } => {
            let text = format!("request {id} is refused: {reason}");
            let reason = short_text("the reason", &reason)?;
            (
                Command::Refuse {
                    request: id,
                    reason,
                },
                text,
            )
        }
    };
    let confirmed = matches!(command, Command::Confirm { .. });
    match operator.submit_one(command).await {
        // Another operator must give it too: until then it is given again.
        Ok(Acceptance::Awaited { .. }) => return Ok(()),
        Ok(_) => {}
        // Its account took it back meanwhile, or another of the operator's processes was faster.
        Err(TradeError::Refused(Refusal::RequestUnknown { .. })) => return Ok(()),
        Err(error) => return not_now(args, from_trade(error)),
    }
    show::line(
        output,
        &json!({ "request": id, "confirmed": confirmed }),
        &text,
    );
    Ok(())
}

/// What was not done now is done when the market is asked again.
fn not_now(args: &DecideArgs, failure: Failure) -> Outcome {
    if args.once {
        return Err(failure);
    }
    show::tell(&format!("not yet: {}", failure.cause));
    Ok(())
}

/// A faucet gives what is asked for up to so much, and pays nothing out.
fn given(request: &MoneyRequest, most: u64) -> Decision {
    match request.direction {
        Direction::Withdrawal => Decision::Wait,
        Direction::Deposit if request.amount.0 <= most => Decision::Confirm,
        Direction::Deposit => Decision::Refuse {
            reason: format!("the faucet gives {} at most", show::credits(most)),
        },
    }
}

/// Gives a program the request as JSON, and takes its answer. It may be asked about the same
/// request more than once: its id says so.
async fn asked(hook: &PathBuf, request: &MoneyRequest) -> Result<Decision, String> {
    let named = |cause: std::io::Error| format!("{}: {cause}", hook.display());
    let mut program = process::Command::new(hook)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(named)?;
    let text = serde_json::to_string(request).map_err(|error| error.to_string())?;
    if let Some(mut input) = program.stdin.take() {
        // One that decides without reading has closed it.
        let _ = input.write_all(format!("{text}\n").as_bytes()).await;
    }
    let ended = tokio::time::timeout(PATIENCE, program.wait_with_output()).await;
    let ended = ended.map_err(|_| format!("{} took too long", hook.display()))?;
    let ended = ended.map_err(named)?;
    if !ended.status.success() {
        return Err(format!("{} ended with {}", hook.display(), ended.status));
    }
    let said = String::from_utf8_lossy(&ended.stdout);
    serde_json::from_str(said.trim()).map_err(|error| {
        let wanted =
            r#"{"decision":"confirm"}, {"decision":"refuse","reason":"…"} or {"decision":"wait"}"#;
        format!(
            "{} said `{}`, not {wanted} ({error})",
            hook.display(),
            said.trim()
        )
    })
}
