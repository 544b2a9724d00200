//! What peers, disks and callers may do wrong, and what it may not do to others.

use std::path::{Path as FilePath, PathBuf};

use super::*;

const PEER: PeerIndex = PeerIndex(3);

/// A space that has a quick way from a peer.
fn with_peer(host_bytes_max: u64) -> (Space<u32>, tempfile::TempDir) {
    let (mut space, folder) = space(host_bytes_max);
    let quick = Path {
        kind: PathKind::Network(crate::paths::NetworkKind::Tcp),
        latency: Duration::ZERO,
        bytes_per_second: 1e12,
    };
    let peer = Place::Peer(PEER);
    space.paths_mut().declare(peer, Place::Host, quick);
    (space, folder)
}

fn remote(space: &mut Space<u32>, bytes: &[u8]) -> Handle {
    let content = ContentId::of(bytes);
    let taken = space.adopt_remote(content, bytes.len() as u64, PEER);
    taken.unwrap()
}

fn file_of(folder: &FilePath, bytes: &[u8]) -> PathBuf {
    let name = ContentId::of(bytes).to_string();
    folder.join(&name[..2]).join(name)
}

#[test]
fn nothing_is_allocated_in_a_peers_memory() {
    let (mut space, _folder) = with_peer(1000);
    remote(&mut space, b"weights");
    // The host and the processor that works there are full.
    for place in [Place::Host, CPU] {
        let bytes = Bytes::from(vec![1; 1000]);
        space.adopt_unnamed(bytes, place).unwrap();
    }
    let wanted = until_done(&mut space, |space| space.allocate(900, Hint::Automatic));
    let (_, place) = wanted.unwrap();
    assert!(!matches!(place, Place::Peer(_)), "{place}");
    let refused = space.allocate(1 << 30, Hint::Automatic).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "1073741824 bytes fit nowhere: the largest place holds 1000"
    );
}

#[test]
fn a_length_that_a_peer_states_wrongly_hurts_nobody() {
    let (mut space, _folder) = with_peer(1000);
    let bytes = Bytes::from_static(b"weights");
    let content = ContentId::of(&bytes);
    let handle = space.adopt(content, bytes.clone(), Place::Host).unwrap();
    let refused = space.adopt_remote(content, 8, PEER).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "content #1 has 7 bytes, 8 were stated: one of both is wrong"
    );
    assert_eq!(here(space.ensure_on(handle, CPU).unwrap()), bytes);
    let vast = space
        .adopt_remote(ContentId::of(b"one"), u64::MAX, PEER)
        .unwrap();
    let two = space.adopt_remote(ContentId::of(b"two"), u64::MAX, PEER);
    assert!(matches!(
        two,
        Err(SpaceError::Hold(HoldError::NoRoom { .. }))
    ));
    let fetched = space.arrived(vast, Place::Host, Bytes::from_static(b"one"));
    assert!(matches!(fetched, Err(SpaceError::Length { .. })));
    space.release(vast).unwrap();
    let three = Bytes::from_static(b"three");
    let short = space.adopt_remote(ContentId::of(&three), 3, PEER).unwrap();
    let arrived = space.arrived(short, Place::Host, three).unwrap_err();
    assert_eq!(
        arrived.to_string(),
        "content #3 has 3 bytes, 5 were written"
    );
    assert_eq!(space.pool(Place::Host).used, 7);
}

#[test]
fn what_is_here_too_is_not_waited_for_from_a_peer() {
    let (mut space, _folder) = with_peer(500);
    let bytes = Bytes::from(vec![7; 400]);
    let content = ContentId::of(&bytes);
    let first = space.adopt(content, bytes.clone(), Place::Host).unwrap();
    let other = adopt(&mut space, Bytes::from(vec![8; 400])).unwrap();
    assert!(space.holdings().holds(first, Place::Disk));
    assert_eq!(remote(&mut space, &bytes), first);
    space.release(other).unwrap();
    // The way from the peer is the quickest, and the disk asks nobody.
    assert_eq!(bring(&mut space, first, CPU).unwrap(), bytes);
    // What a peer has goes without being written.
    let spilled = space.moved().spilled_bytes;
    space.resize(Place::Disk, 0).unwrap();
    adopt(&mut space, Bytes::from(vec![8; 400])).unwrap();
    assert_eq!(space.moved().spilled_bytes, spilled);
    space.resize(CPU, 0).unwrap();
    let wanted = space.ensure_on(first, CPU).unwrap();
    let peer = PEER;
    assert_eq!(wanted, Availability::Fetch { peer, content });
}

#[test]
fn what_lies_on_disk_is_written_where_it_is_brought_to() {
    let (mut space, _folder) = space(500);
    let first = adopt(&mut space, Bytes::from(vec![1; 400])).unwrap();
    let second = adopt(&mut space, Bytes::from(vec![2; 400])).unwrap();
    assert!(space.holdings().holds(first, Place::Disk));
    let refused = space.write(first, Place::Disk, Bytes::from(vec![3; 400]));
    assert!(matches!(
        refused,
        Err(SpaceError::Hold(HoldError::Own { place: Place::Disk }))
    ));
    space.release(second).unwrap();
    bring(&mut space, first, Place::Host).unwrap();
    let new = Bytes::from(vec![3; 400]);
    space.write(first, Place::Host, new.clone()).unwrap();
    assert_eq!(space.pool(Place::Disk).used, 0, "the old one has gone");
    assert_eq!(bring(&mut space, first, CPU).unwrap(), new);
}

#[test]
fn a_spill_that_is_damaged_or_gone_is_told_once_and_takes_no_room() {
    let (mut space, folder) = space(500);
    let blocks = [1, 2, 3].map(|fill| vec![fill; 400]);
    let handles = blocks.clone().map(|block| adopt(&mut space, block.into()));
    let [damaged, removed, last] = handles.map(Result::unwrap);
    assert_eq!(space.pool(Place::Disk).used, 800);
    std::fs::write(file_of(folder.path(), &blocks[0]), [9; 400]).unwrap();
    std::fs::remove_file(file_of(folder.path(), &blocks[1])).unwrap();
    space.release(last).unwrap();
    let is_damaged = bring(&mut space, damaged, CPU).unwrap_err();
    let is_gone = bring(&mut space, removed, CPU).unwrap_err();
    let telling = [is_damaged.to_string(), is_gone.to_string()];
    assert!(telling[0].contains("is damaged"), "{}", telling[0]);
    assert!(telling[1].contains("is gone"), "{}", telling[1]);
    for handle in [damaged, removed] {
        let places = space.holdings().places(handle).unwrap();
        assert_eq!(places, [], "whoever made it is to make it again");
        let again = bring(&mut space, handle, CPU);
        assert!(matches!(
            again,
            Err(SpaceError::Hold(HoldError::NoPath { .. }))
        ));
    }
    assert_eq!(space.pool(Place::Disk).used, 0);
    // What was equal to it is written again, and read.
    let same = adopt(&mut space, blocks[0].clone().into()).unwrap();
    adopt(&mut space, blocks[2].clone().into()).unwrap();
    assert_eq!(bring(&mut space, same, CPU).unwrap(), blocks[0]);
    space.release(damaged).unwrap();
    space.release(removed).unwrap();
}

#[test]
fn what_a_killed_process_was_writing_goes_with_its_folder() {
    let folder = tempfile::tempdir().unwrap();
    let id = ContentId::of(b"half").to_string();
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
    space.resize(Place::Disk, 300).unwrap();
    // By what it costs to bring it back the other would go first, and it has nowhere to go.
    let third = adopt(&mut space, Bytes::from(vec![3; 400])).unwrap();
    assert_eq!(space.holdings().places(both).unwrap(), [GPU]);
    assert_eq!(bring(&mut space, only, Place::Host).unwrap(), vec![1; 400]);
    let fourth = adopt(&mut space, Bytes::from(vec![4; 400])).unwrap_err();
    assert_eq!(
        fourth.to_string(),
        "host memory has no room for 400 bytes: 800 of 1000 are held and cannot be moved"
    );
    assert_eq!(bring(&mut space, third, Place::Host).unwrap(), vec![3; 400]);
}
