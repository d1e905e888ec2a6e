//! Random lives of log and state over a disk that loses power at a random operation: what was
//! promised is there afterwards, nothing else is, and opening never walks the data.
#![allow(missing_docs)]

mod common;

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use common::{Chance, committed, open_dir, open_state, padded};
use flower_store::{
    Bounds, Disk, Fatal, FileName, ImageReader, LogPosition, LogRecord, OpenDir, Received,
    Receiving, SimDisk, StateView, Totals, sim_disk::Fault,
};

const ENTRIES: u64 = 160;
/// Cuts on one disk.
const LIVES: u64 = 5;
/// How many cuts a campaign makes; a test run makes few.
const CUTS: &str = "FLOWER_POWER_CUTS";

/// The group's committed history: the views of a state that applied it without any fault.
struct Truth {
    views: Vec<Arc<StateView>>,
}

impl Truth {
    fn new() -> Self {
        let disk: Arc<dyn Disk> = Arc::new(SimDisk::new(0));
        let mut state = open_state(&disk);
        let views = (0..ENTRIES)
            .map(|index| {
                let record = committed(index);
                state.apply(record.position, &record.payload).unwrap();
                state.view()
            })
            .collect();
        Self { views }
    }

    fn totals(&self, applied: Option<LogPosition>) -> Totals {
        applied.map_or_else(Totals::default, |p| *self.views[p.index as usize].totals())
    }
}

/// Rare cases that a campaign must have met, or it shows little.
#[derive(Debug, Default, Clone, Copy)]
struct Reached {
    lost_flush: u32,
    unacknowledged_flush: u32,
    unacknowledged_checkpoint: u32,
    finished_install: u32,
    replay: u32,
    installs: u32,
    purges: u32,
}

/// What a node was doing when the power went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Doing {
    Nothing,
    Flush,
    Apply,
    Checkpoint,
    Purge,
    Install,
}

/// How many cuts fell into each, and what they left; as JSON what a campaign reports.
#[derive(Debug, Default)]
struct Cuts {
    by: BTreeMap<Doing, u64>,
    reached: Reached,
    steps: u64,
}

impl Cuts {
    fn of(&self, doing: Doing) -> u64 {
        self.by.get(&doing).copied().unwrap_or(0)
    }

    /// Nothing is lost, inconsistent or fails to open: each of that ends the campaign.
    fn json(&self) -> String {
        let by = self.by.iter();
        let by: Vec<_> = by.map(|(doing, n)| format!("\"{doing:?}\": {n}")).collect();
        format!(
            "{{\"cuts\": {}, \"steps\": {}, \"by\": {{{}}}, \"lost\": 0, \"inconsistent\": 0, \
             \"notOpened\": 0}}",
            self.by.values().sum::<u64>(),
            self.steps,
            by.join(", ")
        )
    }
}

/// Everything that a flush promises.
#[derive(Debug, Clone, PartialEq, Default)]
struct LogContent {
    bounds: Bounds,
    records: Vec<LogRecord>,
    vote: Option<Bytes>,
}

/// A reading can be where the power goes: with its cache full, redb writes pages to make room.
fn content(open: &OpenDir) -> Result<LogContent, Fatal> {
    let reader = open.log.reader();
    Ok(LogContent {
        bounds: reader.bounds(),
        records: reader.get(0..u64::MAX, u64::MAX)?,
        vote: reader.vote(),
    })
}

/// One life between two cuts, with what a reopening may find.
struct Life<'a> {
    open: OpenDir,
    truth: &'a Truth,
    chance: Chance,
    /// What the last flush made durable, and what one that was cut off might have.
    log: Vec<LogContent>,
    /// Likewise for checkpoints and installs.
    applied: Vec<Option<LogPosition>>,
    /// Length of the committed history that this node holds; what may follow is junk of an
    /// older leader.
    good: u64,
    votes: u64,
    doing: Doing,
}

impl<'a> Life<'a> {
    fn new(open: OpenDir, truth: &'a Truth, seed: u64) -> Self {
        let log = vec![content(&open).unwrap()];
        let applied = vec![open.state.applied()];
        let good = open.log.reader().bounds().last.map_or(0, |p| p.index + 1);
        let mut life = Self {
            open,
            truth,
            chance: Chance(seed * 2 + 1),
            log,
            applied,
            good,
            votes: 0,
            doing: Doing::Nothing,
        };
        life.good = life.good_length();
        life
    }

    /// How much of the log is of the committed history.
    fn good_length(&self) -> u64 {
        let content = content(&self.open).unwrap();
        let start = content.bounds.purged.map_or(0, |p| p.index + 1);
        let good = content
            .records
            .iter()
            .take_while(|r| **r == committed(r.position.index));
        start + good.count() as u64
    }

    fn next_applied(&self) -> u64 {
        self.open.state.applied().map_or(0, |p| p.index + 1)
    }

    fn step(&mut self) -> Result<(), Fatal> {
        self.doing = Doing::Nothing;
        match self.chance.below(20) {
            0..=5 => self.append(),
            6..=8 => self.flush(),
            9..=13 => self.apply(),
            14 => self.append_junk(),
            15 => self.truncate_junk(),
            16 | 17 => self.checkpoint(),
            18 => self.purge(),
            _ if self.chance.below(4) == 0 => self.install(),
            _ => self.vote(),
        }
    }

    fn append(&mut self) -> Result<(), Fatal> {
        self.truncate_junk()?;
        let upto = (self.good + 1 + self.chance.below(4)).min(ENTRIES);
        self.open.log.append((self.good..upto).map(committed));
        self.good = self.good.max(upto);
        Ok(())
    }

    fn append_junk(&mut self) -> Result<(), Fatal> {
        let last = self.open.log.reader().bounds().last;
        let next = last.map_or(0, |p| p.index + 1);
        // Of the term of the entry before it, but never committed.
        let term = last.map_or(1, |p| p.term);
        self.open.log.append([padded(term, next, 300)]);
        Ok(())
    }

    fn truncate_junk(&mut self) -> Result<(), Fatal> {
        self.open.log.truncate_after(self.good.checked_sub(1))
    }

    fn flush(&mut self) -> Result<(), Fatal> {
        self.flush_as(Doing::Flush)
    }

    fn flush_as(&mut self, doing: Doing) -> Result<(), Fatal> {
        self.doing = doing;
        self.log.push(content(&self.open)?);
        self.open.log.flush()?;
        // The flush was made, whatever becomes of reading what it wrote.
        self.log.drain(..self.log.len() - 1);
        Ok(())
    }

    fn apply(&mut self) -> Result<(), Fatal> {
        self.doing = Doing::Apply;
        // A quorum's word is enough: the own log need not be flushed.
        let from = self.next_applied();
        let upto = (from + self.chance.below(6)).min(self.good);
        for index in from..upto {
            let record = committed(index);
            self.open.state.apply(record.position, &record.payload)?;
            let totals = self.truth.totals(Some(record.position));
            assert_eq!(*self.open.state.view().totals(), totals);
        }
        Ok(())
    }

    fn checkpoint(&mut self) -> Result<(), Fatal> {
        self.flush()?;
        let flushed = self.open.log.flush()?;
        self.doing = Doing::Checkpoint;
        self.applied.push(self.open.state.applied());
        self.open.state.checkpoint(flushed)?;
        self.applied = vec![self.open.state.applied()];
        Ok(())
    }

    fn purge(&mut self) -> Result<(), Fatal> {
        self.checkpoint()?;
        let Some(applied) = self.open.state.applied() else {
            return Ok(());
        };
        let upto = applied.index - self.chance.below(5).min(applied.index);
        let flushed = self.open.log.flush()?;
        let checkpoint = self.open.state.checkpoint(flushed)?;
        self.open.log.purge(committed(upto).position, &checkpoint)?;
        // The records go with the next flush.
        self.flush_as(Doing::Purge)
    }

    fn vote(&mut self) -> Result<(), Fatal> {
        self.votes += 1;
        self.open.log.save_vote(Bytes::from(self.votes.to_string()));
        self.flush()
    }

    fn install(&mut self) -> Result<(), Fatal> {
        let index = self.good + 1 + self.chance.below(20);
        let Some(view) = self.truth.views.get(index as usize) else {
            return Ok(());
        };
        self.doing = Doing::Install;
        let disk = self.open.dir.disk().clone();
        let mut receiving = Receiving::start(disk, 1 << 20)?;
        for frame in ImageReader::new(view.clone()) {
            match receiving.accept(&frame?) {
                Ok(Received::More(more)) => receiving = *more,
                Ok(Received::Whole(verified)) => {
                    self.applied.push(view.applied());
                    let checkpoint = verified.install(&mut self.open.state)?;
                    self.applied = vec![view.applied()];
                    let position = committed(index).position;
                    self.open.log.purge(position, &checkpoint)?;
                    self.good = index + 1;
                    return self.flush_as(Doing::Install);
                }
                Err(flower_store::ImageError::Fatal(fatal)) => return Err(fatal),
                Err(refused) => panic!("{refused}"),
            }
        }
        panic!("the image has no end")
    }

    /// What must hold of a directory that was opened after this life.
    fn check(&self, open: &OpenDir, seed: u64, reached: &mut Reached) {
        assert_eq!(open.report.full_repairs, 0, "seed {seed}");
        let found = content(open).unwrap();
        let view = open.state.view();
        let applied = view.applied();
        // An installation that was cut off before its log was purged is finished by opening.
        let finished = found.bounds.purged == applied && applied == view.installed();
        assert!(
            self.log.iter().any(|log| log.vote == found.vote),
            "seed {seed}"
        );
        reached.unacknowledged_flush +=
            u32::from(self.log.last() == Some(&found) && self.log.len() > 1);
        reached.lost_flush += u32::from(self.log[0] == found && self.log.len() > 1);
        reached.unacknowledged_checkpoint +=
            u32::from(self.applied.last() == Some(&applied) && self.applied.len() > 1);
        reached.finished_install += u32::from(!self.log.contains(&found));
        reached.replay += u32::from(open.report.replayable > 0);
        assert!(
            self.log.contains(&found) || finished && found.records.is_empty(),
            "seed {seed}: {:?} with {} records is none of {:?}",
            found.bounds,
            found.records.len(),
            self.log.iter().map(|l| l.bounds).collect::<Vec<_>>()
        );
        let view = open.state.view();
        let applied = view.applied();
        assert!(
            self.applied.contains(&applied),
            "seed {seed}: {applied:?} of {:?}",
            self.applied
        );
        assert!(
            applied <= found.bounds.last,
            "seed {seed}: the state leads its log"
        );
        assert_eq!(*view.totals(), self.truth.totals(applied), "seed {seed}");
        assert_eq!(view.recount().unwrap(), *view.totals(), "seed {seed}");
        let disk = open.dir.disk();
        assert_eq!(disk.len(FileName::Incoming).unwrap(), None);
    }
}

/// Runs lives on one disk, one after the other, each ended by a cut.
fn campaign(truth: &Truth, seed: u64, lives: u64, cuts: &mut Cuts) {
    let reached = &mut cuts.reached;
    let sim = SimDisk::new(seed);
    let disk: Arc<dyn Disk> = Arc::new(sim.clone());
    let mut open = open_dir(&disk);
    let mut steps = 0;
    for number in 0..lives {
        let mut life = Life::new(open, truth, seed * 1_000 + number);
        sim.fail_after(life.chance.below(120), Fault::PowerCut);
        let behind_apply = life.chance.below(8) == 0;
        let mut running = true;
        while running && steps < 10_000 {
            running = life.step().is_ok()
                && life
                    .open
                    .state
                    .applied()
                    .is_none_or(|p| p.index + 1 < ENTRIES);
            steps += 1;
            let unheard = running && sim.is_dead();
            assert!(!unheard, "seed {seed}: {:?} hid a failure", life.doing);
            // An apply seldom touches the disk itself, so that few failures hit one: some
            // lives end just behind one, with what it wrote in memory alone.
            if behind_apply && life.doing == Doing::Apply && life.chance.below(6) == 0 {
                break;
            }
        }
        sim.cut_power();
        *cuts.by.entry(life.doing).or_default() += 1;
        // Opened while the dead process's handles are still there, and used after their drop:
        // neither may touch what the other does.
        open = open_dir(&disk);
        life.check(&open, seed, reached);
        reached.installs += life.open.state.view().installed().is_some() as u32;
        reached.purges += life.open.log.reader().bounds().purged.is_some() as u32;
    }
    // And what the log still holds brings the state to where the log ends.
    let end = open.log.reader().bounds().last;
    let from = open.state.applied().map_or(0, |p| p.index + 1);
    for record in open.log.reader().get(from..u64::MAX, u64::MAX).unwrap() {
        if record != committed(record.position.index) {
            break;
        }
        open.state.apply(record.position, &record.payload).unwrap();
    }
    let view = open.state.view();
    assert!(view.applied() <= end.max(view.installed()));
    assert_eq!(*view.totals(), truth.totals(view.applied()), "seed {seed}");
    cuts.steps += steps;
}

#[test]
fn nothing_promised_is_lost_and_opening_is_bounded() {
    let truth = Truth::new();
    let mut cuts = Cuts::default();
    let asked = std::env::var(CUTS).ok();
    let count: u64 = asked.map_or(500, |asked| asked.parse().expect(CUTS));
    for seed in 1..=count.div_ceil(LIVES) {
        campaign(&truth, seed, LIVES, &mut cuts);
    }
    println!("{}", cuts.json());
    let reached = cuts.reached;
    // Of 12,000 at least 500 in each; of fewer as many in proportion.
    for doing in [
        Doing::Flush,
        Doing::Apply,
        Doing::Checkpoint,
        Doing::Purge,
        Doing::Install,
    ] {
        assert!(cuts.of(doing) * 24 >= count, "{doing:?}: {}", cuts.json());
    }
    let Reached {
        lost_flush,
        unacknowledged_flush,
        unacknowledged_checkpoint,
        finished_install,
        replay,
        installs,
        purges,
    } = reached;
    let rare = [
        lost_flush,
        unacknowledged_flush,
        unacknowledged_checkpoint,
        finished_install,
        replay,
        installs,
        purges,
    ];
    assert!(rare.iter().all(|n| *n > 0), "{reached:?}");
}
