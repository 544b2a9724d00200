//! Cells where there are none: no value of these types exists, and starting one says why.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use souk_memory::{ContentId, Store};
use souk_scheduler::execution::{Moment, RunResult, Task};
use souk_vocabulary::profile::Profile;

use super::{CellFault, Course, Recipe, Walls};
use crate::folder::config::Fault;

/// A running cell, of which there is none.
#[derive(Debug)]
pub enum Cell {}

/// A provider's cells, which cannot be.
#[derive(Clone, Debug)]
pub enum Cells {}

impl Cell {
    /// Refuses: the walls are those of another system.
    ///
    /// # Errors
    /// [`CellFault::NotHere`], always.
    pub async fn start(_recipe: &Recipe) -> Result<Cell, CellFault> {
        Err(CellFault::NotHere {
            system: std::env::consts::OS,
        })
    }

    /// What keeps the work in.
    #[must_use]
    pub fn walls(&self) -> &Walls {
        match *self {}
    }

    /// What its devices are called together in reports.
    #[must_use]
    pub fn label(&self) -> &str {
        match *self {}
    }

    /// What its devices are.
    ///
    /// # Errors
    /// None: there is no cell to ask.
    pub fn profiles(&self) -> Result<Vec<Profile>, CellFault> {
        match *self {}
    }

    /// The process, while it is not known to have ended.
    #[must_use]
    pub fn process_id(&self) -> Option<u32> {
        match *self {}
    }

    /// Requests of a stream that keep its devices at work.
    #[must_use]
    pub fn stream_ahead(&self) -> usize {
        match *self {}
    }

    /// Lets the cell's threads compute for no longer than this in sum.
    ///
    /// # Errors
    /// None: there is no cell to ask.
    pub fn limit_cpu(&self, _time: Duration) -> io::Result<()> {
        match *self {}
    }

    /// Gives the cell a model and its weights.
    ///
    /// # Errors
    /// None: there is no cell to ask.
    pub async fn prepare(
        &self,
        _store: &Arc<Store>,
        _shared: &(),
        _model: ContentId,
        _weights: &[ContentId],
    ) -> Result<(), CellFault> {
        match *self {}
    }

    /// Runs a part.
    ///
    /// # Errors
    /// None: there is no cell to ask.
    pub async fn run(
        &self,
        _task: Task,
        _course: Course,
        _deadline: Option<Moment>,
        _fault: Option<Fault>,
    ) -> Result<RunResult, CellFault> {
        match *self {}
    }
}

impl Cells {
    /// The cells after a first one, which cannot be.
    #[must_use]
    pub fn new(_recipe: Recipe, first: Cell) -> Cells {
        match first {}
    }

    /// What is shared with them.
    #[must_use]
    pub fn shared(&self) -> &() {
        match *self {}
    }

    /// How many there are.
    #[must_use]
    pub fn counts(&self) -> super::CellCounts {
        match *self {}
    }

    /// Lets none wait for a lease any more.
    pub fn retire(&self) {
        match *self {}
    }

    /// A cell for a lease.
    ///
    /// # Errors
    /// None: there is nothing to take one from.
    pub async fn take(&self) -> Result<Cell, CellFault> {
        match *self {}
    }
}
