//! Locks a mutex even if a thread panicked while it held the lock. Each holder must change the
//! locked state completely or not at all, so that a panic elsewhere leaves it valid.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks state that each holder must change completely or not at all, so that a panic elsewhere
/// leaves it valid.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
