//! Tests the transfers that an owner carries out for the space: in any order, and whether they
//! succeed or fail.

use std::collections::BTreeMap;
use std::path::PathBuf;

use proptest::prelude::*;

use super::*;
use crate::location::DeviceIndex;
use crate::space::SpaceConfig;

const GPU: Location = Location::Device(DeviceIndex(0));
const OTHER: Location = Location::Device(DeviceIndex(1));
const CPU: Location = Location::Device(DeviceIndex(2));
const PCIE: PathKind = PathKind::Pcie {
    generation: 5,
    lanes: 16,
};

fn path(kind: PathKind, latency_us: u64, bytes_per_second: f64) -> Path {
    Path {
        kind,
        latency: Duration::from_micros(latency_us),
        bytes_per_second,
    }
}

/// Two cards with a link that pays for what is large, and a CPU, over a host of so many bytes.
fn space(host: u64, card: u64) -> Space<u8> {
    space_over(host, card, None)
}

/// The same with a folder to spill to.
fn space_over(host: u64, card: u64, spill: Option<(PathBuf, u64)>) -> Space<u8> {
    let mut space = Space::open(SpaceConfig {
        host_bytes_max: host,
        spill,
        disk: path(PathKind::File, 100, 1e9),
    })
    .unwrap();
    for device in [GPU, OTHER] {
        let to_host = path(PCIE, 5, 64e9);
        space.add_memory(device, card, to_host).unwrap();
    }
    let shared = path(PathKind::Shared, 0, 1e9);
    space.add_device(CPU, host, shared).unwrap();
    let link = path(PathKind::NvLink, 12, 450e9);
    space.paths_mut().declare_both(GPU, OTHER, link);
    space
}

fn bytes(fill: u8, length: u64) -> Bytes {
    Bytes::from(vec![fill; length as usize])
}

fn is_moving<T>(answer: &Result<T, SpaceError>) -> bool {
    matches!(answer, Err(SpaceError::Hold(HoldError::Moving { .. })))
}

/// Where a move goes its bytes are as they were.
fn carry_out(space: &mut Space<u8>, step: Move<u8>) {
    if let Some(through) = step.through_disk() {
        space
            .on_transfer_ended(step.transit, through.unwrap(), None)
            .unwrap();
        return;
    }
    let fill = match step.content {
        Content::Host(bytes) => bytes.first().copied().unwrap_or(0),
        Content::Device(fill) => fill,
        Content::Disk(_) => unreachable!("it was read from there"),
    };
    let content = match step.transit.hop.to {
        Location::Host => Content::Host(bytes(fill, step.transit.bytes)),
        _ => Content::Device(fill),
    };
    space
        .on_transfer_ended(step.transit, content, None)
        .unwrap();
}

/// Asks until it is there; gives what it was and the hops it took.
fn brought(space: &mut Space<u8>, handle: Handle, to: Location) -> (Content<u8>, Vec<PathKind>) {
    let mut hops = Vec::new();
    loop {
        match space.ensure_on(handle, to) {
            Ok(content) => return (content, hops),
            refused => assert!(is_moving(&refused), "{refused:?}"),
        }
        let step = space.take_move().unwrap();
        hops.push(step.transit.hop.kind);
        carry_out(space, step);
    }
}

#[test]
fn two_who_want_the_same_copy_move_it_once() {
    let mut space = space(1 << 20, 1 << 20);
    let handle = space.adopt_unnamed(bytes(7, 500), Location::Host).unwrap();
    assert!(is_moving(&space.ensure_on(handle, GPU)));
    let step = space.take_move().unwrap();
    assert!(is_moving(&space.ensure_on(handle, GPU)));
    assert!(space.take_move().is_none(), "another is at it");
    assert_eq!(space.pool_use(GPU).used, 500, "its room is taken");
    carry_out(&mut space, step);
    let (there, hops) = brought(&mut space, handle, GPU);
    assert_eq!((there, hops), (Content::Device(7), vec![]));
    assert_eq!(space.move_totals().over.pcie, 500);
    assert_eq!(
        (space.path_bytes(GPU).pcie, space.path_bytes(OTHER).pcie),
        (500, 0)
    );
}

#[test]
fn size_decides_whether_the_host_is_passed() {
    let mut space = space(1 << 30, 1 << 30);
    // Twice 5 us by the host, 12 us by the link; 64 and 450 GB/s.
    let small = space.adopt_resident(1, 100, GPU).unwrap();
    let large = space.adopt_resident(2, 1 << 20, GPU).unwrap();
    let (there, hops) = brought(&mut space, small, OTHER);
    assert_eq!((there, hops), (Content::Device(1), vec![PCIE, PCIE]));
    let (there, hops) = brought(&mut space, large, OTHER);
    assert_eq!((there, hops), (Content::Device(2), vec![PathKind::NvLink]));
    let over = space.move_totals().over;
    assert_eq!((over.pcie, over.nvlink), (200, 1 << 20));
}

#[test]
fn what_a_processor_of_the_host_reads_crosses_once() {
    let mut space = space(1 << 20, 1 << 20);
    let made = space.adopt_resident(3, 400, GPU).unwrap();
    let (there, hops) = brought(&mut space, made, CPU);
    assert_eq!((there, hops), (Content::Host(bytes(3, 400)), vec![PCIE]));
    let of_cpu = space.adopt_unnamed(bytes(4, 100), CPU).unwrap();
    let (there, hops) = brought(&mut space, of_cpu, GPU);
    assert_eq!((there, hops), (Content::Device(4), vec![PCIE]));
    assert_eq!(space.move_totals().copied_bytes, 500);
}

#[test]
fn eviction_moves_to_the_host_before_the_room_is_free() {
    let mut space = space(1 << 20, 1000);
    let old = space.adopt_resident(1, 600, GPU).unwrap();
    let refused = space.adopt_resident(2, 600, GPU);
    assert!(is_moving(&refused));
    let step = space.take_move().unwrap();
    assert_eq!(step.content, Content::Device(1));
    assert_eq!(step.transit.hop.to, Location::Host);
    carry_out(&mut space, step);
    let new = space.adopt_resident(2, 600, GPU).unwrap();
    assert_eq!(space.holdings().copy_places(old).unwrap(), [Location::Host]);
    assert_eq!(space.pool_use(GPU).used, 600);
    // Back it comes, and the other goes.
    let (there, hops) = brought(&mut space, old, GPU);
    assert_eq!((there, hops), (Content::Device(1), vec![PCIE, PCIE]));
    assert_eq!(space.holdings().copy_places(new).unwrap(), [Location::Host]);
}

#[test]
fn what_is_in_use_is_not_evicted_and_fullness_is_said() {
    let mut space = space(1 << 20, 1000);
    let used = space.adopt_resident(1, 600, GPU).unwrap();
    space.pin_copy(used, GPU).unwrap();
    let full = space.adopt_resident(2, 600, GPU).unwrap_err();
    assert_eq!(
        full.to_string(),
        "device 0 has no room for 600 bytes: 600 of 1000 are held and cannot be moved"
    );
}

#[test]
fn a_failed_move_leaves_its_room_and_may_be_asked_for_again() {
    let mut space = space(1 << 20, 1000);
    let handle = space.adopt_unnamed(bytes(7, 500), Location::Host).unwrap();
    assert!(is_moving(&space.ensure_on(handle, GPU)));
    let step = space.take_move().unwrap();
    space.on_transfer_failed(step.transit);
    assert_eq!(space.pool_use(GPU).used, 0);
    brought(&mut space, handle, GPU);
    let short = space.adopt_resident(1, 10, GPU).unwrap();
    assert!(is_moving(&space.ensure_on(short, Location::Host)));
    let step = space.take_move().unwrap();
    let wrong = space.on_transfer_ended(step.transit, Content::Host(bytes(1, 9)), None);
    assert!(matches!(wrong, Err(SpaceError::Length { .. })));
}

#[test]
fn what_is_released_on_its_way_goes_when_it_comes() {
    let mut space = space(1 << 20, 1000);
    let handle = space.adopt_unnamed(bytes(7, 500), Location::Host).unwrap();
    assert!(is_moving(&space.ensure_on(handle, GPU)));
    let step = space.take_move().unwrap();
    space.release_reference(handle).unwrap();
    assert!(space.ensure_on(handle, GPU).is_err());
    carry_out(&mut space, step);
    assert!(space.holdings().is_empty());
    assert_eq!(
        (
            space.pool_use(GPU).used,
            space.pool_use(Location::Host).used
        ),
        (0, 0)
    );
}

#[test]
fn a_lost_memory_gives_up_what_was_coming_and_what_left_it_in_time_is_kept() {
    let mut space = space(1 << 20, 1000);
    let coming = space.adopt_unnamed(bytes(7, 500), Location::Host).unwrap();
    assert!(is_moving(&space.ensure_on(coming, GPU)));
    let coming_step = space.take_move().unwrap();
    let leaving = space.adopt_resident(2, 100, GPU).unwrap();
    assert!(is_moving(&space.ensure_on(leaving, Location::Host)));
    let leaving_step = space.take_move().unwrap();
    let gone = space.adopt_resident(3, 100, GPU).unwrap();
    assert_eq!(space.forget_place(GPU), [leaving, gone]);
    carry_out(&mut space, coming_step);
    carry_out(&mut space, leaving_step);
    assert_eq!(
        space.holdings().copy_places(coming).unwrap(),
        [Location::Host]
    );
    assert_eq!(
        space.holdings().copy_places(leaving).unwrap(),
        [Location::Host]
    );
    assert_eq!(space.pool_use(GPU).used, 0);
    assert!(
        space.adopt_resident(4, 1, GPU).is_err(),
        "nothing lies there"
    );
    assert!(matches!(
        space.ensure_on(gone, Location::Host),
        Err(SpaceError::Hold(HoldError::NoPath { .. }))
    ));
}

#[test]
fn measured_moves_correct_the_way() {
    let mut space = space(1 << 30, 1 << 30);
    let handles: Vec<Handle> = (0..20)
        .map(|fill| space.adopt_resident(fill, 1 << 20, GPU).unwrap())
        .collect();
    for handle in handles {
        assert!(is_moving(&space.ensure_on(handle, OTHER)));
        let step = space.take_move().unwrap();
        // The link is a thousand times slower than declared: after a while the host is passed.
        if step.transit.hop.kind == PCIE {
            return;
        }
        let Content::Device(fill) = step.content else {
            panic!("it lies on a card")
        };
        let took = Some(Duration::from_millis(3));
        space
            .on_transfer_ended(step.transit, Content::Device(fill), took)
            .unwrap();
    }
    panic!("the link was never left");
}

#[derive(Clone, Debug)]
enum Act {
    Make(usize, u64),
    Bring(usize, usize),
    Pin(usize, usize),
    Release(usize),
    End(usize),
    Fail(usize),
    Lose(usize),
    Limit(usize, u64),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        4 => (0usize..4, 1u64..200).prop_map(|(place, bytes)| Act::Make(place, bytes)),
        8 => (0usize..16, 0usize..4).prop_map(|(handle, place)| Act::Bring(handle, place)),
        2 => (0usize..16, 0usize..4).prop_map(|(handle, place)| Act::Pin(handle, place)),
        4 => (0usize..16).prop_map(Act::Release),
        8 => (0usize..4).prop_map(Act::End),
        2 => (0usize..4).prop_map(Act::Fail),
        1 => (0usize..2).prop_map(Act::Lose),
        2 => (0usize..4, 0u64..600).prop_map(|(place, limit)| Act::Limit(place, limit)),
    ]
}

/// A space, what is held in it, and moves that have not ended.
struct World {
    space: Space<u8>,
    held: BTreeMap<Handle, (u8, u64)>,
    pins: Vec<(Handle, Location)>,
    moves: Vec<Move<u8>>,
    fill: u8,
}

impl World {
    const PLACES: [Location; 4] = [GPU, OTHER, CPU, Location::Host];

    /// Takes the move that a refusal began; others pass.
    fn after<T>(&mut self, answer: Result<T, SpaceError>) -> Option<T> {
        if is_moving(&answer) {
            self.moves.extend(self.space.take_move());
        }
        answer.ok()
    }

    fn at(&self, index: usize) -> Option<Handle> {
        self.held.keys().nth(index).copied()
    }

    fn apply(&mut self, act: &Act) {
        match *act {
            Act::Make(place, length) => {
                self.fill = self.fill.wrapping_add(1);
                let (place, fill) = (Self::PLACES[place], self.fill);
                let made = match place == GPU || place == OTHER {
                    true => self.space.adopt_resident(fill, length, place),
                    false => self.space.adopt_unnamed(bytes(fill, length), place),
                };
                let made = self.after(made);
                self.held
                    .extend(made.map(|handle| (handle, (fill, length))));
            }
            Act::Bring(index, place) => {
                let Some(handle) = self.at(index) else { return };
                let (fill, length) = self.held[&handle];
                let answer = self.space.ensure_on(handle, Self::PLACES[place]);
                if let Some(content) = self.after(answer) {
                    let right = match place < 2 {
                        true => Content::Device(fill),
                        false => Content::Host(bytes(fill, length)),
                    };
                    assert_eq!(content, right, "the right bytes are there");
                }
            }
            Act::Pin(index, place) => {
                let (Some(handle), place) = (self.at(index), Self::PLACES[place]) else {
                    return;
                };
                if self.space.pin_copy(handle, place).is_ok() {
                    self.pins.push((handle, place));
                }
            }
            Act::Release(index) => {
                let Some(handle) = self.at(index) else { return };
                self.unpin(|(pinned, _)| *pinned == handle);
                self.space.release_reference(handle).unwrap();
                self.held.remove(&handle);
            }
            Act::End(index) if index < self.moves.len() => {
                let step = self.moves.swap_remove(index);
                carry_out(&mut self.space, step);
            }
            Act::Fail(index) if index < self.moves.len() => {
                let step = self.moves.swap_remove(index);
                self.space.on_transfer_failed(step.transit);
            }
            Act::End(_) | Act::Fail(_) => {}
            Act::Lose(place) => {
                let place = Self::PLACES[place];
                self.pins.retain(|(_, pinned)| *pinned != place);
                self.space.forget_place(place);
            }
            Act::Limit(place, limit) => {
                let answer = self.space.set_limit(Self::PLACES[place], limit);
                self.after(answer);
            }
        }
    }

    fn unpin(&mut self, whose: impl Fn(&(Handle, Location)) -> bool) {
        let (done, kept) = self.pins.drain(..).partition(whose);
        self.pins = kept;
        let done: Vec<(Handle, Location)> = done;
        for (handle, place) in done {
            self.space.unpin_copy(handle, place).unwrap();
        }
    }
}

proptest! {
    /// Whatever is made, brought, pinned, released, lost or resized, and however moves end: what is
    /// read is what was made, and when all is given back no place holds a byte.
    #[test]
    fn moves_in_any_order_leave_the_right_bytes_and_nothing_behind(
        acts in prop::collection::vec(act(), 1..150), spilled_bytes_max in 0u64..1500,
    ) {
        let folder = tempfile::tempdir().unwrap();
        let spill = (spilled_bytes_max > 0).then(|| (folder.path().to_owned(), spilled_bytes_max));
        let mut world = World {
            space: space_over(700, 500, spill),
            held: BTreeMap::new(),
            pins: Vec::new(),
            moves: Vec::new(),
            fill: 0,
        };
        acts.iter().for_each(|act| world.apply(act));
        world.unpin(|_| true);
        let handles: Vec<Handle> = world.held.keys().copied().collect();
        for handle in handles {
            world.space.release_reference(handle).unwrap();
        }
        for step in std::mem::take(&mut world.moves) {
            carry_out(&mut world.space, step);
        }
        prop_assert!(world.space.holdings().is_empty());
        prop_assert!(!world.space.holdings().is_moving());
        for place in World::PLACES.into_iter().chain([Location::Disk]) {
            prop_assert_eq!(world.space.pool_use(place).used, 0);
        }
        let shelves = std::fs::read_dir(folder.path()).unwrap();
        let mut files = shelves.flat_map(|shelf| shelf.unwrap().path().read_dir().unwrap());
        prop_assert!(files.next().is_none(), "no file is left");
    }
}

#[test]
fn no_way_leads_over_a_place_that_was_lost_or_is_too_small() {
    let through = |lost: bool, room: u64| {
        let mut space: Space<u8> = Space::open(SpaceConfig {
            host_bytes_max: 10_000,
            spill: None,
            disk: path(PathKind::File, 100, 1e9),
        })
        .unwrap();
        let slow = path(PathKind::HostCopy, 1_000, 1e6);
        space.add_memory(GPU, 1_000, slow).unwrap();
        space.add_memory(OTHER, room, path(PCIE, 5, 64e9)).unwrap();
        let link = path(PathKind::NvLink, 12, 450e9);
        space.paths_mut().declare_both(GPU, OTHER, link);
        if lost {
            space.forget_place(OTHER);
        }
        let handle = space.adopt_unnamed(bytes(1, 600), Location::Host).unwrap();
        assert!(is_moving(&space.ensure_on(handle, GPU)));
        space.take_move().unwrap().transit.hop.to
    };
    assert_eq!(through(false, 1_000), OTHER, "the sooner way");
    assert_eq!(through(true, 1_000), GPU);
    assert_eq!(through(false, 500), GPU);
}
