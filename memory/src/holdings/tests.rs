//! Tests the bookkeeping of copies: shared content, limits, and the order of evictions.

use proptest::prelude::*;

use super::*;
use crate::location::DeviceIndex;
use crate::paths::{Path, PathKind};

const GPU: Location = Location::Device(DeviceIndex(0));
const NPU: Location = Location::Device(DeviceIndex(1));

fn path(latency_us: u64, bytes_per_second: f64) -> Path {
    Path {
        kind: PathKind::HostCopy,
        latency: Duration::from_micros(latency_us),
        bytes_per_second,
    }
}

/// Two devices at unlike distances from the host, a slow disk.
fn holdings(gpu: u64, npu: u64, host: u64, disk: u64) -> Holdings {
    let mut paths = Paths::default();
    paths.declare_both(GPU, Location::Host, path(10, 10e9));
    paths.declare_both(NPU, Location::Host, path(5, 1e9));
    paths.declare_both(Location::Host, Location::Disk, path(100, 0.5e9));
    let mut holdings = Holdings::new(paths);
    for (place, limit) in [
        (GPU, gpu),
        (NPU, npu),
        (Location::Host, host),
        (Location::Disk, disk),
    ] {
        holdings.set_limit(place, limit).unwrap();
    }
    holdings
}

fn id(text: &str) -> ContentId {
    ContentId::for_content(text.as_bytes())
}

#[test]
fn equal_content_is_held_once_and_goes_with_its_last_reference() {
    let mut held = holdings(0, 0, 100, 0);
    let first = held.adopt_content(id("a"), 60, Location::Host).unwrap();
    let second = held.adopt_content(id("a"), 60, Location::Host).unwrap();
    assert_eq!((first, held.pool_use(Location::Host).used), (second, 60));
    held.release_reference(first).unwrap();
    assert!(held.has_copy(first, Location::Host));
    held.release_reference(first).unwrap();
    assert_eq!(held.pool_use(Location::Host).used, 0);
    assert_eq!(
        held.release_reference(first),
        Err(HoldError::Unknown { handle: first })
    );
}

#[test]
fn what_is_cheap_to_bring_back_goes_first() {
    let mut held = holdings(100, 0, 1000, 0);
    // One has a copy in host memory, the other would have to be moved there first.
    let copied = held
        .adopt_content(id("copied"), 50, Location::Host)
        .unwrap();
    held.ensure_on(copied, GPU).unwrap();
    let only = held.adopt_content(id("only"), 50, GPU).unwrap();
    // Touched last, and still the one to go.
    held.ensure_on(copied, GPU).unwrap();
    let new = held.allocate(50, GPU).unwrap();
    assert!(held.has_copy(only, GPU) && held.has_copy(new, GPU) && !held.has_copy(copied, GPU));
}

#[test]
fn of_equal_prices_the_one_used_longest_ago_goes() {
    let mut held = holdings(0, 0, 100, 1000);
    let first = held.adopt_content(id("first"), 50, Location::Host).unwrap();
    let second = held
        .adopt_content(id("second"), 50, Location::Host)
        .unwrap();
    held.ensure_on(first, Location::Host).unwrap();
    held.adopt_content(id("third"), 50, Location::Host).unwrap();
    assert_eq!(held.copy_places(second).unwrap(), [Location::Disk]);
    assert_eq!(held.copy_places(first).unwrap(), [Location::Host]);
}

#[test]
fn of_many_copies_few_are_looked_at_for_the_one_that_goes() {
    const COUNT: u64 = 5_000;
    let mut held = holdings(0, 0, 8 * COUNT, 1 << 20);
    let adopt = |held: &mut Holdings, number: u64| {
        let content = ContentId::for_content(&number.to_le_bytes());
        held.adopt_content(content, 8, Location::Host).unwrap()
    };
    let first: Vec<Handle> = (0..COUNT).map(|number| adopt(&mut held, number)).collect();
    for number in COUNT..2 * COUNT {
        adopt(&mut held, number);
        let alike = &held.pools[&Location::Host].alike;
        assert_eq!(alike.len(), 1, "all of them cost as much to bring back");
    }
    let gone = held.take_steps().into_iter().filter_map(|step| match step {
        Step::Drop { handle, .. } => Some(handle),
        Step::Copy { .. } => None,
    });
    assert_eq!(gone.collect::<Vec<_>>(), first, "in the order of their use");
}

#[test]
fn the_only_copy_moves_down_place_by_place() {
    let mut held = holdings(50, 0, 50, 100);
    let oldest = held.adopt_content(id("oldest"), 50, GPU).unwrap();
    let middle = held.adopt_content(id("middle"), 50, GPU).unwrap();
    held.adopt_content(id("newest"), 50, GPU).unwrap();
    assert_eq!(held.copy_places(oldest).unwrap(), [Location::Disk]);
    assert_eq!(held.copy_places(middle).unwrap(), [Location::Host]);
    let kinds: Vec<Location> = held
        .take_steps()
        .into_iter()
        .filter_map(copied_to)
        .collect();
    assert_eq!(kinds, [Location::Host, Location::Disk, Location::Host]);
}

fn copied_to(step: Step) -> Option<Location> {
    match step {
        Step::Copy { to, .. } => Some(to),
        Step::Drop { .. } => None,
    }
}

#[test]
fn what_is_pinned_stays_and_fullness_is_said() {
    let mut held = holdings(0, 0, 100, 1000);
    let handle = held.adopt_content(id("a"), 80, Location::Host).unwrap();
    held.pin_copy(handle, Location::Host).unwrap();
    let full = held.adopt_content(id("b"), 30, Location::Host).unwrap_err();
    assert_eq!(
        full.to_string(),
        "host memory has no room for 30 bytes: 80 of 100 are held and cannot be moved"
    );
    let place = Location::Host;
    assert_eq!(
        held.release_reference(handle),
        Err(HoldError::Pinned { handle, place })
    );
}

#[test]
fn a_smaller_limit_evicts_and_a_larger_one_makes_room() {
    let mut held = holdings(0, 0, 100, 1000);
    for name in ["a", "b", "c", "d"] {
        held.adopt_content(id(name), 25, Location::Host).unwrap();
    }
    held.set_limit(Location::Host, 50).unwrap();
    assert_eq!(
        (
            held.pool_use(Location::Host).used,
            held.pool_use(Location::Disk).used
        ),
        (50, 50)
    );
    held.set_limit(Location::Host, 200).unwrap();
    held.adopt_content(id("e"), 150, Location::Host).unwrap();
    assert_eq!(held.pool_use(Location::Host).peak, 200);
}

#[test]
fn copies_come_from_where_they_come_soonest() {
    let mut held = holdings(1000, 1000, 1000, 0);
    let mut nvlink = path(1, 300e9);
    nvlink.kind = PathKind::NvLink;
    held.paths_mut().declare_path(NPU, GPU, nvlink);
    let handle = held.adopt_content(id("a"), 500, Location::Host).unwrap();
    held.ensure_on(handle, NPU).unwrap();
    let _ = held.take_steps();
    held.ensure_on(handle, GPU).unwrap();
    let steps = held.take_steps();
    assert!(
        matches!(
            steps[..],
            [Step::Copy {
                from: NPU,
                to: GPU,
                ..
            }]
        ),
        "{steps:?}"
    );
}

#[derive(Clone, Debug)]
enum Act {
    Adopt(u8, usize),
    Ensure(usize, usize),
    Pin(usize, usize),
    Release(usize),
    Resize(usize, u64),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        (0u8..12, 0usize..4).prop_map(|(content, place)| Act::Adopt(content, place)),
        (0usize..12, 0usize..4).prop_map(|(handle, place)| Act::Ensure(handle, place)),
        (0usize..12, 0usize..4).prop_map(|(handle, place)| Act::Pin(handle, place)),
        (0usize..12).prop_map(Act::Release),
        (0usize..4, 0u64..200).prop_map(|(place, limit)| Act::Resize(place, limit)),
    ]
}

proptest! {
    /// Whatever is done: copies that the steps leave are those the bookkeeping states, nothing that
    /// is held loses its last copy, and each pool counts what lies there.
    #[test]
    fn steps_and_bookkeeping_agree(acts in prop::collection::vec(act(), 1..120)) {
        const PLACES: [Location; 4] = [GPU, NPU, Location::Host, Location::Disk];
        let mut held = holdings(120, 90, 200, 400);
        let mut handles: Vec<Handle> = Vec::new();
        let mut model: BTreeSet<(Handle, Location)> = BTreeSet::new();
        for act in acts {
            let at = |index: usize| handles.get(index).copied();
            match act {
                Act::Adopt(content, place) => {
                    let bytes = 10 + u64::from(content) * 7;
                    if let Ok(handle) = held.adopt_content(id(&content.to_string()), bytes, PLACES[place]) {
                        handles.push(handle);
                        follow(&mut model, held.take_steps());
                        model.insert((handle, PLACES[place]));
                    }
                }
                Act::Ensure(index, place) => { at(index).map(|h| held.ensure_on(h, PLACES[place])); }
                Act::Pin(index, place) => {
                    let Some(handle) = at(index) else { continue };
                    if held.pin_copy(handle, PLACES[place]).is_ok() && index % 2 == 0 {
                        held.unpin_copy(handle, PLACES[place]).unwrap();
                    }
                }
                Act::Release(index) => {
                    if let Some(handle) = at(index) && held.release_reference(handle).is_ok() {
                        handles.swap_remove(index);
                    }
                }
                Act::Resize(place, limit) => { let _ = held.set_limit(PLACES[place], limit + 50); }
            }
            follow(&mut model, held.take_steps());
            for &handle in &handles {
                let places = held.copy_places(handle).unwrap();
                prop_assert!(!places.is_empty());
                prop_assert!(places.iter().all(|&place| model.contains(&(handle, place))));
            }
            for place in PLACES {
                let there = model.iter().filter(|(_, at)| *at == place);
                let used: u64 = there.map(|(handle, _)| held.content_length(*handle).unwrap()).sum();
                prop_assert_eq!(held.pool_use(place).used, used);
                let first = held.cheapest_copy(place, &BTreeSet::new());
                prop_assert_eq!(first, cheapest_of_all(&held, place));
            }
        }
    }
}

/// What goes first where every copy is looked at.
fn cheapest_of_all(held: &Holdings, place: Location) -> Option<(Handle, f64)> {
    let copies = held.pools[&place].handles.iter().filter_map(|&handle| {
        let copy = &held.items[&handle].copies[&place];
        let idle = copy.pins == 0 && copy.moving == 0;
        let price = idle.then(|| held.eviction_cost(handle, place)).flatten()?;
        Some((handle, copy.level + price, copy.used))
    });
    let first = copies.min_by(|one, other| one.1.total_cmp(&other.1).then(one.2.cmp(&other.2)));
    first.map(|(handle, worth, _)| (handle, worth))
}

fn follow(model: &mut BTreeSet<(Handle, Location)>, steps: Vec<Step>) {
    for step in steps {
        match step {
            Step::Copy {
                handle, from, to, ..
            } => {
                assert!(
                    model.contains(&(handle, from)),
                    "a copy is made of one that is there"
                );
                model.insert((handle, to));
            }
            Step::Drop { handle, place, .. } => assert!(model.remove(&(handle, place))),
        }
    }
}
