//! Defines the input of a planner: tasks, their times on each device, and the times to move data.
//!
//! It is pure data in whole numbers of one unit of time, so that equal problems lead to equal plans
//! on every machine. [`Problem::new`] checks once what planners rely on: no cycles, no overflowing
//! sums, and a device for every task.

use thiserror::Error;

use super::objective::{Figures, Objective, Score};
use super::time::{NEVER, TIME_MAX, Time};
use crate::graph::topological_order;

/// The parts of a problem before they are checked. Square tables are stored row by row.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ProblemParts {
    /// Number of devices.
    pub devices: usize,
    /// Execution times, one row of `devices` entries for each task; [`NEVER`] on devices that
    /// cannot run it.
    pub exec: Vec<Time>,
    /// Data dependencies between tasks.
    pub edges: Vec<Edge>,
    /// Latency between devices, one row for each sender.
    pub latency: Vec<Time>,
    /// Time per byte between devices, one row for each sender.
    pub time_per_byte: Vec<Time>,
    /// Bytes of memory that each task occupies for the whole plan; empty for none.
    pub memory: Vec<u64>,
    /// Bytes of memory of each device; empty for unlimited.
    pub capacity: Vec<u64>,
    /// Device that each task must run on; empty for free choice.
    pub pinned: Vec<Option<usize>>,
    /// Price per unit of time on each device; empty for none.
    pub price: Vec<u64>,
    /// Power that each device draws while it computes; empty for none.
    pub power: Vec<u64>,
    /// The quantity that a plan should minimise.
    pub objective: Objective,
    /// Latest end of the plan.
    pub deadline: Option<Time>,
}

/// A dependency: the task `to` needs `bytes` of output from the task `from`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edge {
    /// Task that produces the data.
    pub from: usize,
    /// Task that needs the data.
    pub to: usize,
    /// Bytes of data.
    pub bytes: u64,
}

/// A checked problem.
#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    parts: ProblemParts,
    tasks: usize,
    order: Vec<usize>,
    before: Adjacency,
    after: Adjacency,
    /// Latency and time per byte of each pair of devices.
    links: Vec<(Time, Time)>,
}

/// Neighbours of each task, row by row.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Adjacency {
    starts: Vec<u32>,
    neighbours: Vec<(u32, u64)>,
}

/// The reason why a problem cannot be planned.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ProblemError {
    /// The problem has no device.
    #[error("there is no device")]
    NoDevice,
    /// A table has the wrong length.
    #[error("{table} has {found} entries, {expected} are needed")]
    Length {
        /// Name of the table.
        table: &'static str,
        /// Number of entries that it must have.
        expected: usize,
        /// Number of entries that it has.
        found: usize,
    },
    /// An edge starts or ends at a task that does not exist, or connects a task with itself.
    #[error("edge {edge} goes from task {from} to task {to}, of {tasks} tasks")]
    Edge {
        /// Index of the edge.
        edge: usize,
        /// Task at its start.
        from: usize,
        /// Task at its end.
        to: usize,
        /// Number of tasks.
        tasks: usize,
    },
    /// A task depends on its own result.
    #[error("task {task} depends on itself")]
    Cycle {
        /// A task on the cycle, or one that depends on the cycle.
        task: usize,
    },
    /// No device can run a task.
    #[error("task {task} runs on no device it may use")]
    Nowhere {
        /// Index of the task.
        task: usize,
    },
    /// The sum of the times is too large.
    #[error("the times of this problem add up to more than {limit}")]
    Overflow {
        /// Largest permitted sum.
        limit: Time,
    },
    /// The tasks need more memory than all devices have.
    #[error("the tasks need {needed} bytes of memory, the devices have {capacity}")]
    Memory {
        /// Bytes that all tasks need.
        needed: u64,
        /// Bytes that all devices have.
        capacity: u64,
    },
    /// The total memory suffices, but no planner found a device with room for a task.
    #[error("no device has memory left for task {task}, which needs {needed} bytes")]
    Full {
        /// Index of the task.
        task: usize,
        /// Bytes that the task needs.
        needed: u64,
    },
    /// No plan that the planners found meets the deadline.
    #[error("the deadline is {deadline}, the shortest plan found takes {reachable}")]
    Deadline {
        /// Latest permitted end.
        deadline: Time,
        /// Makespan of the shortest plan that the planners found.
        reachable: Time,
    },
}

impl Problem {
    /// Checks the parts and creates the problem.
    ///
    /// # Errors
    /// [`ProblemError`] for the first fault.
    pub fn new(mut parts: ProblemParts) -> Result<Self, ProblemError> {
        if parts.devices == 0 {
            return Err(ProblemError::NoDevice);
        }
        let tasks = parts.exec.len() / parts.devices;
        apply_pins(&mut parts, tasks);
        check_lengths(&parts, tasks)?;
        let order = check_edges(&parts, tasks)?;
        let problem = Self {
            before: Adjacency::new(tasks, parts.edges.iter().map(|e| (e.to, e.from, e.bytes))),
            after: Adjacency::new(tasks, parts.edges.iter().map(|e| (e.from, e.to, e.bytes))),
            links: parts
                .latency
                .iter()
                .copied()
                .zip(parts.time_per_byte.iter().copied())
                .collect(),
            parts,
            tasks,
            order,
        };
        problem.check_times()?;
        problem.check_places()?;
        Ok(problem)
    }

    /// Returns the number of tasks.
    #[must_use]
    pub fn task_count(&self) -> usize {
        self.tasks
    }

    /// Returns the number of devices.
    #[must_use]
    pub fn device_count(&self) -> usize {
        self.parts.devices
    }

    /// Returns the parts of the problem.
    #[must_use]
    pub fn parts(&self) -> &ProblemParts {
        &self.parts
    }

    /// Returns the execution time, or [`NEVER`] if the task cannot or must not run on the device.
    #[must_use]
    #[inline]
    pub fn exec_time(&self, task: usize, device: usize) -> Time {
        self.parts.exec[task * self.parts.devices + device]
    }

    /// Returns the execution times of a task on all devices.
    #[must_use]
    pub fn exec_row(&self, task: usize) -> &[Time] {
        &self.parts.exec[task * self.parts.devices..(task + 1) * self.parts.devices]
    }

    /// Returns the time of a transfer; zero within a device.
    #[must_use]
    #[inline]
    pub fn transfer_time(&self, from: usize, to: usize, bytes: u64) -> Time {
        if from == to {
            return 0;
        }
        let (latency, per_byte) = self.links[from * self.parts.devices + to];
        latency + bytes * per_byte
    }

    /// Returns the latency and time per byte from a device to each device. A device needs no time
    /// to send to itself, whatever its own entry says.
    #[must_use]
    #[inline]
    pub fn link_row(&self, from: usize) -> &[(Time, Time)] {
        &self.links[from * self.parts.devices..(from + 1) * self.parts.devices]
    }

    /// Returns the tasks that a task needs, each with the bytes of its output.
    #[inline]
    pub fn inputs_of(&self, task: usize) -> impl ExactSizeIterator<Item = (usize, u64)> + Clone {
        self.before
            .neighbours_of(task)
            .iter()
            .map(|&(task, bytes)| (task as usize, bytes))
    }

    /// Returns the tasks that need a task's output, each with the bytes.
    #[inline]
    pub fn readers_of(&self, task: usize) -> impl ExactSizeIterator<Item = (usize, u64)> + Clone {
        self.after
            .neighbours_of(task)
            .iter()
            .map(|&(task, bytes)| (task as usize, bytes))
    }

    /// Returns the tasks in topological order, smallest first among those ready.
    #[must_use]
    pub fn topological_order(&self) -> &[usize] {
        &self.order
    }

    /// Returns the bytes of memory that a task occupies.
    #[must_use]
    #[inline]
    pub fn task_memory(&self, task: usize) -> u64 {
        self.parts.memory.get(task).copied().unwrap_or(0)
    }

    /// Returns the bytes of memory of a device.
    #[must_use]
    pub fn device_capacity(&self, device: usize) -> u64 {
        self.parts.capacity.get(device).copied().unwrap_or(u64::MAX)
    }

    /// Returns whether memory can constrain a plan at all.
    #[must_use]
    pub fn has_memory_limit(&self) -> bool {
        !self.parts.memory.is_empty() && !self.parts.capacity.is_empty()
    }

    /// Returns the price per unit of time on a device.
    #[must_use]
    pub fn device_price(&self, device: usize) -> u64 {
        self.parts.price.get(device).copied().unwrap_or(0)
    }

    /// Returns the power of a device while it computes.
    #[must_use]
    pub fn device_power(&self, device: usize) -> u64 {
        self.parts.power.get(device).copied().unwrap_or(0)
    }

    /// Returns the quantity that a plan should minimise.
    #[must_use]
    pub fn objective(&self) -> Objective {
        self.parts.objective
    }

    /// Returns the latest end of the plan.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        self.parts.deadline
    }

    /// Returns the same problem with another objective and deadline.
    #[must_use]
    pub fn with_objective(&self, objective: Objective, deadline: Option<Time>) -> Self {
        let mut problem = self.clone();
        problem.parts.objective = objective;
        problem.parts.deadline = deadline;
        problem
    }

    /// Returns the figures of a plan, from the device and the end of each task.
    pub(crate) fn plan_figures(
        &self,
        device: impl Fn(usize) -> usize,
        finish: impl Fn(usize) -> Time,
    ) -> Figures {
        let mut figures = Figures::default();
        let mut busy = vec![0; self.device_count()];
        for task in 0..self.task_count() {
            figures.makespan = figures.makespan.max(finish(task));
            let own = device(task);
            busy[own] += self.exec_time(task, own);
        }
        for (device, &busy) in busy.iter().enumerate() {
            let product = |rate: u64| u128::from(busy) * u128::from(rate);
            figures.cost = figures
                .cost
                .saturating_add(product(self.device_price(device)));
            figures.energy = figures
                .energy
                .saturating_add(product(self.device_power(device)));
        }
        figures
    }

    /// Returns the score of a plan with these figures.
    pub(crate) fn score_figures(&self, figures: &Figures) -> Score {
        figures.score(self.parts.objective, self.parts.deadline)
    }

    /// Returns the same problem with time reversed, in which each edge is turned round. A plan of
    /// it, read from its end, is a plan of this problem.
    #[must_use]
    pub fn to_reversed(&self) -> Self {
        let mut parts = self.parts.clone();
        for edge in &mut parts.edges {
            (edge.from, edge.to) = (edge.to, edge.from);
        }
        let devices = parts.devices;
        for from in 0..devices {
            for to in 0..from {
                parts.latency.swap(from * devices + to, to * devices + from);
                parts
                    .time_per_byte
                    .swap(from * devices + to, to * devices + from);
            }
        }
        Self::new(parts).expect("a valid problem is valid backwards")
    }

    fn check_times(&self) -> Result<(), ProblemError> {
        let limit = TIME_MAX;
        let overflow = ProblemError::Overflow { limit };
        let slowest = |task: usize| {
            self.exec_row(task)
                .iter()
                .copied()
                .filter(|&time| time != NEVER)
                .max()
                .unwrap_or(0)
        };
        let latency = self.parts.latency.iter().max().copied().unwrap_or(0);
        let per_byte = self.parts.time_per_byte.iter().max().copied().unwrap_or(0);
        let exec = (0..self.tasks).map(slowest);
        let transfer = |edge: &Edge| edge.bytes.checked_mul(per_byte)?.checked_add(latency);
        let transfers = self.parts.edges.iter().map(transfer);
        let mut total: Time = 0;
        for time in exec.map(Some).chain(transfers) {
            total = time
                .and_then(|time| total.checked_add(time))
                .ok_or_else(|| overflow.clone())?;
        }
        if total < limit { Ok(()) } else { Err(overflow) }
    }

    fn check_places(&self) -> Result<(), ProblemError> {
        let fits = |task: usize, device: usize| {
            self.exec_time(task, device) != NEVER
                && self.task_memory(task) <= self.device_capacity(device)
        };
        let nowhere = |&task: &usize| (0..self.device_count()).all(|device| !fits(task, device));
        if let Some(task) = (0..self.tasks).find(nowhere) {
            return Err(ProblemError::Nowhere { task });
        }
        if self.has_memory_limit() {
            let needed = (0..self.tasks)
                .map(|task| self.task_memory(task))
                .fold(0, u64::saturating_add);
            let capacity = self
                .parts
                .capacity
                .iter()
                .copied()
                .fold(0, u64::saturating_add);
            if needed > capacity {
                return Err(ProblemError::Memory { needed, capacity });
            }
        }
        Ok(())
    }
}

/// Turns pins into execution times: a pinned task can run on no other device.
fn apply_pins(parts: &mut ProblemParts, tasks: usize) {
    let devices = parts.devices;
    for (task, pinned) in parts.pinned.iter().enumerate().take(tasks) {
        let Some(pinned) = pinned else { continue };
        for device in (0..devices).filter(|device| device != pinned) {
            parts.exec[task * devices + device] = NEVER;
        }
    }
}

fn check_lengths(parts: &ProblemParts, tasks: usize) -> Result<(), ProblemError> {
    let optional = |length: usize, full: usize| if length == 0 { 0 } else { full };
    let square = parts.devices * parts.devices;
    let of_devices = |name: &'static str, table: &[u64]| {
        let full = optional(table.len(), parts.devices);
        (name, table.len(), full)
    };
    let tables = [
        ("exec", parts.exec.len(), tasks * parts.devices),
        ("latency", parts.latency.len(), square),
        ("time_per_byte", parts.time_per_byte.len(), square),
        (
            "memory",
            parts.memory.len(),
            optional(parts.memory.len(), tasks),
        ),
        (
            "capacity",
            parts.capacity.len(),
            optional(parts.capacity.len(), parts.devices),
        ),
        (
            "pinned",
            parts.pinned.len(),
            optional(parts.pinned.len(), tasks),
        ),
        of_devices("price", &parts.price),
        of_devices("power", &parts.power),
    ];
    match tables
        .into_iter()
        .find(|(_, found, expected)| found != expected)
    {
        None => Ok(()),
        Some((table, found, expected)) => Err(ProblemError::Length {
            table,
            expected,
            found,
        }),
    }
}

fn check_edges(parts: &ProblemParts, tasks: usize) -> Result<Vec<usize>, ProblemError> {
    let mut successors = vec![Vec::new(); tasks];
    for (index, edge) in parts.edges.iter().enumerate() {
        let (from, to) = (edge.from, edge.to);
        if from >= tasks || to >= tasks || from == to {
            return Err(ProblemError::Edge {
                edge: index,
                from,
                to,
                tasks,
            });
        }
        successors[from].push(to);
    }
    topological_order(&successors).map_err(|task| ProblemError::Cycle { task })
}

impl Adjacency {
    fn new(tasks: usize, edges: impl Iterator<Item = (usize, usize, u64)> + Clone) -> Self {
        let mut starts = vec![0u32; tasks + 1];
        for (of, _, _) in edges.clone() {
            starts[of + 1] += 1;
        }
        for task in 0..tasks {
            starts[task + 1] += starts[task];
        }
        let mut next = starts.clone();
        let mut neighbours = vec![(0, 0); starts[tasks] as usize];
        for (of, neighbour, bytes) in edges {
            let neighbour = u32::try_from(neighbour).expect("task numbers fit 32 bits");
            neighbours[next[of] as usize] = (neighbour, bytes);
            next[of] += 1;
        }
        Self { starts, neighbours }
    }

    #[inline]
    fn neighbours_of(&self, task: usize) -> &[(u32, u64)] {
        &self.neighbours[self.starts[task] as usize..self.starts[task + 1] as usize]
    }
}
