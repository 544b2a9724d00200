//! Holds the shared parts of the commands that continue texts (`souk generate`, `chat`, `openai`
//! and the demo's conversation): arguments become the terms of sessions, errors become failures,
//! and notices go to the terminal.

use std::path::Path;
use std::sync::Arc;

use souk_llm::model::LanguageModel;
use souk_llm::sampling::Sampling;
use souk_node::buyer::Quote;
use souk_node::buyer::job::{EmulatedDevices, Limits};
use souk_node::market::{Credits, Receipt};
use souk_texts::{
    SessionSize, SessionTerms, StopSignal, TextEngine, TextError, TextMarket, TextModel,
    TextObserver,
};

use super::submit;
use crate::args::{LeaseArgs, Output, PlacementArgs, SamplingArgs};
use crate::failure::{Failure, Kind};
use crate::folder::join_as_buyer;
use crate::show;

/// Opens an engine on this machine or in the market of `folder`, as the arguments say.
/// `stop` ends its sessions at once.
pub async fn open_engine(
    folder: &Path,
    output: Output,
    (model, text_model): (LanguageModel, &TextModel),
    args: &PlacementArgs,
    size: SessionSize,
    stop: StopSignal,
) -> Result<TextEngine, Failure> {
    let positions = text_model.context_length;
    if args.local {
        let engine = TextEngine::open_local(model, positions, size, args.threads);
        return Ok(engine?);
    }
    if let Some(out) = &args.lease.out {
        crate::files::prepare_folder(out)?;
    }
    let terms = SessionTerms {
        limits: lease_limits(&args.lease)?,
        sessions: args.verify,
    };
    let market = TextMarket {
        buyer: join_as_buyer(folder).await?,
        folder,
        observer: Arc::new(SessionNotices(output)),
    };
    let engine = TextEngine::open_market(market, model, positions, size, terms, stop);
    Ok(engine?)
}

/// Returns the limits that the arguments of a lease state.
pub fn lease_limits(args: &LeaseArgs) -> Result<Limits, Failure> {
    let budget = args
        .budget
        .map(|it| submit::to_micro_credits("--budget", it))
        .transpose()?;
    Ok(Limits {
        budget: budget.map(Credits),
        providers_min: args.min_providers,
        providers_max: args.max_providers.max(args.min_providers),
        devices: args.device.clone(),
        emulated: match args.emulated {
            true => EmulatedDevices::Accepted,
            false => EmulatedDevices::default(),
        },
        wait: args.wait,
        objective: args.prefer,
        ..Limits::default()
    })
}

/// Shows plans and notices in the terminal.
struct SessionNotices(Output);

impl TextObserver for SessionNotices {
    fn describe_plan(&self, quote: &Quote, limits: &Limits) -> Vec<String> {
        show::plan::describe_plan(quote, limits)
    }

    fn show_plan(&self, plan: &[String], providers: &str) {
        if self.0 == Output::Text {
            plan.iter().for_each(|line| show::print_notice(line));
            show::print_notice(&format!("  the text is seen by {providers}"));
        }
    }

    fn show_notice(&self, notice: &str) {
        show::print_notice(notice);
    }
}

impl From<TextError> for Failure {
    fn from(error: TextError) -> Failure {
        let cause = error.to_string();
        match error {
            TextError::Input { hint, .. } => Failure::new(Kind::Input, cause, hint),
            TextError::NotRunnable(_) => Failure::new(Kind::NoPlan, cause, ""),
            TextError::Quote { error, budget } => {
                let mut failure = submit::from_quote(*error);
                if budget.is_some() {
                    failure.cause = cause;
                    "give a larger --budget; what is held and not paid comes back when its lease \
                     is over"
                        .clone_into(&mut failure.hint);
                }
                failure
            }
            TextError::Ended(ended) => submit::from_ended(&ended, None),
            TextError::Journal(error) => submit::journal_failure(error),
            TextError::Disagreement(_) => {
                let hint =
                    "run it on other providers; two providers agreed on everything before that";
                Failure::new(Kind::Verification, cause, hint)
            }
            TextError::Interrupted(_) => Failure::new(Kind::Interrupted, cause, ""),
            TextError::Unexpected { hint, .. } => Failure::new(Kind::Unexpected, cause, hint),
        }
    }
}

/// Returns the sampling that the arguments describe.
pub fn sampling_from_args(args: &SamplingArgs) -> Result<Sampling, Failure> {
    let sampling = Sampling {
        temperature: args.temperature,
        top_k: args.top_k,
        top_p: args.top_p,
        min_p: args.min_p,
        repetition: args.repetition_penalty,
        frequency: args.frequency_penalty,
        presence: args.presence_penalty,
        bias: args.logit_bias.iter().copied().collect(),
        seed: args.seed,
    };
    let checked = sampling.check_ranges();
    checked.map_err(|error| Failure::new(Kind::Usage, error, ""))
}

/// Prints the payments.
pub fn print_payments(receipts: &[Receipt]) {
    for receipt in receipts {
        let body = &receipt.body;
        let (lease, amount) = (body.lease, show::format_credits(body.amount.0));
        show::print_notice(&format!(
            "  lease {lease}: {amount} credits, signed by both sides"
        ));
    }
}
