//! Runs stages of tasks on several threads, for the engines over images, sequences and decoders.
//!
//! A thread takes the next task of a stage until none is left, and continues with the next stage
//! when all of them are done. No thread waits for one that has not come: one alone does all the
//! work, and a late one finds it done. So two programs on one pool cannot block each other.

use std::any::Any;
use std::ops::DerefMut;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rten::ThreadPool;

/// Looks at the counter before a waiting thread lets others run: some microseconds, as long as a
/// short task takes.
const LOOKS_BEFORE_YIELDING: u32 = 1 << 11;

/// Memory that several threads write disjoint parts of.
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

    /// Floats that are only read.
    pub fn read(floats: &[f32]) -> Self {
        Self(floats.as_ptr().cast_mut())
    }

    /// Returns the start of the memory.
    pub fn as_mut_ptr(self) -> *mut f32 {
        self.0
    }
}

/// Lists of floats as threads share them.
pub(crate) fn to_memories(lists: &mut [impl DerefMut<Target = [f32]>]) -> Vec<Memory> {
    lists
        .iter_mut()
        .map(|floats| Memory::from_floats(floats))
        .collect()
}

/// How far a stage is: its tasks are dealt out in blocks, one for each thread of the pool.
struct Progress {
    taken: Vec<BlockProgress>,
    done: AtomicUsize,
}

/// Number of tasks taken of a block, in a cache line of its own.
#[derive(Default)]
#[repr(align(64))]
struct BlockProgress(AtomicUsize);

impl Progress {
    fn new(threads: usize) -> Self {
        Self {
            taken: (0..threads).map(|_| BlockProgress::default()).collect(),
            done: AtomicUsize::default(),
        }
    }

    /// Does the remaining tasks of a stage and returns their number: first a thread's own block,
    /// which its caches hold from the stage and the run before, then the others'.
    fn run_stage(&self, tasks: usize, thread: usize, work: impl Fn(usize)) -> usize {
        let blocks = self.taken.len();
        let start = |block: usize| tasks * block / blocks;
        let mut worked = 0;
        for block in (thread..blocks).chain(0..thread) {
            let (start, end) = (start(block), start(block + 1));
            loop {
                let task = start + self.taken[block].0.fetch_add(1, Ordering::Relaxed);
                if task >= end {
                    break;
                }
                work(task);
                worked += 1;
            }
        }
        worked
    }
}

/// Runs `work(stage, task)` for each task of each stage, in the order of stages, on the threads of
/// a pool. The tasks of a stage must not depend on each other, because they can run at once and in
/// any order. A panic of a task is handed on once every thread has stopped.
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
    let broken = AtomicBool::new(false);
    let panicked: Mutex<Option<Box<dyn Any + Send>>> = Mutex::new(None);
    let join = || {
        let all = || work_through(tasks, &progress, &broken, work);
        if let Err(panic) = catch_unwind(AssertUnwindSafe(all)) {
            broken.store(true, Ordering::Release);
            let mut first = panicked.lock().unwrap_or_else(|held| held.into_inner());
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
    let panic = panicked
        .into_inner()
        .unwrap_or_else(|held| held.into_inner());
    if let Some(panic) = panic {
        resume_unwind(panic);
    }
}

fn work_through(
    tasks: &[usize],
    progress: &[Progress],
    broken: &AtomicBool,
    work: &(impl Fn(usize, usize) + Sync),
) {
    let thread = rayon::current_thread_index().unwrap_or(0);
    for (stage, (&tasks, progress)) in tasks.iter().zip(progress).enumerate() {
        if tasks == 0 {
            continue;
        }
        let worked = progress.run_stage(tasks, thread % progress.taken.len(), |task| {
            work(stage, task)
        });
        progress.done.fetch_add(worked, Ordering::Release);
        let mut looks = 0u32;
        while progress.done.load(Ordering::Acquire) < tasks {
            if broken.load(Ordering::Acquire) {
                return;
            }
            looks += 1;
            if looks < LOOKS_BEFORE_YIELDING {
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
    fn every_task_is_done_once_whichever_threads_come() {
        for (tasks, threads) in [(0, 2), (1, 2), (7, 3), (8, 2), (2, 5)] {
            let progress = Progress::new(threads);
            let done: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::default()).collect();
            let work = |task: usize| {
                done[task].fetch_add(1, Ordering::Relaxed);
            };
            let worked = progress.run_stage(tasks, threads - 1, work);
            assert_eq!(worked, tasks, "one thread alone does all of them");
            assert_eq!(progress.run_stage(tasks, 0, work), 0, "and leaves none");
            assert!(done.iter().all(|times| times.load(Ordering::Relaxed) == 1));
        }
    }

    #[test]
    fn a_thread_begins_with_the_block_of_its_seat() {
        let progress = Progress::new(2);
        let order = Mutex::new(Vec::new());
        progress.run_stage(6, 1, |task| order.lock().unwrap().push(task));
        assert_eq!(order.into_inner().unwrap(), [3, 4, 5, 0, 1, 2]);
    }
}
