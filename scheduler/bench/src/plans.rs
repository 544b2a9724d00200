//! Runs a planner on a file of scheduling instances, validates and writes its schedules, and
//! compares them with the best known ones.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::time::Duration;

use serde::Serialize;

use super::clock::Stopwatch;
use super::instances::{BenchError, Instance, read};
use souk_scheduler::planning::planner::{PLANNERS, find_planner};
use souk_scheduler::planning::schedule::Schedule;

/// One line of the schedules file.
#[derive(Debug, Serialize)]
pub struct PlanLine {
    /// Id of the instance.
    pub id: String,
    /// Start of each task.
    pub start: Vec<u64>,
    /// Device of each task.
    pub proc: Vec<usize>,
}

/// The results of a planner over a file; ratios are geometric means.
#[derive(Debug, Serialize)]
pub struct PlanReport {
    /// Name of the planner.
    pub planner: String,
    /// Milliseconds of processor time that the planner can use for each instance.
    pub budget_ms: u64,
    /// Number of planned instances.
    pub instances: usize,
    /// Makespan divided by the best known one, over instances with one.
    pub to_best_known: f64,
    /// Makespan divided by HEFT's, over instances with one.
    pub to_heft: f64,
    /// Number of instances with a makespan above HEFT's.
    pub worse_than_heft: usize,
    /// Number of instances with a makespan above the best single device's.
    pub worse_than_single: usize,
    /// Number of instances with a makespan below the best known.
    pub new_best: usize,
    /// Number of instances with a makespan equal to the best known.
    pub equal_best: usize,
    /// Longest time of a plan, in milliseconds.
    pub longest_ms: f64,
    /// Mean ratio to the best known makespan for each family.
    pub families: BTreeMap<String, f64>,
}

/// Plans every instance of `path` with the planner called `name`, each for `budget_ms`, validates
/// each schedule, and writes the schedules to `out`, one line for each instance.
///
/// # Errors
/// [`BenchError`] if a file, an instance or the name is invalid.
pub fn plan_file(
    path: &Path,
    name: &str,
    budget_ms: u64,
    out: &Path,
) -> Result<PlanReport, BenchError> {
    let plan = find_planner(name).ok_or_else(|| BenchError::Planner {
        name: name.to_owned(),
        known: PLANNERS.iter().map(|(name, _)| *name).collect(),
    })?;
    let instances: Vec<Instance> = read(path)?;
    let file_error = |source| BenchError::File {
        path: out.to_owned(),
        source,
    };
    let mut writer = BufWriter::new(File::create(out).map_err(file_error)?);
    let mut tally = Tally::default();
    for instance in &instances {
        let problem = instance.to_problem()?;
        let failed = |source| BenchError::Problem {
            id: instance.id.clone(),
            source,
        };
        let watch = Stopwatch::start();
        let budget = Duration::from_millis(budget_ms);
        let schedule = plan(&problem, &mut |_| watch.used_share(budget)).map_err(failed)?;
        let took = watch.elapsed();
        assert_eq!(
            schedule.validate(&problem),
            Ok(()),
            "instance {}",
            instance.id
        );
        let single = find_planner("single").expect("it is in the list");
        let single = single(&problem, &mut |_| 1.0).map_err(failed)?;
        tally.add(instance, &schedule, single.makespan, took);
        let line = PlanLine {
            id: instance.id.clone(),
            start: schedule.start,
            proc: schedule.device,
        };
        let line = serde_json::to_string(&line).expect("numbers and strings become JSON");
        writeln!(writer, "{line}").map_err(file_error)?;
    }
    writer.flush().map_err(file_error)?;
    Ok(tally.into_report(name, budget_ms, instances.len()))
}

#[derive(Default)]
struct Tally {
    families: BTreeMap<String, Vec<f64>>,
    to_heft: Vec<f64>,
    worse_than_heft: usize,
    worse_than_single: usize,
    new_best: usize,
    equal_best: usize,
    longest: Duration,
}

impl Tally {
    fn add(&mut self, instance: &Instance, schedule: &Schedule, single: u64, took: Duration) {
        let makespan = schedule.makespan;
        self.longest = self.longest.max(took);
        self.worse_than_single += usize::from(makespan > single);
        let Some(results) = &instance.results else {
            return;
        };
        if let Some(best) = &results.best {
            let ratios = self.families.entry(instance.family.clone()).or_default();
            ratios.push(makespan as f64 / best.makespan as f64);
            self.new_best += usize::from(makespan < best.makespan);
            self.equal_best += usize::from(makespan == best.makespan);
        }
        if let Some(heft) = results.r#ref.as_ref().and_then(|known| known.get("HEFT")) {
            self.to_heft.push(makespan as f64 / *heft as f64);
            self.worse_than_heft += usize::from(makespan > *heft);
        }
    }

    fn into_report(self, name: &str, budget_ms: u64, instances: usize) -> PlanReport {
        let all: Vec<f64> = self.families.values().flatten().copied().collect();
        let families = self.families.iter();
        PlanReport {
            planner: name.to_owned(),
            budget_ms,
            instances,
            to_best_known: geometric_mean(&all),
            to_heft: geometric_mean(&self.to_heft),
            worse_than_heft: self.worse_than_heft,
            worse_than_single: self.worse_than_single,
            new_best: self.new_best,
            equal_best: self.equal_best,
            longest_ms: self.longest.as_secs_f64() * 1e3,
            families: families
                .map(|(family, ratios)| (family.clone(), geometric_mean(ratios)))
                .collect(),
        }
    }
}

/// Returns the geometric mean; 1 for no ratios.
fn geometric_mean(ratios: &[f64]) -> f64 {
    let logs: f64 = ratios.iter().map(|ratio| ratio.ln()).sum();
    if ratios.is_empty() {
        1.0
    } else {
        (logs / ratios.len() as f64).exp()
    }
}
