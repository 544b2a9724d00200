//! Tests faults of disks and other processes: a damaged or lost spill file, a full disk, and a
//! killed process must not harm other content.

use std::path::{Path as FilePath, PathBuf};

use super::*;

fn file_of(folder: &FilePath, bytes: &[u8]) -> PathBuf {
    let name = ContentId::for_content(bytes).to_string();
    folder.join(&name[..2]).join(name)
}

#[test]
fn a_spill_that_is_damaged_or_gone_is_told_once_and_takes_no_room() {
    let (mut space, folder) = space(500);
    let blocks = [1, 2, 3].map(|fill| vec![fill; 400]);
    let handles = blocks.clone().map(|block| adopt(&mut space, block.into()));
    let [damaged, removed, last] = handles.map(Result::unwrap);
    assert_eq!(space.pool_use(Location::Disk).used, 800);
    std::fs::write(file_of(folder.path(), &blocks[0]), [9; 400]).unwrap();
    std::fs::remove_file(file_of(folder.path(), &blocks[1])).unwrap();
    space.release_reference(last).unwrap();
    let is_damaged = bring(&mut space, damaged, CPU).unwrap_err();
    let is_gone = bring(&mut space, removed, CPU).unwrap_err();
    let telling = [is_damaged.to_string(), is_gone.to_string()];
    assert!(telling[0].contains("is damaged"), "{}", telling[0]);
    assert!(telling[1].contains("is gone"), "{}", telling[1]);
    for handle in [damaged, removed] {
        let places = space.holdings().copy_places(handle).unwrap();
        assert_eq!(places, [], "whoever made it is to make it again");
        let again = bring(&mut space, handle, CPU);
        assert!(matches!(
            again,
            Err(SpaceError::Hold(HoldError::NoPath { .. }))
        ));
    }
    assert_eq!(space.pool_use(Location::Disk).used, 0);
    // What was equal to it is written again, and read.
    let same = adopt(&mut space, blocks[0].clone().into()).unwrap();
    adopt(&mut space, blocks[2].clone().into()).unwrap();
    assert_eq!(bring(&mut space, same, CPU).unwrap(), blocks[0]);
    space.release_reference(damaged).unwrap();
    space.release_reference(removed).unwrap();
}

#[test]
fn what_a_killed_process_was_writing_goes_with_its_folder() {
    let folder = tempfile::tempdir().unwrap();
    let id = ContentId::for_content(b"half").to_string();
    let shelf = folder.path().join(&id[..2]);
    std::fs::create_dir(&shelf).unwrap();
    let aside = shelf.join(format!("{id}.4711-0.part"));
    std::fs::write(&aside, b"ha").unwrap();
    let others = folder.path().join("notes.txt");
    std::fs::write(&others, b"not ours").unwrap();
    let config = SpaceConfig {
        host_bytes_max: 500,
        spill: Some((folder.path().to_owned(), 1 << 20)),
        disk: path(PathKind::File),
    };
    drop(Space::<u32>::open(config).unwrap());
    assert!(!aside.exists(), "nobody would ever remove it");
    assert!(others.exists(), "it is not the spill's");
}

#[test]
fn a_full_disk_keeps_nothing_from_going_that_lies_elsewhere_too() {
    let (mut space, _folder) = space(1000);
    let far = Path {
        kind: PathKind::HostCopy,
        latency: Duration::from_secs(1),
        bytes_per_second: 1e3,
    };
    space.add_device(GPU, 1000, far).unwrap();
    let only = adopt(&mut space, Bytes::from(vec![1; 400])).unwrap();
    let both = adopt(&mut space, Bytes::from(vec![2; 400])).unwrap();
    bring(&mut space, both, GPU).unwrap();
    space.set_limit(Location::Disk, 300).unwrap();
    // By what it costs to bring it back the other would go first, and it has nowhere to go.
    let third = adopt(&mut space, Bytes::from(vec![3; 400])).unwrap();
    assert_eq!(space.holdings().copy_places(both).unwrap(), [GPU]);
    assert_eq!(
        bring(&mut space, only, Location::Host).unwrap(),
        vec![1; 400]
    );
    let fourth = adopt(&mut space, Bytes::from(vec![4; 400])).unwrap_err();
    assert_eq!(
        fourth.to_string(),
        "host memory has no room for 400 bytes: 800 of 1000 are held and cannot be moved"
    );
    assert_eq!(
        bring(&mut space, third, Location::Host).unwrap(),
        vec![3; 400]
    );
}
