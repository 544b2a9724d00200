//! One way to lock what threads share.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks what each holder changes whole or not at all, so that a panic elsewhere leaves it sound.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
