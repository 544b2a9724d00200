//! Tests which changes copy bytes, which share them, and which spill them to disk and read them
//! back.

use std::time::Duration;

use super::*;

mod adverse;

const CPU: Location = Location::Device(crate::location::DeviceIndex(0));
const GPU: Location = Location::Device(crate::location::DeviceIndex(1));

fn path(kind: PathKind) -> Path {
    Path {
        kind,
        latency: Duration::from_micros(10),
        bytes_per_second: 1e9,
    }
}

/// A CPU that shares host memory and a GPU that does not, with a folder to spill to.
fn space(host_bytes_max: u64) -> (Space<u32>, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let config = SpaceConfig {
        host_bytes_max,
        spill: Some((folder.path().to_owned(), 1 << 20)),
        disk: path(PathKind::File),
    };
    let mut space = Space::open(config).unwrap();
    space
        .add_device(CPU, host_bytes_max, path(PathKind::Shared))
        .unwrap();
    space
        .add_device(GPU, 1000, path(PathKind::HostCopy))
        .unwrap();
    (space, folder)
}

fn here(content: Content<u32>) -> Bytes {
    match content {
        Content::Host(bytes) => bytes,
        other => panic!("{other:?} is not in host memory"),
    }
}

/// Writes to disk or reads from there what a refused change waits for.
fn carry_out(space: &mut Space<u32>, step: Move<u32>) -> Result<(), SpaceError> {
    match step.through_disk().expect("it goes to disk or comes back") {
        Ok(content) => space.on_transfer_ended(step.transit, content, None),
        Err(error) => {
            space.on_transfer_failed(step.transit);
            Err(error.into())
        }
    }
}

/// Asks for a change until no move is in its way.
fn until_done<T>(
    space: &mut Space<u32>,
    mut change: impl FnMut(&mut Space<u32>) -> Result<T, SpaceError>,
) -> Result<T, SpaceError> {
    loop {
        match change(space) {
            Err(SpaceError::Hold(HoldError::Moving { .. })) => {}
            answered => return answered,
        }
        let step = space.take_move().expect("nobody else moves anything");
        carry_out(space, step)?;
    }
}

fn adopt(space: &mut Space<u32>, bytes: Bytes) -> Result<Handle, SpaceError> {
    until_done(space, |space| {
        space.adopt_unnamed(bytes.clone(), Location::Host)
    })
}

fn bring(space: &mut Space<u32>, handle: Handle, place: Location) -> Result<Bytes, SpaceError> {
    until_done(space, |space| space.ensure_on(handle, place)).map(here)
}

#[test]
fn operators_on_one_cpu_copy_no_byte() {
    let (mut space, _folder) = space(1 << 20);
    let input = Bytes::from(vec![7; 4096]);
    let address = input.as_ptr();
    let mut value = space
        .adopt_content(ContentId::for_content(&input), input, Location::Host)
        .unwrap();
    // A chain of operators, each reading what the one before made.
    for operator in 0..100u8 {
        let read = here(space.ensure_on(value, CPU).unwrap());
        assert_eq!(read.len(), 4096);
        if operator == 0 {
            assert_eq!(read.as_ptr(), address, "the very same memory");
        }
        let made = space
            .adopt_unnamed(Bytes::from(vec![operator; 4096]), CPU)
            .unwrap();
        space.release_reference(value).unwrap();
        value = made;
    }
    space.ensure_on(value, Location::Host).unwrap();
    assert_eq!(space.move_totals().copied_bytes, 0);
    assert_eq!(
        space.move_totals().shared_bytes,
        2 * 4096,
        "one into the device, one out of it"
    );
}

#[test]
fn a_memory_of_its_own_gets_a_copy() {
    let (mut space, _folder) = space(1 << 20);
    let bytes = Bytes::from(vec![1; 500]);
    let handle = space
        .adopt_content(
            ContentId::for_content(&bytes),
            bytes.clone(),
            Location::Host,
        )
        .unwrap();
    let there = here(space.ensure_on(handle, GPU).unwrap());
    assert!(there == bytes && there.as_ptr() != bytes.as_ptr());
    assert_eq!(space.move_totals().copied_bytes, 500);
    space.ensure_on(handle, GPU).unwrap();
    assert_eq!(space.move_totals().copied_bytes, 500, "it is there already");
}

#[test]
fn devices_that_share_the_hosts_memory_share_each_others() {
    let (mut space, _folder) = space(1 << 20);
    let second = Location::Device(crate::location::DeviceIndex(2));
    space
        .add_device(second, 1 << 20, path(PathKind::Shared))
        .unwrap();
    let made = space.adopt_unnamed(Bytes::from(vec![1; 500]), CPU).unwrap();
    space.ensure_on(made, second).unwrap();
    assert_eq!(space.move_totals().copied_bytes, 0);
    space.ensure_on(made, GPU).unwrap();
    assert_eq!(space.move_totals().copied_bytes, 500);
}

#[test]
fn parts_of_one_chip_hand_on_in_its_memory() {
    let (mut space, _folder) = space(1 << 20);
    let other = Location::Device(crate::location::DeviceIndex(2));
    space
        .add_device(other, 1 << 20, path(PathKind::Unified))
        .unwrap();
    let made = space.adopt_unnamed(Bytes::from(vec![1; 500]), CPU).unwrap();
    let there = here(space.ensure_on(made, other).unwrap());
    assert_eq!(
        there.as_ptr(),
        here(space.ensure_on(made, CPU).unwrap()).as_ptr()
    );
    assert_eq!(space.move_totals().copied_bytes, 0);
    assert_eq!(space.path_bytes(other).unified, 500);
    assert_eq!(space.path_bytes(other).shared, 0);
}

#[test]
fn what_does_not_fit_is_spilled_and_comes_back_as_it_was() {
    let (mut space, folder) = space(1000);
    let block = |fill: u8| Bytes::from(vec![fill; 400]);
    let handles: Vec<Handle> = (0..5)
        .map(|fill| adopt(&mut space, block(fill)).unwrap())
        .collect();
    assert_eq!(space.move_totals().spilled_bytes, 3 * 400);
    for (fill, handle) in (0..).zip(&handles) {
        assert_eq!(
            bring(&mut space, *handle, Location::Host).unwrap(),
            block(fill)
        );
    }
    assert!(space.move_totals().restored_bytes >= 3 * 400);
    handles
        .into_iter()
        .for_each(|handle| space.release_reference(handle).unwrap());
    assert_eq!(
        (
            space.pool_use(Location::Host).used,
            space.pool_use(Location::Disk).used
        ),
        (0, 0)
    );
    assert_eq!(files(&folder), 0, "no file is left");
}

fn files(folder: &tempfile::TempDir) -> usize {
    let shelves = std::fs::read_dir(folder.path()).unwrap();
    shelves
        .map(|shelf| shelf.unwrap().path().read_dir().unwrap().count())
        .sum()
}

#[test]
fn equal_contents_are_one_file_until_the_last_has_gone() {
    let (mut space, folder) = space(500);
    let twins: Vec<Handle> = (0..3)
        .map(|_| adopt(&mut space, Bytes::from(vec![5; 400])).unwrap())
        .collect();
    assert_eq!(
        (space.move_totals().spilled_bytes, files(&folder)),
        (800, 1)
    );
    space.release_reference(twins[0]).unwrap();
    assert_eq!(files(&folder), 1);
    assert_eq!(
        bring(&mut space, twins[1], Location::Host).unwrap(),
        vec![5; 400]
    );
    space.release_reference(twins[1]).unwrap();
    space.release_reference(twins[2]).unwrap();
    assert_eq!(files(&folder), 0);
}

#[test]
fn a_disk_that_refuses_loses_nothing() {
    let (mut space, folder) = space(500);
    let first = adopt(&mut space, Bytes::from(vec![1; 400])).unwrap();
    // A file where the folder of this content should be made.
    let name = ContentId::for_content(&[1; 400]).to_string();
    std::fs::write(folder.path().join(&name[..2]), b"").unwrap();
    let second = adopt(&mut space, Bytes::from(vec![2; 400]));
    assert!(matches!(second, Err(SpaceError::Disk(_))));
    assert_eq!(bring(&mut space, first, CPU).unwrap(), vec![1; 400]);
    assert_eq!(space.pool_use(Location::Disk).used, 0);
}

#[test]
fn a_full_disk_is_no_room() {
    let (mut space, _folder) = space(500);
    space.set_limit(Location::Disk, 300).unwrap();
    let first = adopt(&mut space, Bytes::from(vec![1; 400])).unwrap();
    let second = adopt(&mut space, Bytes::from(vec![2; 400])).unwrap_err();
    assert!(
        matches!(second, SpaceError::Hold(HoldError::NoRoom { .. })),
        "{second}"
    );
    assert_eq!(bring(&mut space, first, CPU).unwrap(), vec![1; 400]);
}

#[test]
fn others_use_the_space_while_content_goes_to_disk_and_comes_back() {
    let (mut space, _folder) = space(1000);
    let first = adopt(&mut space, Bytes::from(vec![1; 400])).unwrap();
    let second = adopt(&mut space, Bytes::from(vec![2; 400])).unwrap();
    let third = space.adopt_unnamed(Bytes::from(vec![3; 400]), Location::Host);
    assert!(matches!(
        third,
        Err(SpaceError::Hold(HoldError::Moving {
            place: Location::Disk
        }))
    ));
    let writing = space.take_move().unwrap();
    assert_eq!(writing.transit.handle, first);
    // It is being written: what leaves is still read, and what fits is taken up.
    let read = space.ensure_on(first, Location::Host).unwrap();
    assert_eq!(here(read), vec![1; 400]);
    let read = space.ensure_on(second, Location::Host).unwrap();
    assert_eq!(here(read), vec![2; 400]);
    let small = space
        .adopt_unnamed(Bytes::from(vec![5; 100]), Location::Host)
        .unwrap();
    space.release_reference(small).unwrap();
    carry_out(&mut space, writing).unwrap();
    let third = adopt(&mut space, Bytes::from(vec![3; 400])).unwrap();
    assert_eq!(space.move_totals().spilled_bytes, 400);
    space.release_reference(third).unwrap();
    assert!(space.ensure_on(first, CPU).is_err());
    let reading = space.take_move().unwrap();
    let other = space
        .adopt_unnamed(Bytes::from(vec![4; 50]), Location::Host)
        .unwrap();
    // Released while it is read: it goes when it comes.
    space.release_reference(first).unwrap();
    carry_out(&mut space, reading).unwrap();
    assert_eq!(space.pool_use(Location::Disk).used, 0);
    space.release_reference(second).unwrap();
    space.release_reference(other).unwrap();
    assert!(space.holdings().is_empty());
}

#[test]
fn a_damaged_spill_is_an_error_not_a_wrong_number() {
    let (mut space, folder) = space(500);
    let first = adopt(&mut space, Bytes::from(vec![1; 400])).unwrap();
    adopt(&mut space, Bytes::from(vec![2; 400])).unwrap();
    let name = ContentId::for_content(&[1; 400]).to_string();
    let path = folder.path().join(&name[..2]).join(&name);
    std::fs::write(&path, [9; 400]).unwrap();
    let damaged = bring(&mut space, first, Location::Host).unwrap_err();
    assert!(
        matches!(damaged, SpaceError::Disk(FolderError::Damaged { .. })),
        "{damaged}"
    );
    let gone = bring(&mut space, first, Location::Host).unwrap_err();
    assert!(
        matches!(gone, SpaceError::Hold(HoldError::NoPath { .. })),
        "{gone}"
    );
}

#[test]
fn a_failed_device_leaves_what_has_another_copy() {
    let (mut space, _folder) = space(1 << 20);
    let both = space
        .adopt_unnamed(Bytes::from(vec![1; 100]), Location::Host)
        .unwrap();
    space.ensure_on(both, GPU).unwrap();
    let only = space.adopt_unnamed(Bytes::from(vec![2; 100]), GPU).unwrap();
    assert_eq!(space.forget_place(GPU), [only]);
    assert_eq!(here(space.ensure_on(both, CPU).unwrap()), vec![1; 100]);
    assert!(matches!(
        space.ensure_on(only, CPU),
        Err(SpaceError::Hold(HoldError::NoPath { .. }))
    ));
}

/// Resident pages of this process, in bytes.
#[cfg(target_os = "linux")]
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("linux states it");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kilobytes.expect("it is a number") << 10
}

#[cfg(target_os = "linux")]
#[test]
fn ten_thousand_jobs_leave_nothing_behind() {
    let (mut space, _folder) = space(4 << 20);
    let mut after_warm_up = 0;
    for job in 0..10_000u64 {
        let input = Bytes::from(vec![(job % 251) as u8; 64 << 10]);
        let input = space
            .adopt_content(
                ContentId::for_content(&job.to_le_bytes()),
                input,
                Location::Host,
            )
            .unwrap();
        let mut made = vec![input];
        for operator in 0..8u8 {
            let place = if operator % 2 == 0 {
                CPU
            } else {
                Location::Host
            };
            let last = *made.last().unwrap();
            space.ensure_on(last, place).unwrap();
            made.push(
                space
                    .adopt_unnamed(Bytes::from(vec![operator; 64 << 10]), place)
                    .unwrap(),
            );
        }
        made.into_iter()
            .for_each(|handle| space.release_reference(handle).unwrap());
        assert!(space.holdings().is_empty());
        if job == 1_000 {
            after_warm_up = resident_bytes();
        }
    }
    let grown = resident_bytes().saturating_sub(after_warm_up);
    // 9,000 jobs moved 5 GB through it; other tests of this process run beside it.
    assert!(grown < 32 << 20, "resident memory grew by {grown} bytes");
}
