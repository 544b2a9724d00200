//! `souk operator decide`: decides the deposits and withdrawals of credits that accounts request,
//! by the answers of the operator's own program or as a faucet (which confirms every deposit up to
//! a limit).
//!
//! For a deposit, the operator asks the program until it decides; repeated questions do no harm. A
//! withdrawal must be locked first, so that its account cannot take it back. Then the operator that
//! locked it asks its program to pay, and submits the program's answer to the market. It asks again
//! only after the program answers that it has paid nothing yet. If no one knows whether the program
//! paid, a person must answer.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::json;
use souk_node::client::trader::{TradeError, Trader};
use souk_node::market::{
    Acceptance, AccountKey, Command, Direction, MoneyRequest, Refusal, RequestId,
};
use tokio::io::AsyncWriteExt;
use tokio::process;

use super::connect_operator;
use super::payouts::{Payout, Payouts, payment_id};
use crate::args::{DecideArgs, Output};
use crate::commands::account::{from_trade, short_text};
use crate::commands::validator::operator_key_file;
use crate::failure::{Failure, Kind, Outcome};
use crate::folder::unreachable_market;
use crate::suggested_command;
use crate::{show, stop};

/// How often the operator asks the market for waiting requests.
const PERIOD: Duration = Duration::from_secs(1);

/// Number of periods after which an operator repeats an approval that waits for other operators:
/// the market drops a waiting command after a day.
const APPROVAL_REPEAT_PERIODS: u64 = 600;

/// Longest time for a program to decide a request.
const HOOK_TIMEOUT: Duration = Duration::from_secs(60);

/// The decision on a request.
#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case", tag = "decision", deny_unknown_fields)]
enum Decision {
    /// The credits came in, or were paid out.
    Confirm,
    /// The request is refused.
    Refuse {
        /// The reason, for the request's account.
        reason: String,
    },
    /// The program will decide later.
    Wait,
}

/// The input of a program.
#[derive(Serialize)]
struct HookRequest<'a> {
    #[serde(flatten)]
    request: &'a MoneyRequest,
    /// Id of the payment, which the program must pay only once, even if the operator asks twice.
    payment: String,
}

/// Decides waiting and new requests until a signal stops it; with `--once`, only those that wait
/// now.
pub(super) async fn run(folder: &Path, output: Output, args: &DecideArgs) -> Outcome {
    let operator = connect_operator(folder, &args.key).await?;
    let key_file = operator_key_file(folder, args.key.operator_key.as_deref());
    let payouts = Payouts::open_journal(&key_file)
        .map_err(|error| journal_write_failure(&key_file, &error))?;
    let mut decider = Decider {
        operator,
        output,
        args,
        key_file,
        payouts,
        looks: 0,
        locking: BTreeMap::new(),
        answered: BTreeMap::new(),
        troubles: BTreeSet::new(),
    };
    let mut stop = stop::Requests::new();
    loop {
        match decider.decide_all().await {
            Err(failure) if args.once => return Err(failure),
            Err(failure) => show::print_notice(&format!("not yet: {}", failure.cause)),
            Ok(()) => {}
        }
        if args.once {
            return decider.finish_deciding();
        }
        tokio::select! {
            () = stop.next() => return decider.finish_deciding(),
            () = tokio::time::sleep(PERIOD) => {}
        }
    }
}

/// An operator, its settings, and the requests that it cannot decide.
struct Decider<'a> {
    operator: Trader,
    output: Output,
    args: &'a DecideArgs,
    key_file: PathBuf,
    payouts: Payouts,
    looks: u64,
    /// Withdrawals to lock and answered requests that lack the approvals of other operators, each
    /// with the number of the look at which this operator gave its own.
    locking: BTreeMap<RequestId, u64>,
    answered: BTreeMap<RequestId, u64>,
    /// Requests that a person must look at.
    troubles: BTreeSet<RequestId>,
}

impl Decider<'_> {
    async fn decide_all(&mut self) -> Outcome {
        let requests = self.operator.broker().money_requests(None).await;
        let requests = requests.map_err(unreachable_market)?;
        self.looks += 1;
        let looks = self.looks;
        for given in [&mut self.locking, &mut self.answered] {
            given.retain(|_, given| *given + APPROVAL_REPEAT_PERIODS > looks);
        }
        for request in &requests {
            let done = match (&self.args.hook, request.direction) {
                (None, Direction::Withdrawal) => Ok(()),
                (Some(hook), Direction::Withdrawal) => {
                    self.pay_withdrawal(&hook.clone(), request).await
                }
                (_, Direction::Deposit) => self.decide_deposit(request).await,
            };
            match done {
                Err(failure) if self.args.once => return Err(failure),
                Err(failure) => show::print_notice(&format!("not yet: {}", failure.cause)),
                Ok(()) => {}
            }
        }
        Ok(())
    }

    /// Fails if a person must look at a request.
    fn finish_deciding(self) -> Outcome {
        if self.troubles.is_empty() {
            return Ok(());
        }
        let ids: Vec<String> = self.troubles.iter().map(RequestId::to_string).collect();
        let cause = format!("a person must look at requests {}", ids.join(", "));
        let hint = format!("the reasons are above; {}", manual_decision_hint());
        let facts = [("requests", json!(self.troubles))];
        Err(Failure::new(Kind::State, cause, hint).with(facts))
    }

    /// Reports once why a person must look at a request.
    fn report_trouble(&mut self, request: RequestId, why: &str) {
        if self.troubles.insert(request) {
            show::print_notice(&format!(
                "request {request}: {why}\n  {}",
                manual_decision_hint()
            ));
        }
    }

    async fn decide_deposit(&mut self, request: &MoneyRequest) -> Outcome {
        let decision = match (&self.args.hook, self.args.faucet) {
            (Some(hook), _) => {
                let payment = payment_id(self.operator.market(), request.id);
                ask_hook(hook, &HookRequest { request, payment })
                    .await
                    .unwrap_or_else(|cause| {
                        show::print_notice(&format!(
                            "request {}: {cause}; the program will be asked again",
                            request.id
                        ));
                        Decision::Wait
                    })
            }
            (None, Some(most)) => decide_faucet(request, most),
            (None, None) => Decision::Wait,
        };
        match decision {
            Decision::Wait => Ok(()),
            Decision::Confirm => self.answer_request(request.id, None).await,
            Decision::Refuse { reason } => self.answer_request(request.id, Some(&reason)).await,
        }
    }

    /// Takes a withdrawal as far as it can go now.
    async fn pay_withdrawal(&mut self, hook: &Path, request: &MoneyRequest) -> Outcome {
        let id = request.id;
        let Some(lock) = request.lock else {
            return self.lock_withdrawal(hook, request).await;
        };
        if lock.payer != self.operator.account() {
            return self.follow_payer(id, lock.payer).await;
        }
        match self
            .payouts
            .find_payout(&payment_id(self.operator.market(), id))
            .cloned()
        {
            Some(Payout::Waits) => self.ask_to_pay(hook, request).await,
            Some(Payout::Paid) => self.answer_request(id, None).await,
            Some(Payout::Refused { reason }) => self.answer_request(id, Some(&reason)).await,
            Some(Payout::Asked) => {
                let why = "the program was asked to pay it and its answer is not known: it may \
                           have been paid. It is not asked again";
                self.report_trouble(id, why);
                Ok(())
            }
            None => {
                let why = "it is locked with this key, by hand or by another process, and not by \
                           this one: it may have been paid. The program is not asked";
                self.report_trouble(id, why);
                Ok(())
            }
        }
    }

    async fn lock_withdrawal(&mut self, hook: &Path, request: &MoneyRequest) -> Outcome {
        let id = request.id;
        if self.locking.contains_key(&id) {
            return Ok(());
        }
        match self
            .operator
            .submit_one(Command::Lock { request: id })
            .await
        {
            Ok(Acceptance::Locked(lock)) => {
                let locked = MoneyRequest {
                    lock: Some(lock),
                    ..request.clone()
                };
                self.ask_to_pay(hook, &locked).await
            }
            Ok(_) => {
                self.locking.insert(id, self.looks);
                Ok(())
            }
            // The account took it back before payment, or another operator was faster.
            Err(TradeError::Refused(
                Refusal::RequestUnknown { .. } | Refusal::RequestLocked { .. },
            )) => Ok(()),
            Err(error) => Err(from_trade(error)),
        }
    }

    /// Asks the program to pay. The journal must hold the question before the program starts.
    async fn ask_to_pay(&mut self, hook: &Path, request: &MoneyRequest) -> Outcome {
        let id = request.id;
        let payment = payment_id(self.operator.market(), id);
        self.record_payout(&payment, Payout::Asked)?;
        let wanted = HookRequest {
            request,
            payment: payment.clone(),
        };
        match ask_hook(hook, &wanted).await {
            Ok(Decision::Wait) => self.record_payout(&payment, Payout::Waits),
            Ok(Decision::Confirm) => {
                self.record_payout(&payment, Payout::Paid)?;
                self.answer_request(id, None).await
            }
            Ok(Decision::Refuse { reason }) => {
                let refused = Payout::Refused {
                    reason: reason.clone(),
                };
                self.record_payout(&payment, refused)?;
                self.answer_request(id, Some(&reason)).await
            }
            Err(cause) => {
                let why = format!("{cause}: it may have been paid. The program is not asked again");
                self.report_trouble(id, &why);
                Ok(())
            }
        }
    }

    fn record_payout(&mut self, payment: &str, payout: Payout) -> Outcome {
        let put = self.payouts.record_payout(payment, payout);
        put.map_err(|error| journal_write_failure(&self.key_file, &error))
    }

    /// Repeats the answer of the operator that pays.
    async fn follow_payer(&mut self, id: RequestId, payer: AccountKey) -> Outcome {
        let found = self.operator.broker().fetch_governance().await;
        let found = found.map_err(unreachable_market)?;
        let own = self.operator.account();
        let answers = found.approvals.into_iter().find(|approval| {
            let is_answer = match &approval.command {
                Command::Confirm { request } | Command::Refuse { request, .. } => *request == id,
                _ => false,
            };
            is_answer && approval.given.first() == Some(&payer) && !approval.given.contains(&own)
        });
        match answers.map(|approval| approval.command) {
            Some(Command::Refuse { reason, .. }) => {
                self.answer_request(id, Some(reason.as_str())).await
            }
            Some(_) => self.answer_request(id, None).await,
            None => Ok(()),
        }
    }

    /// Confirms a request, or refuses it for a reason.
    async fn answer_request(&mut self, id: RequestId, refused: Option<&str>) -> Outcome {
        if self.answered.contains_key(&id) {
            return Ok(());
        }
        let (command, text) = match refused {
            None => {
                let command = Command::Confirm { request: id };
                (command, format!("request {id} is confirmed"))
            }
            Some(reason) => {
                let text = format!("request {id} is refused: {reason}");
                let reason = short_text("the reason", reason)?;
                (
                    Command::Refuse {
                        request: id,
                        reason,
                    },
                    text,
                )
            }
        };
        match self.operator.submit_one(command).await {
            Ok(Acceptance::Awaited { .. }) => {
                self.answered.insert(id, self.looks);
                return Ok(());
            }
            Ok(_) => {}
            Err(TradeError::Refused(refusal)) => {
                let what = match refused {
                    None => "it was to be confirmed",
                    Some(_) => "it was to be refused",
                };
                self.report_trouble(
                    id,
                    &format!("{what}, and the market does not do so: {refusal}"),
                );
                return Ok(());
            }
            Err(error) => return Err(from_trade(error)),
        }
        self.troubles.remove(&id);
        let facts = json!({ "request": id, "confirmed": refused.is_none() });
        show::print_result(self.output, &facts, &text);
        Ok(())
    }
}

/// Returns a hint for the person who decides a request.
fn manual_decision_hint() -> String {
    let confirm = suggested_command::market_command("operator confirm ID");
    let refuse = suggested_command::market_command("operator refuse ID REASON");
    format!("check whether it was paid; if it was: {confirm}\n  if it was not: {refuse}")
}

fn journal_write_failure(key_file: &Path, error: &std::io::Error) -> Failure {
    let folder = key_file.parent().unwrap_or(key_file);
    let cause = format!(
        "payments can't be recorded in {}: {error}",
        folder.display()
    );
    Failure::new(
        Kind::State,
        cause,
        "nothing is paid without a record: repair the folder",
    )
}

/// Decides for a faucet: it confirms deposits up to a limit.
fn decide_faucet(request: &MoneyRequest, most: u64) -> Decision {
    match request.amount.0 <= most {
        true => Decision::Confirm,
        false => Decision::Refuse {
            reason: format!("the faucet gives {} at most", show::format_credits(most)),
        },
    }
}

/// Sends the request to a program as JSON, and reads its decision.
async fn ask_hook(hook: &Path, request: &HookRequest<'_>) -> Result<Decision, String> {
    let named = |cause: std::io::Error| format!("{}: {cause}", hook.display());
    let mut program = process::Command::new(hook)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(named)?;
    let text = serde_json::to_string(request).map_err(|error| error.to_string())?;
    if let Some(mut input) = program.stdin.take() {
        // A program that decides without reading may have closed its input.
        let _ = input.write_all(format!("{text}\n").as_bytes()).await;
    }
    let ended = tokio::time::timeout(HOOK_TIMEOUT, program.wait_with_output()).await;
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
