//! What a plan should make small, and how good one is by it.
//!
//! All figures are whole numbers, so that of two plans one is better on every machine alike. A
//! deadline comes before everything else, the makespan decides among equals.

use crate::problem::{Problem, Time};
use crate::schedule::Schedule;

/// What a plan should make small.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Goal {
    /// The time when the last task ends.
    #[default]
    Makespan,
    /// The price of the time computed, with everything done by the deadline.
    Price {
        /// Latest end.
        deadline: Time,
    },
    /// The energy drawn, with everything done by the deadline.
    Energy {
        /// Latest end.
        deadline: Time,
    },
    /// The time when the first of the outputs is there.
    FirstOutput,
    /// A weighted sum.
    Weighted {
        /// Weight of a unit of the makespan.
        time: u64,
        /// Weight of a unit of price.
        price: u64,
        /// Weight of a unit of energy.
        energy: u64,
    },
}

/// What a plan takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// When the last task ends.
    pub makespan: Time,
    /// Time computed x price of the device, over all devices.
    pub price: u128,
    /// Time computed x power of the device, and time waited x its power then, over the devices
    /// that have work.
    pub energy: u128,
    /// When the first output is there; 0 without tasks.
    pub first_output: Time,
}

/// How good a plan is: smaller is better, the first difference decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Score {
    /// Time beyond the deadline.
    pub late: Time,
    /// What the goal makes small.
    pub value: u128,
    /// The makespan, which decides among equals.
    pub makespan: Time,
}

impl Goal {
    /// The deadline, if it has one.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        match *self {
            Self::Price { deadline } | Self::Energy { deadline } => Some(deadline),
            Self::Makespan | Self::FirstOutput | Self::Weighted { .. } => None,
        }
    }

    /// How good a plan with these figures is. No figure that grows makes it better.
    #[must_use]
    pub fn score(&self, figures: &Figures) -> Score {
        let value = match *self {
            Self::Makespan => u128::from(figures.makespan),
            Self::Price { .. } => figures.price,
            Self::Energy { .. } => figures.energy,
            Self::FirstOutput => u128::from(figures.first_output),
            Self::Weighted {
                time,
                price,
                energy,
            } => u128::from(figures.makespan)
                .saturating_mul(time.into())
                .saturating_add(figures.price.saturating_mul(price.into()))
                .saturating_add(figures.energy.saturating_mul(energy.into())),
        };
        let latest = self.deadline().unwrap_or(Time::MAX);
        Score {
            late: figures.makespan.saturating_sub(latest),
            value,
            makespan: figures.makespan,
        }
    }
}

impl Figures {
    /// Figures of a plan by the ends of its tasks and their devices.
    pub(crate) fn of(
        problem: &Problem,
        device: impl Fn(usize) -> usize,
        finish: impl Fn(usize) -> Time,
    ) -> Self {
        let mut figures = Self::default();
        let mut busy = vec![0; problem.devices()];
        for task in 0..problem.tasks() {
            figures.makespan = figures.makespan.max(finish(task));
            let own = device(task);
            busy[own] += problem.exec(task, own);
        }
        for (device, &busy) in busy.iter().enumerate() {
            figures.add_device(problem, device, busy);
        }
        let first = problem.outputs().iter().map(|&task| finish(task)).min();
        figures.first_output = first.unwrap_or(0);
        figures
    }

    /// Adds what `device` takes when it computes for `busy` of the makespan.
    fn add_device(&mut self, problem: &Problem, device: usize, busy: Time) {
        if busy == 0 {
            return;
        }
        let idle = self.makespan.saturating_sub(busy);
        let product = |time: Time, rate: u64| u128::from(time) * u128::from(rate);
        let (working, waiting) = problem.power(device);
        self.price = self
            .price
            .saturating_add(product(busy, problem.price(device)));
        let energy = product(busy, working).saturating_add(product(idle, waiting));
        self.energy = self.energy.saturating_add(energy);
    }
}

impl Schedule {
    /// What the plan takes.
    #[must_use]
    pub fn figures(&self, problem: &Problem) -> Figures {
        Figures::of(
            problem,
            |task| self.device[task],
            |task| self.finish(problem, task),
        )
    }

    /// How good the plan is by the problem's goal.
    #[must_use]
    pub fn score(&self, problem: &Problem) -> Score {
        if problem.goal() == Goal::Makespan {
            let makespan = self.makespan;
            return Goal::Makespan.score(&Figures {
                makespan,
                ..Figures::default()
            });
        }
        problem.goal().score(&self.figures(problem))
    }
}
