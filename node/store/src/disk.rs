//! The data directory as a trait, and the real one. Only this module touches `std::fs`; it
//! knows file names and bytes, never what is in them.

use std::{
    fmt,
    fs::{self, File, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
};

use redb::{StorageBackend, backends::FileBackend};

/// The files of a data directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FileName {
    /// `raft.redb`: log, vote.
    Log,
    /// `state.redb`: everything applied.
    State,
    /// `state.redb.incoming`: an image that is being received.
    Incoming,
    /// `identity.json`: member, cluster, group.
    Identity,
    /// `recovery.json`: a recovery that was accepted and is to be made at the next start.
    Recovery,
}

impl FileName {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Log,
        Self::State,
        Self::Incoming,
        Self::Identity,
        Self::Recovery,
    ];

    /// The name on disk.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Log => "raft.redb",
            Self::State => "state.redb",
            Self::Incoming => "state.redb.incoming",
            Self::Identity => "identity.json",
            Self::Recovery => "recovery.json",
        }
    }
}

impl fmt::Display for FileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Space of the file system, bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DiskSpace {
    /// Its size.
    pub capacity: u64,
    /// Free for this user.
    pub free: u64,
}

/// A data directory. Errors are the system's.
pub trait Disk: Send + Sync {
    /// Opens a file for reading and writing; makes an empty one where there is none (durable
    /// in the directory after [`Disk::sync_dir`] only).
    ///
    /// # Errors
    /// When the system refuses.
    fn open(&self, file: FileName) -> io::Result<Box<dyn StorageBackend>>;

    /// The file's length in bytes; absent when there is no such file.
    ///
    /// # Errors
    /// When the system refuses.
    fn len(&self, file: FileName) -> io::Result<Option<u64>>;

    /// Renames, replacing `to`.
    ///
    /// # Errors
    /// When the system refuses, or there is no `from`.
    fn rename(&self, from: FileName, to: FileName) -> io::Result<()>;

    /// Removes a file; one that is not there is no error.
    ///
    /// # Errors
    /// When the system refuses.
    fn remove(&self, file: FileName) -> io::Result<()>;

    /// Makes creations, renames and removals durable.
    ///
    /// # Errors
    /// When the system refuses.
    fn sync_dir(&self) -> io::Result<()>;

    /// The files that are there, sorted.
    ///
    /// # Errors
    /// When the system refuses.
    fn list(&self) -> io::Result<Vec<FileName>> {
        let mut there = Vec::new();
        for file in FileName::ALL {
            if self.len(file)?.is_some() {
                there.push(file);
            }
        }
        Ok(there)
    }

    /// All bytes of a small file; absent when there is none.
    ///
    /// # Errors
    /// When the system refuses.
    fn read_small(&self, file: FileName) -> io::Result<Option<Vec<u8>>>;

    /// Replaces a small file; afterwards it is durable. A power cut leaves the old or the new.
    ///
    /// # Errors
    /// When the system refuses.
    fn write_small_atomically(&self, file: FileName, bytes: &[u8]) -> io::Result<()>;

    /// Space of the file system.
    ///
    /// # Errors
    /// When the system refuses.
    fn space(&self) -> io::Result<DiskSpace>;
}

/// A directory of the real file system, locked for this process.
#[derive(Debug)]
pub struct RealDisk {
    dir: PathBuf,
    /// Held for its lock: two processes must never use one directory.
    _lock: File,
}

impl RealDisk {
    /// Opens `dir`, making it when there is none, and locks it.
    ///
    /// # Errors
    /// When another process uses it (`WouldBlock`), or the system refuses.
    pub fn open(dir: impl Into<PathBuf>) -> io::Result<Self> {
        let dir = dir.into();
        fs::create_dir_all(&dir).map_err(|e| about(&dir, "cannot be made", &e))?;
        let path = dir.join("flower.lock");
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .map_err(|e| about(&path, "cannot be opened", &e))?;
        lock.try_lock().map_err(|e| match e {
            fs::TryLockError::WouldBlock => io::Error::new(
                io::ErrorKind::WouldBlock,
                format!(
                    "{} is used by another process; stop that one, or name another directory \
                     (setting FLOWER_DATA)",
                    dir.display()
                ),
            ),
            fs::TryLockError::Error(e) => about(&path, "cannot be locked", &e),
        })?;
        Ok(Self { dir, _lock: lock })
    }

    /// The directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    fn path(&self, file: FileName) -> PathBuf {
        self.dir.join(file.as_str())
    }
}

fn about(path: &Path, what: &str, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{} {what}: {error}", path.display()))
}

impl Disk for RealDisk {
    fn open(&self, file: FileName) -> io::Result<Box<dyn StorageBackend>> {
        let opened = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(self.path(file))?;
        FileBackend::new(opened)
            .map(|backend| Box::new(backend) as Box<dyn StorageBackend>)
            .map_err(io::Error::other)
    }

    fn len(&self, file: FileName) -> io::Result<Option<u64>> {
        match fs::metadata(self.path(file)) {
            Ok(meta) => Ok(Some(meta.len())),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }

    fn rename(&self, from: FileName, to: FileName) -> io::Result<()> {
        fs::rename(self.path(from), self.path(to))
    }

    fn remove(&self, file: FileName) -> io::Result<()> {
        match fs::remove_file(self.path(file)) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
            _ => Ok(()),
        }
    }

    fn sync_dir(&self) -> io::Result<()> {
        File::open(&self.dir)?.sync_all()
    }

    fn read_small(&self, file: FileName) -> io::Result<Option<Vec<u8>>> {
        match fs::read(self.path(file)) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }

    fn write_small_atomically(&self, file: FileName, bytes: &[u8]) -> io::Result<()> {
        let temporary = self.dir.join(format!("{file}.new"));
        let mut new = File::create(&temporary)?;
        new.write_all(bytes)?;
        new.sync_all()?;
        fs::rename(&temporary, self.path(file))?;
        self.sync_dir()
    }

    fn space(&self) -> io::Result<DiskSpace> {
        statvfs(&self.dir)
    }
}

fn statvfs(path: &Path) -> io::Result<DiskSpace> {
    use std::os::unix::ffi::OsStrExt;
    let path = std::ffi::CString::new(path.as_os_str().as_bytes())?;
    let mut raw = std::mem::MaybeUninit::<libc::statvfs>::uninit();
    // SAFETY: `path` is a NUL-terminated string and `raw` a writable place for one `statvfs`;
    // both live until the call returns.
    let code = unsafe { libc::statvfs(path.as_ptr(), raw.as_mut_ptr()) };
    if code != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call returned 0, so it has filled the whole structure.
    let found = unsafe { raw.assume_init() };
    // The fields' widths differ between platforms.
    #[allow(clippy::unnecessary_cast)]
    let (block, blocks, free) = (
        found.f_frsize as u64,
        found.f_blocks as u64,
        found.f_bavail as u64,
    );
    Ok(DiskSpace {
        capacity: block.saturating_mul(blocks),
        free: block.saturating_mul(free),
    })
}
