//! Finds the runs of training that were begun from the gateway's folder, and builds their JSON for
//! the API: how each stands, and its losses as a curve.

use std::path::Path;

use serde::Serialize;
use souk_api::time::format_rfc3339;
use souk_node::buyer::training::{ListedRun, LossBits, RunState, read_runs, read_runs_named};
use utoipa::ToSchema;

use crate::problem::Problem;

/// The most points of a curve: as many as a chart can show.
const CURVE_POINTS: usize = 240;

/// How a run of training stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum TrainingStanding {
    /// A process is at work on it.
    Running,
    /// All steps are done, and the result is written.
    Done,
    /// All steps are done, and `souk train resume` must write the result.
    NotWritten,
    /// The process that ran it is gone.
    Killed,
    /// It was stopped.
    Stopped,
    /// A step made an infinite number or a NaN.
    NotFinite,
    /// No provider offered a lease.
    NoDevice,
    /// The budget does not pay the next lease.
    NoMoney,
    /// Several leases in a row brought no parameters.
    DevicesLost,
    /// Two providers made different parameters in the same steps, and no third one could be asked.
    Disputed,
    /// Its journal could not be written.
    DiskFailed,
}

/// A run of training.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct TrainingView {
    /// What it is called.
    pub id: String,
    pub state: TrainingStanding,
    /// RFC 3339.
    begun_at: String,
    #[serde(skip)]
    pub begun_ms: u64,
    /// The path of its result.
    result: String,
    /// Steps that count: those after the last kept parameters do not.
    steps_done: u64,
    /// Steps in all.
    steps: u64,
    /// The loss of the last of them; null if it is no number.
    loss: Option<f32>,
    /// The last loss of the held-out examples.
    held_out_loss: Option<f32>,
    /// What its leases have cost or can still cost, without one that is open, in micro-credits.
    spent: u64,
    /// Receipts of its leases, each signed by both sides.
    receipts: usize,
}

/// A run of training with its losses.
#[derive(Debug, Serialize, ToSchema)]
pub struct TrainingDetail {
    #[serde(flatten)]
    training: TrainingView,
    /// The losses of its steps: at most 240 points, each the mean of equally many steps.
    curve: Vec<LossPoint>,
    /// The losses of the held-out examples: at most 240 points, the first and the last among them.
    held_out: Vec<LossPoint>,
}

/// A loss after some steps.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct LossPoint {
    /// The number of steps done.
    pub step: u64,
    /// The loss; null if it is infinite or no number.
    pub loss: Option<f32>,
}

impl From<RunState> for TrainingStanding {
    fn from(state: RunState) -> Self {
        match state {
            RunState::Running => Self::Running,
            RunState::Done => Self::Done,
            RunState::NotWritten => Self::NotWritten,
            RunState::Killed => Self::Killed,
            RunState::Stopped => Self::Stopped,
            RunState::NotFinite => Self::NotFinite,
            RunState::NoDevice => Self::NoDevice,
            RunState::NoMoney => Self::NoMoney,
            RunState::DevicesLost => Self::DevicesLost,
            RunState::Disputed => Self::Disputed,
            RunState::DiskFailed => Self::DiskFailed,
        }
    }
}

/// Returns the runs that were begun from the gateway's folder. It reads all their journals: do not
/// call it on a thread that serves others.
pub fn all_trainings(folder: &Path) -> Vec<TrainingView> {
    read_runs(folder).iter().map(describe_run).collect()
}

/// Returns a run by its name, or by a beginning that no other has. It reads the run's journal: do
/// not call it on a thread that serves others.
///
/// # Errors
/// Fails if no run, or more than one, begins so.
pub fn find_training(folder: &Path, begins: &str) -> Result<ListedRun, Problem> {
    let mut runs = match begins {
        "" => Vec::new(),
        _ => read_runs_named(folder, begins),
    };
    match runs.len() {
        1 => Ok(runs.remove(0)),
        0 => {
            let detail = format!("there is no training \"{begins}\"");
            Err(Problem::not_found(detail, "/v1/trainings lists them"))
        }
        many => {
            let detail = format!("{many} trainings begin with \"{begins}\"");
            Err(Problem::not_found(detail, "give more of the id"))
        }
    }
}

/// Describes a run with its losses.
pub fn describe_detail(run: &ListedRun) -> TrainingDetail {
    TrainingDetail {
        training: describe_run(run),
        curve: mean_curve(&run.past.losses),
        held_out: thin_points(&run.past.held_out),
    }
}

/// Returns the loss of each step that counts.
pub fn step_losses(run: &ListedRun) -> Vec<LossPoint> {
    let losses = (1..).zip(&run.past.losses);
    losses.map(|(step, loss)| to_point(step, *loss)).collect()
}

fn describe_run(run: &ListedRun) -> TrainingView {
    let past = &run.past;
    let held_out = past.held_out.last();
    TrainingView {
        id: run.name.clone(),
        state: run.state().into(),
        begun_at: format_rfc3339(past.at.0),
        begun_ms: past.at.0,
        result: run.result().display().to_string(),
        steps_done: past.kept.position,
        steps: past.steps,
        loss: past.losses.last().and_then(|loss| to_number(*loss)),
        held_out_loss: held_out.and_then(|(_, loss)| to_number(*loss)),
        spent: past.spent.0,
        receipts: past.receipts.len(),
    }
}

fn to_number(loss: LossBits) -> Option<f32> {
    Some(f32::from_bits(loss.0)).filter(|loss| loss.is_finite())
}

fn to_point(step: u64, loss: LossBits) -> LossPoint {
    let loss = to_number(loss);
    LossPoint { step, loss }
}

/// Returns the means of equally many losses, each at the last of its steps.
fn mean_curve(losses: &[LossBits]) -> Vec<LossPoint> {
    let width = losses.len().div_ceil(CURVE_POINTS).max(1);
    let parts = losses.chunks(width).enumerate();
    let mean = |(place, part): (usize, &[LossBits])| {
        let sum: Option<f64> = part.iter().map(|it| to_number(*it).map(f64::from)).sum();
        LossPoint {
            step: (place * width + part.len()) as u64,
            loss: sum.map(|sum| (sum / part.len() as f64) as f32),
        }
    };
    parts.map(mean).collect()
}

/// Returns each n-th evaluation and the last one.
fn thin_points(all: &[(u64, LossBits)]) -> Vec<LossPoint> {
    let every = all.len().div_ceil(CURVE_POINTS - 1).max(1);
    let last = all.len().saturating_sub(1);
    let chosen = all.iter().enumerate();
    let chosen = chosen.filter(|(place, _)| place.is_multiple_of(every) || *place == last);
    chosen
        .map(|(_, (step, loss))| to_point(*step, *loss))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bits(loss: f32) -> LossBits {
        LossBits(loss.to_bits())
    }

    #[test]
    fn a_short_run_has_a_point_for_each_step_and_a_long_one_their_means() {
        let short = mean_curve(&[bits(3.0), bits(f32::NAN), bits(1.0)]);
        let losses: Vec<(u64, Option<f32>)> = short.iter().map(|it| (it.step, it.loss)).collect();
        assert_eq!(losses, [(1, Some(3.0)), (2, None), (3, Some(1.0))]);
        let long: Vec<LossBits> = (0..1001).map(|step| bits((step % 5) as f32)).collect();
        let curve = mean_curve(&long);
        assert!(curve.len() <= CURVE_POINTS, "{}", curve.len());
        assert_eq!((curve[0].step, curve[0].loss), (5, Some(2.0)));
        assert_eq!(
            curve.last().map(|it| (it.step, it.loss)),
            Some((1001, Some(0.0)))
        );
        assert!(mean_curve(&[]).is_empty());
    }

    #[test]
    fn of_many_evaluations_the_first_and_the_last_stay() {
        let all: Vec<(u64, LossBits)> = (0..1000).map(|at| (at * 8, bits(1.0))).collect();
        let points = thin_points(&all);
        assert!(points.len() <= CURVE_POINTS, "{}", points.len());
        assert_eq!((points[0].step, points.last().unwrap().step), (0, 7992));
        assert_eq!(thin_points(&all[..2]).len(), 2);
        assert!(thin_points(&[]).is_empty());
    }
}
