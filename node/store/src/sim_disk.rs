//! A disk in memory whose power can be cut: what was not synced survives in part, torn at 512
//! bytes, with an uncertain length; the directory keeps a prefix of its unsynced changes. All
//! choices come from the seed. For tests and the simulator; never in a shipped program.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, io,
    sync::Arc,
};

use parking_lot::Mutex;
use redb::StorageBackend;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::disk::{Disk, DiskSpace, FileName};

const SECTOR: u64 = 512;
const BLOCK: u64 = 4096;

/// What fails, and from when on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The power is cut before the operation: everything fails until [`SimDisk::cut_power`]'s
    /// survivors are opened anew.
    PowerCut,
    /// Writes and syncs fail with an input/output error.
    Eio,
    /// Writes fail because the disk is full.
    Enospc,
}

/// A data directory in memory. Clones are the same disk.
#[derive(Clone)]
pub struct SimDisk {
    world: Arc<Mutex<World>>,
    /// The program's epoch, for the disk of one program.
    bound: Option<u64>,
}

struct World {
    random: Random,
    /// Grows at each power cut; handles of an earlier one reach nothing.
    epoch: u64,
    files: Vec<FileData>,
    names: BTreeMap<FileName, usize>,
    durable_names: BTreeMap<FileName, usize>,
    /// Changes of the directory since the last sync, oldest first.
    pending_names: Vec<Vec<(FileName, Option<usize>)>>,
    capacity: u64,
    operations: u64,
    syncs: u64,
    bytes_written: u64,
    fault: Option<(u64, Fault)>,
    dead: bool,
    lying: bool,
    digest: u64,
}

#[derive(Default)]
struct FileData {
    durable: Vec<u8>,
    current: Vec<u8>,
    pending: Vec<Change>,
    /// Blocks that take space.
    blocks: BTreeSet<u64>,
}

enum Change {
    Write(u64, Vec<u8>),
    Length(u64),
}

/// A small generator; the store has no other source of chance.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        xxh3_64_with_seed(&self.0.to_le_bytes(), 0)
    }
    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }
    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

impl SimDisk {
    /// An empty disk of 1 TiB.
    pub fn new(seed: u64) -> Self {
        Self {
            world: Arc::new(Mutex::new(World {
                random: Random(seed),
                epoch: 0,
                files: Vec::new(),
                names: BTreeMap::new(),
                durable_names: BTreeMap::new(),
                pending_names: Vec::new(),
                capacity: 1 << 40,
                operations: 0,
                syncs: 0,
                bytes_written: 0,
                fault: None,
                dead: false,
                lying: false,
                digest: 0,
            })),
            bound: None,
        }
    }

    /// The same disk for one program: it reaches nothing once the power was cut or the program
    /// was killed.
    #[must_use]
    pub fn for_program(&self) -> Self {
        let epoch = self.world.lock().epoch;
        Self {
            world: self.world.clone(),
            bound: Some(epoch),
        }
    }

    /// Cuts the power and turns it on again: handles opened before reach nothing any more,
    /// those opened afterwards see what survived. Pending faults are forgotten.
    pub fn cut_power(&self) {
        self.world.lock().cut();
    }

    /// Ends the program that uses the disk, with the power on: handles opened before reach
    /// nothing any more, but nothing is lost (yet: what was not synced still is not).
    pub fn kill(&self) {
        let mut world = self.world.lock();
        world.epoch += 1;
        world.dead = false;
        world.fault = None;
    }

    /// Replaces the disk by an empty one of the same size.
    pub fn wipe(&self) {
        let mut world = self.world.lock();
        world.epoch += 1;
        (world.dead, world.fault) = (false, None);
        world.files.clear();
        world.names.clear();
        world.durable_names.clear();
        world.pending_names.clear();
    }

    /// A hash of every operation since the disk was made: kind, place and bytes.
    pub fn digest(&self) -> u64 {
        self.world.lock().digest
    }

    /// From the `after`-th operation (write, change of length, sync, change of the directory)
    /// from now on, everything fails; 0 is the next one.
    pub fn fail_after(&self, after: u64, fault: Fault) {
        let mut world = self.world.lock();
        world.fault = Some((world.operations + after, fault));
    }

    /// Whether the power is off: a fault cut it, and nobody turned it on again.
    pub fn is_dead(&self) -> bool {
        self.world.lock().dead
    }

    /// Ends a fault.
    pub fn heal(&self) {
        self.world.lock().fault = None;
    }

    /// Whether syncs of files are answered without being done: broken hardware, whose damage
    /// can be told at best, not survived.
    pub fn lie_about_syncs(&self, lying: bool) {
        self.world.lock().lying = lying;
    }

    /// Makes the disk this large; what is on it stays.
    pub fn set_capacity(&self, bytes: u64) {
        self.world.lock().capacity = bytes;
    }

    /// Bytes in use.
    pub fn used(&self) -> u64 {
        self.world.lock().used()
    }

    /// Operations that changed something, since the disk was made.
    pub fn operations(&self) -> u64 {
        self.world.lock().operations
    }

    /// Syncs of files and of the directory, since the disk was made.
    pub fn syncs(&self) -> u64 {
        self.world.lock().syncs
    }

    /// Bytes written, since the disk was made.
    pub fn bytes_written(&self) -> u64 {
        self.world.lock().bytes_written
    }

    /// All bytes of a file as the programs see it.
    pub fn contents(&self, file: FileName) -> Option<Vec<u8>> {
        let world = self.world.lock();
        world
            .names
            .get(&file)
            .map(|id| world.files[*id].current.clone())
    }

    /// Replaces a file's bytes, durably; for damage.
    pub fn overwrite(&self, file: FileName, bytes: Vec<u8>) {
        let mut world = self.world.lock();
        world.files.push(FileData {
            durable: bytes.clone(),
            current: bytes,
            ..FileData::default()
        });
        let id = world.files.len() - 1;
        world.names.insert(file, id);
        world.durable_names.insert(file, id);
    }
}

impl World {
    /// Counts an operation and says whether it fails.
    fn operate(&mut self, epoch: u64, writes: bool) -> io::Result<()> {
        self.alive(epoch)?;
        let at = self.operations;
        self.operations += 1;
        self.digest = xxh3_64_with_seed(&at.to_le_bytes(), self.digest);
        match self.fault {
            Some((from, Fault::PowerCut)) if at >= from => {
                self.dead = true;
                self.alive(epoch)
            }
            Some((from, Fault::Eio)) if at >= from => Err(io::Error::from_raw_os_error(5)),
            Some((from, Fault::Enospc)) if at >= from && writes => {
                Err(io::Error::from_raw_os_error(28))
            }
            _ => Ok(()),
        }
    }

    fn alive(&self, epoch: u64) -> io::Result<()> {
        if self.dead || epoch != self.epoch {
            return Err(io::Error::other("the power was cut"));
        }
        Ok(())
    }

    fn cut(&mut self) {
        self.epoch += 1;
        self.dead = false;
        self.fault = None;
        let kept = self.random.below(self.pending_names.len() as u64 + 1) as usize;
        let changes = std::mem::take(&mut self.pending_names);
        for (name, id) in changes.into_iter().take(kept).flatten() {
            set_name(&mut self.durable_names, name, id);
        }
        self.names = self.durable_names.clone();
        let named: BTreeSet<usize> = self.names.values().copied().collect();
        for (id, file) in self.files.iter_mut().enumerate() {
            if named.contains(&id) {
                file.cut(&mut self.random);
            } else {
                *file = FileData::default();
            }
        }
    }

    /// One change of the directory: a power cut leaves all of it or nothing.
    fn change_names(&mut self, changes: Vec<(FileName, Option<usize>)>) {
        for (name, id) in &changes {
            set_name(&mut self.names, *name, *id);
        }
        self.pending_names.push(changes);
    }

    fn create(&mut self, name: FileName) -> usize {
        self.files.push(FileData::default());
        let id = self.files.len() - 1;
        self.change_names(vec![(name, Some(id))]);
        id
    }

    fn used(&self) -> u64 {
        let named: BTreeSet<&usize> = self.names.values().collect();
        named
            .into_iter()
            .map(|id| self.files[*id].blocks.len() as u64 * BLOCK)
            .sum()
    }

    fn write(&mut self, id: usize, offset: u64, data: &[u8]) -> io::Result<()> {
        let end = offset + data.len() as u64;
        let blocks = offset / BLOCK..end.div_ceil(BLOCK);
        let new = blocks
            .clone()
            .filter(|b| !self.files[id].blocks.contains(b))
            .count() as u64;
        if new > 0 && self.used() + new * BLOCK > self.capacity {
            return Err(io::Error::from_raw_os_error(28));
        }
        self.bytes_written += data.len() as u64;
        self.digest = xxh3_64_with_seed(data, self.digest ^ offset ^ id as u64);
        let file = &mut self.files[id];
        file.blocks.extend(blocks);
        write_at(&mut file.current, offset, data);
        file.pending.push(Change::Write(offset, data.to_vec()));
        Ok(())
    }
}

fn set_name(names: &mut BTreeMap<FileName, usize>, name: FileName, id: Option<usize>) {
    match id {
        Some(id) => names.insert(name, id),
        None => names.remove(&name),
    };
}

fn write_at(bytes: &mut Vec<u8>, offset: u64, data: &[u8]) {
    let (from, to) = (offset as usize, offset as usize + data.len());
    if bytes.len() < to {
        bytes.resize(to, 0);
    }
    bytes[from..to].copy_from_slice(data);
}

impl FileData {
    fn sync(&mut self) {
        for change in self.pending.drain(..) {
            match change {
                Change::Write(offset, data) => write_at(&mut self.durable, offset, &data),
                Change::Length(len) => self.durable.resize(len as usize, 0),
            }
        }
    }

    /// Each unsynced sector and each change of length survives or not. One cut in four keeps
    /// or loses all of them: the extremes are what programs get wrong first.
    fn cut(&mut self, random: &mut Random) {
        let mode = random.below(8);
        let keeps = |random: &mut Random| match mode {
            0 => true,
            1 => false,
            2 => random.one_in(8),
            3 => !random.one_in(8),
            _ => random.one_in(2),
        };
        for change in std::mem::take(&mut self.pending) {
            match change {
                Change::Length(len) => {
                    if keeps(random) {
                        self.durable.resize(len as usize, 0);
                    }
                }
                Change::Write(offset, data) => {
                    let mut at = 0;
                    while at < data.len() as u64 {
                        let rest = SECTOR - (offset + at) % SECTOR;
                        let next = (at + rest).min(data.len() as u64);
                        if keeps(random) {
                            let torn = &data[at as usize..next as usize];
                            write_at(&mut self.durable, offset + at, torn);
                        }
                        at = next;
                    }
                }
            }
        }
        self.current = self.durable.clone();
        self.blocks = (0..(self.current.len() as u64).div_ceil(BLOCK)).collect();
    }
}

impl Disk for SimDisk {
    fn open(&self, file: FileName) -> io::Result<Box<dyn StorageBackend>> {
        let mut world = self.world.lock();
        let epoch = self.bound.unwrap_or(world.epoch);
        let id = match world.names.get(&file) {
            Some(id) => {
                world.alive(epoch)?;
                *id
            }
            None => {
                world.operate(epoch, true)?;
                world.create(file)
            }
        };
        Ok(Box::new(SimFile {
            world: self.world.clone(),
            id,
            epoch,
        }))
    }

    fn len(&self, file: FileName) -> io::Result<Option<u64>> {
        let world = self.world.lock();
        world.alive(self.bound.unwrap_or(world.epoch))?;
        Ok(world
            .names
            .get(&file)
            .map(|id| world.files[*id].current.len() as u64))
    }

    fn rename(&self, from: FileName, to: FileName) -> io::Result<()> {
        let mut world = self.world.lock();
        let epoch = self.bound.unwrap_or(world.epoch);
        world.operate(epoch, false)?;
        let Some(id) = world.names.get(&from).copied() else {
            return Err(io::ErrorKind::NotFound.into());
        };
        world.change_names(vec![(from, None), (to, Some(id))]);
        Ok(())
    }

    fn remove(&self, file: FileName) -> io::Result<()> {
        let mut world = self.world.lock();
        let epoch = self.bound.unwrap_or(world.epoch);
        world.operate(epoch, false)?;
        if world.names.contains_key(&file) {
            world.change_names(vec![(file, None)]);
        }
        Ok(())
    }

    fn sync_dir(&self) -> io::Result<()> {
        let mut world = self.world.lock();
        let epoch = self.bound.unwrap_or(world.epoch);
        world.operate(epoch, false)?;
        world.syncs += 1;
        world.pending_names.clear();
        world.durable_names = world.names.clone();
        Ok(())
    }

    fn read_small(&self, file: FileName) -> io::Result<Option<Vec<u8>>> {
        let world = self.world.lock();
        world.alive(self.bound.unwrap_or(world.epoch))?;
        Ok(world
            .names
            .get(&file)
            .map(|id| world.files[*id].current.clone()))
    }

    fn write_small_atomically(&self, file: FileName, bytes: &[u8]) -> io::Result<()> {
        let mut world = self.world.lock();
        let epoch = self.bound.unwrap_or(world.epoch);
        world.operate(epoch, true)?;
        world.files.push(FileData::default());
        let id = world.files.len() - 1;
        world.write(id, 0, bytes)?;
        world.operate(epoch, false)?;
        world.syncs += 1;
        world.files[id].sync();
        world.operate(epoch, false)?;
        world.change_names(vec![(file, Some(id))]);
        drop(world);
        self.sync_dir()
    }

    fn space(&self) -> io::Result<DiskSpace> {
        let world = self.world.lock();
        Ok(DiskSpace {
            capacity: world.capacity,
            free: world.capacity.saturating_sub(world.used()),
        })
    }
}

struct SimFile {
    world: Arc<Mutex<World>>,
    id: usize,
    epoch: u64,
}

impl fmt::Debug for SimFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimFile({})", self.id)
    }
}

impl StorageBackend for SimFile {
    fn len(&self) -> io::Result<u64> {
        let world = self.world.lock();
        world.alive(self.epoch)?;
        Ok(world.files[self.id].current.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let world = self.world.lock();
        world.alive(self.epoch)?;
        let from = offset as usize;
        let source = world.files[self.id].current.get(from..from + out.len());
        out.copy_from_slice(source.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut world = self.world.lock();
        world.operate(self.epoch, true)?;
        let file = &mut world.files[self.id];
        file.current.resize(len as usize, 0);
        file.blocks.retain(|block| block * BLOCK < len);
        file.pending.push(Change::Length(len));
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut world = self.world.lock();
        world.operate(self.epoch, false)?;
        world.syncs += 1;
        if !world.lying {
            world.files[self.id].sync();
        }
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut world = self.world.lock();
        world.operate(self.epoch, true)?;
        world.write(self.id, offset, data)
    }
}
