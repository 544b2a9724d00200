//! Tests the guarantees of the store: limits hold, damaged content is found and removed, and
//! several processes can share a folder.

use proptest::prelude::*;

use super::*;

fn on_disk(folder: &std::path::Path, memory: u64, disk: u64) -> Store {
    let config = StoreConfig {
        memory_bytes_max: memory,
        folder: Some(folder.to_owned()),
        folder_bytes_max: disk,
    };
    Store::open(config).unwrap()
}

fn file_of(folder: &std::path::Path, id: &ContentId) -> PathBuf {
    let name = id.to_string();
    folder.join(&name[..2]).join(name)
}

#[test]
fn a_full_memory_refuses_by_its_limit() {
    let store = Store::in_memory(10);
    store.put(Bytes::from_static(b"12345678")).unwrap();
    let error = store.put(Bytes::from_static(b"abc")).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the store's memory limit of 10 bytes is reached: 8 held, 3 more wanted"
    );
    store.put(Bytes::from_static(b"12345678")).unwrap();
}

#[test]
fn released_content_stays_until_other_content_needs_its_room() {
    let store = Store::in_memory(10);
    let put = |text: &'static str| store.put(Bytes::from_static(text.as_bytes()));
    let ids = ["aaaa", "bbbb"].map(|text| put(text).unwrap());
    for id in ids {
        store.pin(id);
        store.pin(id);
        store.release(&id);
    }
    put("cccc").unwrap_err();
    assert!(
        ids.iter().all(|id| store.contains(id)),
        "both have an owner"
    );
    store.release(&ids[0]);
    store.release(&ids[1]);
    assert!(ids.iter().all(|id| store.contains(id)), "there is room");
    // The longest unused goes, and no more than must.
    put("cccc").unwrap();
    assert_eq!(ids.map(|id| store.contains(&id)), [false, true]);
    // Content that is put again has an owner again.
    put("bbbb").unwrap();
    put("dddd").unwrap_err();
    put("more than ten").unwrap_err();
    assert!(store.contains(&ids[1]));
}

#[test]
fn held_content_leaves_with_its_last_hold() {
    let store = Arc::new(Store::in_memory(10));
    let text = || Bytes::from_static(b"12345678");
    for _ in 0..100 {
        let first = HeldContent::put(&store, text()).unwrap();
        let second = HeldContent::put(&store, text()).unwrap();
        let id = first.id();
        assert_eq!(second.id(), id);
        drop(first);
        assert_eq!(store.get(&id).unwrap(), Some(text()));
        drop(second);
        assert!(!store.contains(&id));
        // A hold can come before its content, and content that came without one goes with it.
        let hold = HeldContent::for_id(&store, id);
        store.put(text()).unwrap();
        drop(hold);
    }
    let usage = store.usage();
    assert_eq!((usage.memory_bytes, usage.pinned_items), (0, 0));
    // Content that does not fit leaves no hold.
    let long = Bytes::from_static(b"more than ten");
    let error = HeldContent::put(&store, long).unwrap_err();
    assert!(matches!(error, StoreError::MemoryFull { .. }), "{error}");
    assert_eq!(store.usage().pinned_items, 0);
    // What somebody else pins stays.
    let held = HeldContent::put(&store, text()).unwrap();
    let id = held.id();
    store.pin(id);
    drop(held);
    assert!(store.contains(&id));
}

#[test]
fn a_folder_lets_memory_forget_and_bring_back() {
    let folder = tempfile::tempdir().unwrap();
    let store = on_disk(folder.path(), 10, 1000);
    let first = store.put(Bytes::from_static(b"12345678")).unwrap();
    let second = store.put(Bytes::from_static(b"abcdefgh")).unwrap();
    assert_eq!(store.usage().memory_items, 1);
    assert_eq!(store.get(&first).unwrap().unwrap(), &b"12345678"[..]);
    assert_eq!(store.get(&second).unwrap().unwrap(), &b"abcdefgh"[..]);
}

#[test]
fn what_passes_is_in_memory_alone_and_gives_way() {
    let folder = tempfile::tempdir().unwrap();
    let store = on_disk(folder.path(), 16, 1000);
    let lasting = store.put("12345678".into()).unwrap();
    let passing = store.put_passing(None, "abcdefgh".into()).unwrap();
    assert!(!file_of(folder.path(), &passing).exists());
    assert_eq!(store.get(&passing).unwrap().unwrap(), &b"abcdefgh"[..]);
    store.put_passing(None, "ABCDEFGH".into()).unwrap();
    assert_eq!(store.get(&lasting).unwrap().unwrap(), &b"12345678"[..]);
    assert!(!store.contains(&passing), "it was the only copy");
    let changed = store.put_passing(Some(lasting), "other".into());
    assert!(
        matches!(changed, Err(StoreError::Changed { .. })),
        "{changed:?}"
    );
    store.pin(lasting);
    let full = store.put_passing(None, "longer than that".into());
    assert!(
        matches!(full, Err(StoreError::MemoryFull { .. })),
        "{full:?}"
    );
}

#[test]
fn memory_grows_and_shrinks_and_keeps_what_is_pinned() {
    let folder = tempfile::tempdir().unwrap();
    let store = on_disk(folder.path(), 24, 1000);
    let contents = ["12345678", "abcdefgh", "ABCDEFGH"];
    let [first, second, third] = contents.map(|content| store.put(content.into()).unwrap());
    store.pin(first);
    store.set_memory_limit(16);
    assert!(store.in_reach(&second).is_none(), "it was used longest ago");
    assert!(store.in_reach(&third).is_some());
    store.set_memory_limit(1);
    let usage = store.usage();
    assert_eq!(
        (usage.memory_bytes_max, usage.memory_bytes),
        (1, 8),
        "one is pinned"
    );
    assert_eq!(store.get(&third).unwrap().unwrap(), &b"ABCDEFGH"[..]);
    assert_eq!(store.usage().memory_items, 1, "there is no room to keep it");
    store.unpin(&first);
    store.set_memory_limit(16);
    for id in [second, third] {
        store.get(&id).unwrap().unwrap();
    }
    assert_eq!(store.usage().memory_bytes, 16);
}

#[test]
fn a_store_without_a_folder_that_shrinks_loses_nothing() {
    let store = Store::in_memory(10);
    let id = store.put(Bytes::from_static(b"12345678")).unwrap();
    store.set_memory_limit(4);
    assert!(store.put(Bytes::from_static(b"a")).is_err());
    assert_eq!(store.get(&id).unwrap().unwrap(), &b"12345678"[..]);
    store.set_memory_limit(9);
    store.put(Bytes::from_static(b"a")).unwrap();
}

#[test]
fn a_full_folder_lets_go_of_the_oldest_that_is_not_pinned() {
    let folder = tempfile::tempdir().unwrap();
    let store = on_disk(folder.path(), 1, 10);
    let first = store.put(Bytes::from_static(b"1234")).unwrap();
    let second = store.put(Bytes::from_static(b"5678")).unwrap();
    let aged = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1);
    let file = std::fs::File::options()
        .write(true)
        .open(file_of(folder.path(), &first))
        .unwrap();
    file.set_modified(aged).unwrap();
    store.put(Bytes::from_static(b"abc")).unwrap();
    assert!(!store.contains(&first) && store.contains(&second));
    store.pin(second);
    let refused = store.put(Bytes::from_static(b"12345678"));
    assert!(matches!(
        refused,
        Err(StoreError::Folder(FolderError::Full {
            limit: 10,
            held: 4,
            wanted: 8
        }))
    ));
    assert!(store.contains(&second));
}

#[test]
fn two_stores_share_a_folder() {
    let folder = tempfile::tempdir().unwrap();
    let writer = on_disk(folder.path(), 100, 1000);
    let reader = on_disk(folder.path(), 100, 1000);
    let id = writer.put(Bytes::from_static(b"shared")).unwrap();
    assert!(reader.contains(&id));
    assert_eq!(reader.get(&id).unwrap().unwrap(), &b"shared"[..]);
}

#[test]
fn a_damaged_file_is_named_and_removed() {
    let folder = tempfile::tempdir().unwrap();
    let id = on_disk(folder.path(), 100, 1000)
        .put(Bytes::from_static(b"whole"))
        .unwrap();
    std::fs::write(file_of(folder.path(), &id), b"wh").unwrap();
    let store = on_disk(folder.path(), 100, 1000);
    let damaged = store.get(&id);
    assert!(matches!(
        damaged,
        Err(StoreError::Folder(FolderError::Damaged { .. }))
    ));
    assert!(store.get(&id).unwrap().is_none());
}

#[test]
fn what_was_torn_is_written_again() {
    let folder = tempfile::tempdir().unwrap();
    let whole = Bytes::from_static(b"12345678");
    let id = on_disk(folder.path(), 10, 20).put(whole.clone()).unwrap();
    std::fs::write(file_of(folder.path(), &id), b"").unwrap();
    // Memory forgets it: only what the folder has is left.
    let store = on_disk(folder.path(), 10, 20);
    assert_eq!(store.put(whole.clone()).unwrap(), id);
    store.put(Bytes::from_static(b"abcdefgh")).unwrap();
    assert_eq!(store.get(&id).unwrap(), Some(whole));
}

#[test]
fn what_a_process_left_half_written_goes_when_nobody_can_be_at_it() {
    let folder = tempfile::tempdir().unwrap();
    let store = on_disk(folder.path(), 10, 1000);
    let id = store.put(Bytes::from_static(b"12345678")).unwrap();
    let [old, new] = [0, 1].map(|number| {
        let aside = file_of(folder.path(), &id).with_extension(format!("4711-{number}.part"));
        std::fs::write(&aside, b"12").unwrap();
        aside
    });
    let file = std::fs::File::options().write(true).open(&old).unwrap();
    let now = std::fs::metadata(&new).unwrap().modified().unwrap();
    let hours = std::time::Duration::from_secs(3 * 60 * 60);
    file.set_modified(now - hours).unwrap();
    let store = on_disk(folder.path(), 10, 1000);
    assert!(!old.exists(), "its process ended as it wrote");
    assert!(new.exists(), "another process may be at it");
    assert!(store.contains(&id));
}

#[test]
fn pinned_content_stays() {
    let folder = tempfile::tempdir().unwrap();
    let store = on_disk(folder.path(), 10, 1000);
    let id = store.put(Bytes::from_static(b"12345678")).unwrap();
    store.pin(id);
    store.put(Bytes::from_static(b"abcdefgh")).unwrap();
    assert!(!store.remove(&id).unwrap());
    assert_eq!(
        store.usage(),
        StoreUse {
            memory_bytes_max: 10,
            memory_bytes: 8,
            memory_items: 1,
            pinned_items: 1,
            spare_bytes: 0,
            awaited_reads: 0,
        }
    );
    store.unpin(&id);
    assert!(store.remove(&id).unwrap());
}

/// Three models of 400 bytes in turn, in memory for two: how many reads somebody waited for.
fn reads_of_models_in_turn(turns: usize, foreseen: bool) -> u64 {
    let folder = tempfile::tempdir().unwrap();
    let store = on_disk(folder.path(), 1000, 10_000);
    let models = [1_u8, 2, 3].map(|n| [2 * n, 2 * n + 1].map(|n| Bytes::from(vec![n; 200])));
    let models = models.map(|weights| weights.map(|bytes| store.put(bytes).unwrap()));
    let mut predictor = crate::prefetch_predictor::PrefetchPredictor::default();
    for model in models.iter().cycle().take(turns) {
        for id in model {
            assert!(store.get(id).unwrap().is_some());
        }
        predictor.record_run(model[0], *model);
        if foreseen {
            store.preload_content(&predictor.predict_contents());
        }
        assert!(store.usage().memory_bytes <= 1000);
    }
    store.usage().awaited_reads
}

#[test]
fn what_history_foresees_is_there_before_it_is_asked_for() {
    // Memory forgets what was used longest ago, which is what comes next.
    assert_eq!(reads_of_models_in_turn(30, false), 2 * 30);
    // The first turn of each has no history, and the second of the first none of what follows.
    assert!(reads_of_models_in_turn(30, true) <= 2 * 4);
}

#[test]
fn a_guess_brings_no_more_than_half_of_memory() {
    let folder = tempfile::tempdir().unwrap();
    let store = on_disk(folder.path(), 1000, 10_000);
    let put = |n: u8| store.put(Bytes::from(vec![n; 300])).unwrap();
    let ids: Vec<ContentId> = (0..6).map(put).collect();
    let came = store.preload_content(&ids[..3]);
    assert_eq!(came, 300, "two of them are over half");
    assert_eq!(store.preload_content(&ids[..1]), 0, "it is there");
    std::fs::write(file_of(folder.path(), &ids[2]), b"garbage").unwrap();
    assert_eq!(
        store.preload_content(&[ids[2], ContentId::for_content(b"none")]),
        0
    );
    assert_eq!(store.usage().awaited_reads, 0);
}

#[test]
fn what_leaves_makes_room_for_what_comes() {
    let bytes: Vec<u8> = (0..5 << 20).map(|n| (n / 7) as u8).collect();
    let store = Store::in_memory(32 << 20);
    let arrived = |bytes: &[u8]| {
        let mut arrival = store.new_arrival(Outline::from_bytes(bytes));
        arrival.push_bytes(bytes).unwrap();
        store.put_arrived(arrival.finish().unwrap()).unwrap();
        ContentId::for_content(bytes)
    };
    let first = arrived(&bytes);
    let at = store.get(&first).unwrap().unwrap().as_ptr();
    store.remove(&first).unwrap();
    assert_eq!(store.usage().spare_bytes, 5 << 20);
    // Shorter, and not a byte of what was there before is in it.
    let second = arrived(&bytes[..(4 << 20) + 3]);
    let held = store.get(&second).unwrap().unwrap();
    assert_eq!((held.as_ptr(), &held[..]), (at, &bytes[..(4 << 20) + 3]));
    store.remove(&second).unwrap();
    drop(held);
    store.age_spare_pages();
    assert_eq!(store.usage().spare_bytes, 5 << 20);
    store.age_spare_pages();
    assert_eq!(store.usage().spare_bytes, 0);
}

#[test]
fn content_under_another_id_is_refused() {
    let stated = ContentId::for_content(b"one");
    let refused = Store::in_memory(100).put_as(stated, Bytes::from_static(b"two"));
    assert!(matches!(refused, Err(StoreError::Changed { .. })));
}

#[test]
fn threads_that_write_the_same_content_agree() {
    let folder = tempfile::tempdir().unwrap();
    let store = on_disk(folder.path(), 1 << 16, 1 << 16);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for value in 0..50u8 {
                    store.put(Bytes::from(vec![value; 64])).unwrap();
                }
            });
        }
    });
    assert_eq!(store.usage().memory_items, 50);
    assert_eq!(store.usage().memory_bytes, 50 * 64);
}

proptest! {
    #[test]
    fn memory_never_exceeds_its_limit_and_nothing_on_disk_is_lost(
        sizes in prop::collection::vec(0usize..40, 1..30),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let store = on_disk(folder.path(), 64, 1 << 20);
        let mut ids = Vec::new();
        for (index, &size) in sizes.iter().enumerate() {
            ids.push(store.put(Bytes::from(vec![index as u8; size])).unwrap());
            prop_assert!(store.usage().memory_bytes <= 64);
        }
        for (id, &size) in ids.iter().zip(&sizes) {
            prop_assert_eq!(store.get(id).unwrap().unwrap().len(), size);
        }
    }
}
