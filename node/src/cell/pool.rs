//! The cells of a provider: one for each lease, and one that waits for the next.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Semaphore;

use super::{Cell, CellFault, Recipe, Shared};

/// Cells that wait for a lease. One starts within a lease's other steps; more only hold memory.
const WARM_MAX: usize = 1;

/// A provider's cells.
#[derive(Clone, Debug)]
pub struct Cells {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    recipe: Recipe,
    shared: Arc<Shared>,
    warm: Mutex<VecDeque<Cell>>,
    /// Held while a cell for later is started: one at a time.
    starting: Arc<Semaphore>,
}

/// Tells the pool that a cell is gone, so that the next one is made ready.
#[derive(Debug)]
pub(super) struct Vacated {
    cells: Cells,
}

impl Cells {
    /// The cells that are made by `recipe`, the first of which is there.
    #[must_use]
    pub fn new(recipe: Recipe, first: Cell) -> Cells {
        let inner = Inner {
            recipe,
            shared: Arc::default(),
            warm: Mutex::new(VecDeque::from([first])),
            starting: Arc::new(Semaphore::new(1)),
        };
        Cells {
            inner: Arc::new(inner),
        }
    }

    /// The content that is shared with all of them.
    #[must_use]
    pub fn shared(&self) -> &Arc<Shared> {
        &self.inner.shared
    }

    /// A cell for a lease. Nobody else has been in it.
    ///
    /// # Errors
    /// [`CellFault`], if none waits and none can be started.
    pub async fn take(&self) -> Result<Cell, CellFault> {
        let waiting = || self.inner.warm().pop_front();
        let mut found = None;
        while let Some(mut cell) = waiting() {
            if !cell.has_ended() {
                found = Some(cell);
                break;
            }
        }
        let mut cell = match found {
            Some(cell) => cell,
            None => Cell::start(&self.inner.recipe).await?,
        };
        cell.vacated = Some(Vacated {
            cells: self.clone(),
        });
        Ok(cell)
    }

    /// Starts a cell for the next lease, unless one waits or is being started.
    fn refill(&self) {
        let (cells, starting) = (self.clone(), self.inner.starting.clone());
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return;
        };
        runtime.spawn(async move {
            let Ok(_starting) = starting.try_acquire() else {
                return;
            };
            if cells.inner.warm().len() >= WARM_MAX {
                return;
            }
            match Cell::start(&cells.inner.recipe).await {
                Ok(cell) => cells.inner.warm().push_back(cell),
                Err(fault) => tracing::warn!(%fault, "no process waits for the next lease"),
            }
        });
    }
}

impl Inner {
    fn warm(&self) -> MutexGuard<'_, VecDeque<Cell>> {
        // No code in here panics half-way through a change.
        self.warm.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Vacated {
    fn drop(&mut self) {
        self.cells.refill();
    }
}
