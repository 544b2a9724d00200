//! Tests transfers between memories: a slow path must not delay others, and waiting transfers are
//! combined and ordered by urgency.

use souk_memory::location::Location;
use souk_memory::space::SpaceConfig;
use souk_memory::transfers::Urgency;

use super::card::Card;
use super::memories::Memories;
use super::own_memory::{TENSOR, card, processor};
use super::prefetcher::Prefetcher;
use super::*;
use crate::execution::group::held_tensor::HeldTensor;
use crate::execution::group::run_log::RunLog;

fn opened(cards: &[&Card], host_bytes_max: u64, spill: Option<(PathBuf, u64)>) -> Memories {
    let members = cards.iter().map(|card| card.member()).collect();
    let config = SpaceConfig {
        host_bytes_max,
        spill,
        disk: DISK,
    };
    Memories::open(members, config, Duration::ZERO).unwrap()
}

fn tensor(value: f32) -> Tensor {
    Tensor::from_vec([SIZE, SIZE], vec![value; SIZE * SIZE]).unwrap()
}

fn adopt(memories: &Memories, value: f32) -> HeldTensor {
    let adopted = memories.adopt_host("tensor", &tensor(value), Location::Host, None);
    adopted.unwrap()
}

#[test]
fn a_way_that_is_held_up_holds_up_no_other() {
    let (slow, fast) = (card("slow", &[]), card("fast", &[]));
    let memories = Arc::new(opened(&[&slow, &fast], 1 << 20, None));
    let kept: Vec<HeldTensor> = (0..4u8)
        .map(|value| adopt(&memories, value.into()))
        .collect();
    let prefetcher = Prefetcher::start(memories.clone()).unwrap();
    let clock: Arc<Clock> = Arc::new(|| UnixMicros(1));
    let log = Arc::new(RunLog::new(&[slow.member(), fast.member()], clock, false));
    let want = |which: usize, device| {
        let to = device_place(device);
        prefetcher
            .new_handle()
            .want_at(&kept[which], to, device, &log);
    };
    slow.entry().let_pass(0);
    want(0, 0);
    slow.entry().until_came(1);
    // The slow one's way is taken: what else goes there waits, and what goes elsewhere moves.
    want(1, 0);
    for (count, which) in [(1, 2), (2, 3)] {
        want(which, 1);
        fast.entry().until_came(count);
    }
    assert_eq!((slow.entry().came(), slow.seen().put), (1, 0));
    slow.entry().let_pass(u64::MAX);
    prefetcher.wait_until_idle();
    assert_eq!((slow.seen().put, fast.seen().put), (2 * TENSOR, 2 * TENSOR));
}

/// Returns a group's memories with this many tensors on the host, and the prefetcher that moves
/// them.
fn moving(cards: &[&Card], count: u8) -> (Arc<Memories>, Vec<HeldTensor>, Prefetcher, Arc<RunLog>) {
    let memories = Arc::new(opened(cards, 1 << 20, None));
    let kept = (0..count).map(|value| adopt(&memories, value.into()));
    let kept = kept.collect();
    let prefetcher = Prefetcher::start(memories.clone()).unwrap();
    let clock: Arc<Clock> = Arc::new(|| UnixMicros(1));
    let members: Vec<GroupDevice> = cards.iter().map(|card| card.member()).collect();
    (
        memories,
        kept,
        prefetcher,
        Arc::new(RunLog::new(&members, clock, false)),
    )
}

#[test]
fn small_tensors_that_wait_for_one_way_are_one_operation_of_their_device() {
    let (gpu, cpu) = (card("gpu", &[]), processor("cpu", &[]));
    let (memories, kept, prefetcher, log) = moving(&[&gpu, &cpu], 5);
    let there = device_place(0);
    gpu.entry().let_pass(0);
    for (which, kept) in kept.iter().enumerate() {
        prefetcher.new_handle().want_at(kept, there, 0, &log);
        if which == 0 {
            gpu.entry().until_came(1);
        }
    }
    gpu.entry().let_pass(u64::MAX);
    prefetcher.wait_until_idle();
    assert_eq!((gpu.seen().put, gpu.seen().operations), (5 * TENSOR, 2));
    assert_eq!(prefetcher.transfer_counts().merged, 4);
    let made: Vec<HeldTensor> = kept
        .iter()
        .map(|kept| {
            let held = memories.move_to(kept, there, None).unwrap();
            memories.adopt_output("made", &held, 0, None).unwrap()
        })
        .collect();
    let back = device_place(1);
    let all = made.iter().map(|kept| (kept, Some(&*log)));
    memories.bring_together(all, back, Urgency::Planned);
    let seen = gpu.seen();
    assert_eq!((seen.read, seen.operations), (5 * TENSOR, 3));
    for (value, kept) in made.iter().enumerate() {
        let held = memories.move_to(kept, Location::Host, None).unwrap();
        assert_eq!(held.to_host().unwrap(), tensor(value as f32));
    }
    assert_eq!(gpu.seen().operations, 3, "all of it was there");
}

#[test]
fn a_batch_that_a_device_has_no_room_for_comes_as_far_as_it_has() {
    let gpu = card("gpu", &[]);
    let (memories, kept, prefetcher, log) = moving(&[&gpu], 4);
    gpu.shrink(2 * TENSOR);
    gpu.entry().let_pass(0);
    for kept in &kept {
        prefetcher
            .new_handle()
            .want_at(kept, device_place(0), 0, &log);
    }
    gpu.entry().let_pass(u64::MAX);
    prefetcher.wait_until_idle();
    assert_eq!((gpu.used(), gpu.seen().put), (2 * TENSOR, 2 * TENSOR));
    let space = memories.lock();
    assert_eq!(space.pool_use(device_place(0)).used, 2 * TENSOR);
    assert!(!space.holdings().is_moving());
}

#[test]
fn what_is_awaited_goes_at_once_and_what_is_planned_for_its_way_after_it() {
    let gpu = card("gpu", &[]);
    let (memories, kept, prefetcher, log) = moving(&[&gpu], 3);
    let there = device_place(0);
    gpu.entry().let_pass(0);
    std::thread::scope(|scope| {
        let awaited = scope.spawn(|| memories.move_to(&kept[0], there, Some(&log)).unwrap());
        gpu.entry().until_came(1);
        prefetcher.new_handle().want_at(&kept[1], there, 0, &log);
        assert!(!prefetcher.is_ready(), "its way is taken by who waits");
        assert_eq!(prefetcher.transfer_counts().batches, 0);
        // Of what was planned already nothing is moved again.
        prefetcher.new_handle().guess_at(&kept[2], there, 0, &log);
        let overtakes = scope.spawn(|| memories.move_to(&kept[2], there, Some(&log)).unwrap());
        gpu.entry().until_came(2);
        assert_eq!(prefetcher.transfer_counts().overtaken, 1);
        gpu.entry().let_pass(u64::MAX);
        awaited.join().unwrap();
        overtakes.join().unwrap();
    });
    prefetcher.wait_until_idle();
    let counts = prefetcher.transfer_counts();
    assert_eq!((counts.batches, counts.begun.planned), (1, 1));
    assert_eq!((counts.begun.awaited, counts.begun.guessed), (2, 0));
    assert_eq!(gpu.seen().put, 3 * TENSOR);
}

/// A named pipe in place of the file on disk blocks its writer until the test reads it.
#[cfg(unix)]
#[test]
fn others_use_the_space_while_a_tensor_is_written_to_disk() {
    let folder = tempfile::tempdir().unwrap();
    let gpu = card("gpu", &[]);
    let spill = Some((folder.path().to_owned(), 1 << 20));
    let memories = opened(&[&gpu], 2 * TENSOR, spill);
    let (first, second) = (adopt(&memories, 1.0), adopt(&memories, 2.0));
    let name = ContentId::for_content(tensor(1.0).bytes()).to_string();
    let shelf = folder.path().join(&name[..2]);
    std::fs::create_dir(&shelf).unwrap();
    let pipe = shelf.join(format!("{name}.{}-0.part", std::process::id()));
    let made = std::process::Command::new("mkfifo").arg(&pipe).status();
    assert!(made.unwrap().success());
    let third = std::thread::scope(|scope| {
        let third = scope.spawn(|| adopt(&memories, 3.0));
        while !memories.lock().holdings().is_moving() {
            std::thread::yield_now();
        }
        // What is there is read, a card is given it, and its result is taken up.
        let read = memories.move_to(&second, Location::Host, None).unwrap();
        assert_eq!(read.to_host().unwrap(), tensor(2.0));
        let there = memories.move_to(&second, device_place(0), None).unwrap();
        let made = memories.adopt_output("made", &there, 0, None).unwrap();
        memories.lock().release_reference(made.handle).unwrap();
        assert!(!third.is_finished(), "its room is not there yet");
        assert_eq!(std::fs::read(&pipe).unwrap(), *tensor(1.0).bytes());
        third.join().unwrap()
    });
    assert_eq!(memories.lock().move_totals().spilled_bytes, TENSOR);
    for kept in [first, second, third] {
        memories.lock().release_reference(kept.handle).unwrap();
    }
    assert!(memories.lock().holdings().is_empty());
}

#[test]
fn a_card_that_was_cleared_for_one_run_has_room_for_the_next() {
    let gpu = card("gpu", &[]);
    let memories = opened(&[&gpu], 1 << 20, None);
    let at = device_place(0);
    let kept: Vec<HeldTensor> = (0..3u8)
        .map(|value| adopt(&memories, value.into()))
        .collect();
    for kept in &kept {
        memories.move_to(kept, at, None).unwrap();
    }
    memories.move_and_pin(&kept[0], at, None).unwrap();
    memories.clear(0, None);
    assert_eq!(
        memories.lock().pool_use(at).used,
        TENSOR,
        "what is in use stays"
    );
    // Another run may read two: the card held three.
    memories.move_and_pin(&kept[1], at, None).unwrap();
    memories.move_and_pin(&kept[2], at, None).unwrap();
    assert_eq!(memories.lock().pool_use(at).used, 3 * TENSOR);
}
