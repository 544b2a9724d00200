//! Runs stages of tasks on several threads, for the engines over images, sequences and decoders.
//!
//! A thread takes the next task of a stage until none remains, and continues with the next stage
//! when all tasks of this one are done. No thread waits for another to start: a single thread can
//! do all the work, and a late thread finds nothing to do. So two programs on one pool cannot block
//! each other.

use std::any::Any;
use std::ops::DerefMut;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use rten::ThreadPool;

/// How often a waiting thread polls the counter before it yields to others: a few microseconds, the
/// time of a short task.
const POLLS_BEFORE_YIELDING: u32 = 1 << 11;

/// The address of floats of which several threads write disjoint parts.
#[derive(Clone, Copy)]
pub(crate) struct Memory(*mut f32);

#[expect(unsafe_code, reason = "threads share the buffers of a run")]
// SAFETY: it is only an address; the code that reads or writes there proves why that is sound.
unsafe impl Send for Memory {}
#[expect(unsafe_code, reason = "threads share the buffers of a run")]
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    pub fn from_floats(floats: &mut [f32]) -> Self {
        Self(floats.as_mut_ptr())
    }

    /// Returns the address of floats that threads must only read.
    pub fn read(floats: &[f32]) -> Self {
        Self(floats.as_ptr().cast_mut())
    }

    /// Returns the start of the memory.
    pub fn as_mut_ptr(self) -> *mut f32 {
        self.0
    }
}

/// Returns the addresses of lists of floats, to share them between threads.
pub(crate) fn to_memories(lists: &mut [impl DerefMut<Target = [f32]>]) -> Vec<Memory> {
    lists
        .iter_mut()
        .map(|floats| Memory::from_floats(floats))
        .collect()
}

/// Progress of a stage, whose tasks form one block for each thread of the pool.
struct Progress {
    blocks: Vec<BlockProgress>,
    /// Number of finished tasks.
    done: AtomicUsize,
}

/// Number of tasks of a block that threads have taken. It has a cache line of its own.
#[derive(Default)]
#[repr(align(64))]
struct BlockProgress(AtomicUsize);

impl Progress {
    fn new(threads: usize) -> Self {
        Self {
            blocks: (0..threads).map(|_| BlockProgress::default()).collect(),
            done: AtomicUsize::default(),
        }
    }

    /// Does the remaining tasks of a stage and returns how many it did. A thread starts with its
    /// own block, whose data its caches hold from the stage and the run before.
    fn run_stage(&self, tasks: usize, thread: usize, work: impl Fn(usize)) -> usize {
        let blocks = self.blocks.len();
        let start = |block: usize| tasks * block / blocks;
        let mut done = 0;
        for block in (thread..blocks).chain(0..thread) {
            let (start, end) = (start(block), start(block + 1));
            loop {
                let task = start + self.blocks[block].0.fetch_add(1, Ordering::Relaxed);
                if task >= end {
                    break;
                }
                work(task);
                done += 1;
            }
        }
        done
    }
}

/// Runs `work(stage, task)` for each task of each stage, in the order of stages, on the threads of
/// a pool. The tasks of a stage must not depend on each other, because they can run at once and in
/// any order. If a task panics, the panic resumes in
/// the caller once every thread has stopped.
pub(crate) fn run(pool: &ThreadPool, tasks: &[usize], work: impl Fn(usize, usize) + Sync) {
    let is_small = tasks.iter().all(|&tasks| tasks < 2);
    if is_small {
        run_on(1, tasks, &work);
    } else {
        pool.run(|| run_on(rayon::current_num_threads(), tasks, &work));
    }
}

/// Runs `work` as [`run`] does, from a thread of a pool that has this many threads.
fn run_on(threads: usize, tasks: &[usize], work: &(impl Fn(usize, usize) + Sync)) {
    let progress: Vec<Progress> = tasks.iter().map(|_| Progress::new(threads)).collect();
    let has_panicked = AtomicBool::new(false);
    let first_panic: Mutex<Option<Box<dyn Any + Send>>> = Mutex::new(None);
    let join = || {
        let run = || run_stages(tasks, &progress, &has_panicked, work);
        if let Err(panic) = catch_unwind(AssertUnwindSafe(run)) {
            has_panicked.store(true, Ordering::Release);
            let mut first = first_panic.lock().unwrap_or_else(PoisonError::into_inner);
            first.get_or_insert(panic);
        }
    };
    if threads == 1 {
        join();
    } else {
        rayon::scope(|scope| {
            for _ in 1..threads {
                scope.spawn(|_| join());
            }
            join();
        });
    }
    let panic = first_panic
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner);
    if let Some(panic) = panic {
        resume_unwind(panic);
    }
}

/// Does tasks of all stages in order. Returns early if a task of another thread has panicked.
fn run_stages(
    tasks: &[usize],
    progress: &[Progress],
    has_panicked: &AtomicBool,
    work: &(impl Fn(usize, usize) + Sync),
) {
    let thread = rayon::current_thread_index().unwrap_or(0);
    for (stage, (&tasks, progress)) in tasks.iter().zip(progress).enumerate() {
        if tasks == 0 {
            continue;
        }
        let done = progress.run_stage(tasks, thread % progress.blocks.len(), |task| {
            work(stage, task)
        });
        progress.done.fetch_add(done, Ordering::Release);
        let mut polls = 0u32;
        while progress.done.load(Ordering::Acquire) < tasks {
            if has_panicked.load(Ordering::Acquire) {
                return;
            }
            polls += 1;
            if polls < POLLS_BEFORE_YIELDING {
                std::hint::spin_loop();
            } else {
                std::thread::yield_now();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_runs_once_whichever_threads_start() {
        for (tasks, threads) in [(0, 2), (1, 2), (7, 3), (8, 2), (2, 5)] {
            let progress = Progress::new(threads);
            let done: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::default()).collect();
            let work = |task: usize| {
                done[task].fetch_add(1, Ordering::Relaxed);
            };
            let count = progress.run_stage(tasks, threads - 1, work);
            assert_eq!(count, tasks, "one thread alone does all of them");
            assert_eq!(progress.run_stage(tasks, 0, work), 0, "and leaves none");
            assert!(done.iter().all(|times| times.load(Ordering::Relaxed) == 1));
        }
    }

    #[test]
    fn a_thread_starts_with_its_own_block() {
        let progress = Progress::new(2);
        let order = Mutex::new(Vec::new());
        progress.run_stage(6, 1, |task| order.lock().unwrap().push(task));
        assert_eq!(order.into_inner().unwrap(), [3, 4, 5, 0, 1, 2]);
    }
}
