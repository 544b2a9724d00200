//! Plans over the book as it stands.

use std::time::Instant;

use serde_json::Value;
use souk_node::buyer::checked::{PLANS_FOLDER, ShownPlan};
use souk_node::buyer::job::Job;
use souk_node::buyer::{Quote, plan_json};

use crate::job_body::JobBody;
use crate::plans::MadePlan;
use crate::problem::Problem;
use crate::state::State;

/// Plans a job over the book as it stands, and remembers the plan.
///
/// # Errors
/// Why there is none.
pub async fn plan(state: &State, body: JobBody) -> Result<Value, Problem> {
    let (job, _) = body.job(|id| state.contents.read(id))?;
    let began = Instant::now();
    let quote = state.buyer.quote(&job).await?;
    state.figures.planned(began.elapsed());
    let alternatives = quote.alternatives(&job.limits)?;
    let plan = plan_json::with_choice(&quote, &job.limits, &alternatives);
    shown(state, &job, &quote)?.remember(&state.folder.join(PLANS_FOLDER))?;
    let made = MadePlan {
        body,
        plan: plan.clone(),
    };
    state.plans.put(quote.hash().to_string(), made);
    Ok(plan)
}

/// A plan as it is shown.
///
/// # Errors
/// When the model cannot be made into one subgraph.
pub fn shown(state: &State, job: &Job, quote: &Quote) -> Result<ShownPlan, Problem> {
    Ok(ShownPlan::new(quote, state.buyer.subject(job, quote)?))
}
