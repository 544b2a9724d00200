//! Stages of tasks that several threads work through together.
//!
//! A thread takes the next task of a stage until none is left, and goes on to the next stage when
//! all of them are done. Nothing waits for a thread that has not come: one alone does all the work,
//! and a late one finds it done. So two programs on one pool cannot block each other.

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
pub(super) struct Memory(*mut f32);

#[expect(unsafe_code, reason = "threads share the buffers of a run")]
// SAFETY: it is only a place; whoever reads or writes there says why that is sound.
unsafe impl Send for Memory {}
#[expect(unsafe_code, reason = "threads share the buffers of a run")]
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    pub fn of(floats: &mut [f32]) -> Self {
        Self(floats.as_mut_ptr())
    }

    /// Floats that are only read.
    pub fn read(floats: &[f32]) -> Self {
        Self(floats.as_ptr().cast_mut())
    }

    /// Where it begins.
    pub fn start(self) -> *mut f32 {
        self.0
    }
}

/// Lists of floats as the crew shares them.
pub(super) fn memories(lists: &mut [impl DerefMut<Target = [f32]>]) -> Vec<Memory> {
    lists.iter_mut().map(|floats| Memory::of(floats)).collect()
}

/// How far a stage is.
#[derive(Default)]
struct Progress {
    taken: AtomicUsize,
    done: AtomicUsize,
}

/// Runs `work(stage, task)` for each task of each stage, in the order of stages, on the threads of
/// a pool. A panic of a task is handed on once every thread has stopped.
pub(super) fn run(pool: &ThreadPool, tasks: &[usize], work: impl Fn(usize, usize) + Sync) {
    let progress: Vec<Progress> = tasks.iter().map(|_| Progress::default()).collect();
    let broken = AtomicBool::new(false);
    let panicked: Mutex<Option<Box<dyn Any + Send>>> = Mutex::new(None);
    let join = || {
        let all = || work_through(tasks, &progress, &broken, &work);
        if let Err(panic) = catch_unwind(AssertUnwindSafe(all)) {
            broken.store(true, Ordering::Release);
            let mut first = panicked.lock().unwrap_or_else(|held| held.into_inner());
            first.get_or_insert(panic);
        }
    };
    let is_small = tasks.iter().all(|&tasks| tasks < 2);
    if is_small {
        join();
    } else {
        pool.run(|| {
            rayon::scope(|scope| {
                for _ in 1..rayon::current_num_threads() {
                    scope.spawn(|_| join());
                }
                join();
            });
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
    for (stage, (&tasks, progress)) in tasks.iter().zip(progress).enumerate() {
        loop {
            let task = progress.taken.fetch_add(1, Ordering::Relaxed);
            if task >= tasks {
                break;
            }
            work(stage, task);
            progress.done.fetch_add(1, Ordering::Release);
        }
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
