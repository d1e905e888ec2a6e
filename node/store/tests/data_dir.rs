//! Directories: minting, adopting, refusing and telling lost data.
#![allow(missing_docs)]

mod common;

use std::sync::Arc;

use common::{MEMBER, committed, open_dir, settings};
use flower_api::{ClusterId, GroupId, MemberId};
use flower_store::{AdoptError, DataDir, DirSettings, Disk, FileName, OpenError, Opened, SimDisk};

fn disk() -> (SimDisk, Arc<dyn Disk>) {
    let sim = SimDisk::new(11);
    (sim.clone(), Arc::new(sim))
}

fn open(disk: &Arc<dyn Disk>) -> Result<Opened, OpenError> {
    DataDir::open(disk.clone(), &settings(), MemberId(99))
}

fn broken(disk: &Arc<dyn Disk>) -> String {
    match open(disk).unwrap() {
        Opened::Broken { why, .. } => why,
        _ => panic!("it opened"),
    }
}

fn cluster(name: &str) -> ClusterId {
    ClusterId(name.to_owned())
}

/// A directory with ten entries, five of them behind the checkpoint.
fn filled() -> (SimDisk, Arc<dyn Disk>) {
    let (sim, disk) = disk();
    let mut open = open_dir(&disk);
    open.dir.adopt(&cluster("one"), None).unwrap();
    open.log.append((0..10).map(committed));
    let flushed = open.log.flush().unwrap();
    for index in 0..5 {
        let record = committed(index);
        open.state.apply(record.position, &record.payload).unwrap();
    }
    open.state.checkpoint(flushed).unwrap();
    drop(open);
    (sim, disk)
}

#[test]
fn an_identity_is_minted_once_and_adopted_once() {
    let (sim, disk) = disk();
    let Opened::Fresh(mut first) = DataDir::open(disk.clone(), &settings(), MEMBER).unwrap() else {
        panic!("not fresh")
    };
    assert_eq!(first.dir.identity().member, MEMBER);
    assert_eq!(first.dir.identity().cluster, None);
    drop(first);
    let Opened::Fresh(again) = open(&disk).unwrap() else {
        panic!("not fresh")
    };
    assert_eq!(
        again.dir.identity().member,
        MEMBER,
        "another start mints nothing"
    );
    first = again;
    first.dir.adopt(&cluster("one"), None).unwrap();
    first.dir.adopt(&cluster("one"), None).unwrap();
    let other = first.dir.adopt(&cluster("two"), None).unwrap_err();
    assert!(matches!(other, AdoptError::OtherCluster { .. }));
    assert!(
        other
            .to_string()
            .contains("belongs to cluster one, not to two"),
        "{other}"
    );
    sim.cut_power();
    drop(first);
    let Opened::Member(mut member) = open(&disk).unwrap() else {
        panic!("no member")
    };
    assert_eq!(member.dir.identity().cluster, Some(cluster("one")));
    assert_eq!(member.dir.identity().group, GroupId(0));
    assert!(!member.dir.identity().admitted);
    member.dir.admit().unwrap();
    let saved = sim.operations();
    member.dir.admit().unwrap();
    assert_eq!(sim.operations(), saved, "known already");
    sim.cut_power();
    drop(member);
    let Opened::Member(member) = open(&disk).unwrap() else {
        panic!("no member")
    };
    assert!(member.dir.identity().admitted);
    assert_eq!(member.dir.identity().cluster, Some(cluster("one")));
}

#[test]
fn another_group_is_refused() {
    let (sim, disk) = filled();
    let before = sim.operations();
    let settings = DirSettings {
        group: GroupId(3),
        ..settings()
    };
    let refused = DataDir::open(disk, &settings, MEMBER).err().unwrap();
    assert!(refused.to_string().contains("FLOWER_GROUP"), "{refused}");
    assert_eq!(sim.operations(), before, "untouched");
}

#[test]
fn unknown_formats_are_refused_and_left_untouched() {
    for file in [FileName::Log, FileName::State] {
        let (sim, disk) = filled();
        let mut bytes = sim.contents(file).unwrap();
        with_format(&mut bytes, 9);
        sim.overwrite(file, bytes);
        let names = FileName::ALL.map(|f| sim.contents(f));
        let refused = open(&disk).err().unwrap();
        let OpenError::UnknownFormat {
            file: told,
            found,
            known,
        } = refused
        else {
            panic!("{refused}")
        };
        assert_eq!((told, found, known), (file, 9, 2));
        assert_eq!(
            sim.contents(file),
            names[file as usize],
            "{file} was written to"
        );
    }
    let (sim, disk) = filled();
    let text = String::from_utf8(sim.contents(FileName::Identity).unwrap()).unwrap();
    sim.overwrite(
        FileName::Identity,
        text.replace("\"format\": 1", "\"format\": 2").into_bytes(),
    );
    let refused = open(&disk).err().unwrap();
    assert!(
        matches!(refused, OpenError::UnknownFormat { found: 2, .. }),
        "{refused}"
    );
}

/// Rewrites the stored format through redb itself, so that its checksums hold.
fn with_format(bytes: &mut Vec<u8>, format: u64) {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), &bytes).unwrap();
    let db = redb::Database::open(file.path()).unwrap();
    let txn = db.begin_write().unwrap();
    let own = redb::TableDefinition::<&[u8], &[u8]>::new("own");
    txn.open_table(own)
        .unwrap()
        .insert(&b"format"[..], &format.to_be_bytes()[..])
        .unwrap();
    txn.commit().unwrap();
    drop(db);
    *bytes = std::fs::read(file.path()).unwrap();
}

#[test]
fn missing_or_damaged_files_are_broken_and_name_the_member() {
    for file in [FileName::Log, FileName::State] {
        let (_, disk) = filled();
        disk.remove(file).unwrap();
        let why = broken(&disk);
        assert!(
            why.contains(file.as_str()) && why.contains(&MEMBER.to_string()),
            "{why}"
        );

        let (sim, disk) = filled();
        sim.overwrite(file, vec![0x55; 20_000]);
        let why = broken(&disk);
        assert!(why.contains("replace the member"), "{why}");
        assert_eq!(
            sim.contents(file).unwrap(),
            vec![0x55; 20_000],
            "left as it was"
        );

        let (sim, disk) = filled();
        let half = sim.contents(file).unwrap();
        sim.overwrite(file, half[..5_000].to_vec());
        broken(&disk);
    }
    let (sim, disk) = filled();
    sim.overwrite(FileName::Identity, b"{".to_vec());
    broken(&disk);
    let (_, disk) = filled();
    disk.remove(FileName::Identity).unwrap();
    let why = broken(&disk);
    assert!(why.contains("identity.json is missing"), "{why}");
}

#[test]
fn files_that_do_not_fit_each_other_are_broken() {
    let (sim, disk) = filled();
    let old_log = sim.contents(FileName::Log).unwrap();
    let old_state = sim.contents(FileName::State).unwrap();
    let mut open = open_dir(&disk);
    open.log.append((10..20).map(committed));
    let flushed = open.log.flush().unwrap();
    for index in 5..20 {
        let record = committed(index);
        open.state.apply(record.position, &record.payload).unwrap();
    }
    let checkpoint = open.state.checkpoint(flushed).unwrap();
    open.log.purge(committed(15).position, &checkpoint).unwrap();
    open.log.flush().unwrap();
    drop(open);

    let new_log = sim.contents(FileName::Log).unwrap();
    sim.overwrite(FileName::Log, old_log);
    let why = broken(&disk);
    assert!(why.contains("raft.redb ends at 9"), "{why}");
    sim.overwrite(FileName::Log, new_log);
    sim.overwrite(FileName::State, old_state);
    let why = broken(&disk);
    assert!(why.contains("begins only behind 15"), "{why}");
}

#[test]
fn a_first_start_may_be_cut_off_anywhere() {
    for seed in 0..150 {
        let sim = SimDisk::new(seed);
        let disk: Arc<dyn Disk> = Arc::new(sim.clone());
        sim.fail_after(seed % 75, flower_store::sim_disk::Fault::PowerCut);
        let first = open(&disk);
        sim.cut_power();
        drop(first);
        match open(&disk).unwrap() {
            Opened::Fresh(open) => assert_eq!(open.state.applied(), None),
            Opened::Member(_) => panic!("seed {seed}: a member of nothing"),
            Opened::Broken { why, .. } => panic!("seed {seed}: {why}"),
        }
    }
}

#[test]
fn a_damaged_file_never_panics_through() {
    let mut outcomes = [0; 2];
    for seed in 0..120_u64 {
        let (sim, disk) = filled();
        let mut chance = common::Chance(seed + 1);
        let file = [FileName::Log, FileName::State][chance.below(2) as usize];
        let mut bytes = sim.contents(file).unwrap();
        for _ in 0..1 + chance.below(200) {
            let at = chance.below(bytes.len() as u64) as usize;
            bytes[at] ^= chance.next() as u8;
        }
        sim.overwrite(file, bytes);
        let opened = open(&disk);
        assert!(!flower_store::is_opening());
        outcomes[usize::from(matches!(opened, Ok(Opened::Broken { .. })))] += 1;
    }
    assert!(outcomes[1] > 0, "{outcomes:?}");
}

#[test]
fn a_disk_that_lied_is_told_or_at_least_never_mixed_up() {
    let (mut opened, mut told) = (0, 0);
    for seed in 0..150 {
        let sim = SimDisk::new(seed + 5_000);
        let disk: Arc<dyn Disk> = Arc::new(sim.clone());
        let mut open_dir = open_dir(&disk);
        for index in 0..40 {
            sim.lie_about_syncs(index >= 10);
            let record = committed(index);
            open_dir.log.append([record.clone()]);
            let flushed = open_dir.log.flush().unwrap();
            open_dir
                .state
                .apply(record.position, &record.payload)
                .unwrap();
            if index % 3 == 0 {
                open_dir.state.checkpoint(flushed).unwrap();
            }
        }
        sim.cut_power();
        drop(open_dir);
        match open(&disk) {
            Ok(Opened::Fresh(found) | Opened::Member(found)) => {
                let view = found.state.view();
                assert!(
                    view.applied() <= found.log.reader().bounds().last,
                    "seed {seed}"
                );
                assert_eq!(view.recount().unwrap(), *view.totals(), "seed {seed}");
                opened += 1;
            }
            Ok(Opened::Broken { .. }) => told += 1,
            Err(other) => panic!("seed {seed}: {other}"),
        }
    }
    println!("{told} of 150 told, {opened} opened with an older, coherent state");
    assert!(told > 20, "{told}");
}
