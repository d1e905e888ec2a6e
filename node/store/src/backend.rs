//! Opening redb over a [`Disk`]: a probe that reads the format and writes nothing, and a gate
//! that is closed before a database is dropped, so that dropping never writes (redb would make
//! pending commits durable, perhaps ahead of the log).

use std::{
    cell::Cell,
    io,
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use parking_lot::Mutex;
use redb::{Builder, ReadableDatabase, StorageBackend, TableHandle, WriteTransaction};

use crate::{
    disk::{Disk, FileName},
    error::OpenError,
    tables::{FORMAT, OLD_FORMAT, OWN, own},
    upgrade,
};

/// An open file.
pub(crate) struct OpenFile {
    pub(crate) db: redb::Database,
    sealed: Arc<AtomicBool>,
}

impl OpenFile {
    /// From now on nothing reaches the file any more; snapshots of it stay readable.
    pub(crate) fn seal(&self) {
        self.sealed.store(true, Ordering::SeqCst);
    }
}

/// What an opening found.
pub(crate) struct Found {
    pub(crate) open: OpenFile,
    /// redb walked the whole file.
    pub(crate) walked: bool,
}

/// Opens `file`, making it with `init` when it is new.
pub(crate) fn open(
    disk: &dyn Disk,
    file: FileName,
    cache_bytes: u64,
    init: &dyn Fn(&WriteTransaction) -> Result<(), redb::Error>,
) -> Result<Found, OpenError> {
    let length = disk.len(file).map_err(|e| OpenError::io(file, &e))?;
    let stored = match length {
        None | Some(0) => None,
        Some(_) => probe(disk, file)?,
    };
    let begun = stored.is_some();
    let backend = disk.open(file).map_err(|e| OpenError::io(file, &e))?;
    let sealed = Arc::new(AtomicBool::new(false));
    let gate = Gate {
        inner: backend,
        sealed: sealed.clone(),
    };
    let walked = Rc::new(Cell::new(false));
    let seen = walked.clone();
    let db = Builder::new()
        .set_cache_size(usize::try_from(cache_bytes).unwrap_or(usize::MAX))
        .set_repair_callback(move |_| seen.set(true))
        .create_with_backend(gate)
        .map_err(|e| OpenError::from_redb(file, e.into()))?;
    if !begun {
        initialize(&db, init).map_err(|e| OpenError::from_redb(file, e))?;
        disk.sync_dir().map_err(|e| OpenError::io(file, &e))?;
    }
    if stored == Some(OLD_FORMAT) {
        upgrade::from_old(&db, file).map_err(|e| OpenError::from_redb(file, e))?;
    }
    Ok(Found {
        open: OpenFile { db, sealed },
        walked: walked.get() && begun,
    })
}

fn initialize(
    db: &redb::Database,
    init: &dyn Fn(&WriteTransaction) -> Result<(), redb::Error>,
) -> Result<(), redb::Error> {
    let mut txn = db.begin_write()?;
    txn.set_quick_repair(true);
    init(&txn)?;
    txn.open_table(OWN)?
        .insert(own::FORMAT, &FORMAT.to_be_bytes()[..])?;
    txn.commit()?;
    Ok(())
}

/// Reads the format without writing a byte. Absent when the file was never begun (a power cut
/// in the middle of making it).
fn probe(disk: &dyn Disk, file: FileName) -> Result<Option<u64>, OpenError> {
    let backend = disk.open(file).map_err(|e| OpenError::io(file, &e))?;
    let length = backend.len().map_err(|e| OpenError::io(file, &e))?;
    let probe = Probe {
        inner: backend,
        over: Mutex::new(Over {
            length,
            writes: Vec::new(),
        }),
    };
    let db = Builder::new()
        .set_cache_size(1 << 20)
        .create_with_backend(probe)
        .map_err(|e| OpenError::from_redb(file, e.into()))?;
    match stored_format(&db).map_err(|e| OpenError::from_redb(file, e))? {
        Stored::Nothing => Ok(None),
        Stored::Format(known @ (FORMAT | OLD_FORMAT)) => Ok(Some(known)),
        Stored::Format(found) => Err(OpenError::UnknownFormat {
            file,
            found,
            known: FORMAT,
        }),
        Stored::Foreign => Err(OpenError::damaged(file, "it is no file of this program")),
    }
}

enum Stored {
    Nothing,
    Format(u64),
    Foreign,
}

fn stored_format(db: &redb::Database) -> Result<Stored, redb::Error> {
    let txn = db.begin_read()?;
    let mut tables = txn.list_tables()?.peekable();
    if tables.peek().is_none() {
        return Ok(Stored::Nothing);
    }
    if !tables.any(|table| table.name() == OWN.name()) {
        return Ok(Stored::Foreign);
    }
    let table = txn.open_table(OWN)?;
    Ok(match table.get(own::FORMAT)? {
        Some(raw) => match raw.value().try_into() {
            Ok(bytes) => Stored::Format(u64::from_be_bytes(bytes)),
            Err(_) => Stored::Foreign,
        },
        None => Stored::Foreign,
    })
}

/// Hands everything on until it is sealed. redb's own file locks are left out: the directory
/// is locked as a whole.
#[derive(Debug)]
struct Gate {
    inner: Box<dyn StorageBackend>,
    sealed: Arc<AtomicBool>,
}

impl Gate {
    fn check(&self) -> io::Result<()> {
        if self.sealed.load(Ordering::SeqCst) {
            return Err(io::Error::other("the file is no longer in use"));
        }
        Ok(())
    }
}

impl StorageBackend for Gate {
    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }
    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.inner.read(offset, out)
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.check()?;
        self.inner.set_len(len)
    }
    fn sync_data(&self) -> io::Result<()> {
        self.check()?;
        self.inner.sync_data()
    }
    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.check()?;
        self.inner.write(offset, data)
    }
    fn close(&self) -> io::Result<()> {
        self.inner.close()
    }
}

/// Keeps writes in memory and never hands one on.
#[derive(Debug)]
struct Probe {
    inner: Box<dyn StorageBackend>,
    over: Mutex<Over>,
}

#[derive(Debug)]
struct Over {
    length: u64,
    writes: Vec<(u64, Vec<u8>)>,
}

impl StorageBackend for Probe {
    fn len(&self) -> io::Result<u64> {
        Ok(self.over.lock().length)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let over = self.over.lock();
        let end = offset + out.len() as u64;
        if end > over.length {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        out.fill(0);
        let stored = self.inner.len()?.clamp(offset, end) - offset;
        self.inner.read(offset, &mut out[..stored as usize])?;
        for (at, data) in &over.writes {
            let from = offset.max(*at);
            let to = end.min(at + data.len() as u64);
            if from < to {
                let source = &data[(from - at) as usize..(to - at) as usize];
                out[(from - offset) as usize..(to - offset) as usize].copy_from_slice(source);
            }
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.over.lock().length = len;
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.over.lock().writes.push((offset, data.to_vec()));
        Ok(())
    }

    fn close(&self) -> io::Result<()> {
        self.inner.close()
    }
}
