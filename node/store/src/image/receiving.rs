//! The receiving side: into a file of its own, in bounded memory, then in the state's place.

use std::{ops::Bound, sync::Arc};

use bytes::{Buf, Bytes};
use flower_api::limits::{BUNDLE_BYTES, MIB};
use flower_engine::Space;
use redb::{Durability, WriteTransaction};
use xxhash_rust::xxh3::Xxh3;

use super::{
    FORMAT, HEADER, Header, ImageError, MAGIC, PIECE, RUN, TRAILER, Trailer, decoded, open_frame,
    refused,
};
use crate::{
    backend::{self, OpenFile},
    disk::{Disk, FileName},
    error::Fatal,
    record::LogPosition,
    state::{self, Checkpointed, State},
    tables,
    view::{Standing, Totals},
};

const FILE: FileName = FileName::Incoming;
/// Received bytes between two commits; what bounds the memory.
const COMMIT_BYTES: u64 = 8 * MIB;
/// Largest value: a bundle, with room for its manifest.
const VALUE_BYTES: u64 = 2 * BUNDLE_BYTES;

/// An image that is being received.
pub struct Receiving {
    disk: Arc<dyn Disk>,
    file: Option<OpenFile>,
    header: Option<Header>,
    totals: Totals,
    hash: Xxh3,
    uncommitted: u64,
    txn: Option<WriteTransaction>,
    /// A large value that has not come whole: space, key, bytes so far.
    partial: Option<(Space, Vec<u8>, Vec<u8>)>,
    space: u8,
}

/// An image that came whole; not yet durable.
pub struct Verified {
    receiving: Receiving,
}

/// What became of a frame.
pub enum Received {
    /// More frames must come.
    More(Box<Receiving>),
    /// That was the last one.
    Whole(Box<Verified>),
}

impl Drop for Receiving {
    fn drop(&mut self) {
        self.txn = None;
        if let Some(file) = self.file.take() {
            file.seal();
        }
    }
}

impl Receiving {
    /// Begins, with an empty file. `cache_bytes` is the page cache meanwhile.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn start(disk: Arc<dyn Disk>, cache_bytes: u64) -> Result<Self, Fatal> {
        let failed = |e: &dyn std::fmt::Display| Fatal::with(FILE, "beginning an image", e);
        disk.remove(FILE).map_err(|e| failed(&e))?;
        let found = backend::open(&*disk, FILE, cache_bytes, &state::make_tables)
            .map_err(|e| failed(&e))?;
        Ok(Self {
            disk,
            file: Some(found.open),
            header: None,
            totals: Totals::default(),
            hash: Xxh3::new(),
            uncommitted: 0,
            txn: None,
            partial: None,
            space: 0,
        })
    }

    /// Removes what an interrupted transfer left behind.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn remove_stray(disk: &dyn Disk) -> Result<(), Fatal> {
        let failed = |e| Fatal::with(FILE, "removing an unfinished image", e);
        if disk.len(FILE).map_err(failed)?.is_some() {
            disk.remove(FILE).map_err(failed)?;
        }
        Ok(())
    }

    /// Takes one frame. On an error this image is over; the state is untouched.
    ///
    /// # Errors
    /// `Refused` for a bad frame, `Fatal` when the disk fails.
    pub fn accept(mut self, frame: &[u8]) -> Result<Received, ImageError> {
        let (kind, body) = open_frame(frame)?;
        match (kind, self.header.is_some()) {
            (HEADER, false) => self.take_header(body)?,
            (RUN, true) => self.take_run(body)?,
            (PIECE, true) => self.take_piece(body)?,
            (TRAILER, true) => {
                self.take_trailer(body)?;
                return Ok(Received::Whole(Box::new(Verified { receiving: self })));
            }
            (HEADER, true) => return Err(refused("it has two headers")),
            (_, false) => return Err(refused("it does not begin with a header")),
            (other, true) => return Err(refused(format!("frame of unknown kind {other}"))),
        }
        self.hash.update(frame);
        if self.uncommitted >= COMMIT_BYTES {
            self.commit()?;
        }
        Ok(Received::More(Box::new(self)))
    }

    fn take_header(&mut self, body: &[u8]) -> Result<(), ImageError> {
        let Some(rest) = body.strip_prefix(&MAGIC[..]) else {
            return Err(refused("it is no image of this program"));
        };
        match rest.split_first() {
            Some((&FORMAT, rest)) => {
                self.header = Some(decoded("header", rest)?);
                Ok(())
            }
            Some((other, _)) => Err(refused(format!(
                "it has format {other}; this version knows only format {FORMAT}"
            ))),
            None => Err(refused("its header is cut short")),
        }
    }

    fn take_run(&mut self, mut body: &[u8]) -> Result<(), ImageError> {
        if self.partial.is_some() {
            return Err(refused("a large value is cut short"));
        }
        let space = self.take_space(&mut body)?;
        let mut rows = Vec::new();
        while !body.is_empty() {
            if body.remaining() < 8 {
                return Err(refused("a run is cut short"));
            }
            let (key, value) = (body.get_u32() as usize, body.get_u32() as usize);
            let Some((row, rest)) = key
                .checked_add(value)
                .and_then(|size| body.split_at_checked(size))
            else {
                return Err(refused("a run is cut short"));
            };
            rows.push(row.split_at(key));
            body = rest;
        }
        self.insert(space, &rows)
    }

    fn take_piece(&mut self, mut body: &[u8]) -> Result<(), ImageError> {
        let space = self.take_space(&mut body)?;
        if body.remaining() < 5 {
            return Err(refused("a piece is cut short"));
        }
        let last = body.get_u8() == 1;
        let length = body.get_u32() as usize;
        let Some((key, part)) = body.split_at_checked(length) else {
            return Err(refused("a piece is cut short"));
        };
        let mut value = match self.partial.take() {
            None => Vec::new(),
            Some((s, k, value)) if s == space && k == key => value,
            Some(_) => return Err(refused("a large value is cut short")),
        };
        value.extend_from_slice(part);
        if value.len() as u64 > VALUE_BYTES {
            return Err(refused(format!(
                "a value is larger than {VALUE_BYTES} bytes"
            )));
        }
        if last {
            self.insert(space, &[(key, &value[..])])
        } else {
            self.partial = Some((space, key.to_vec(), value));
            Ok(())
        }
    }

    fn take_space(&mut self, body: &mut &[u8]) -> Result<Space, ImageError> {
        let Some((&number, rest)) = body.split_first() else {
            return Err(refused("an empty frame"));
        };
        *body = rest;
        let space = Space::from_number(number)
            .filter(|_| number >= self.space)
            .ok_or_else(|| refused(format!("table {number} is unknown or out of order")))?;
        self.space = number;
        Ok(space)
    }

    /// Adds rows behind all others of their space.
    fn insert(&mut self, space: Space, rows: &[(&[u8], &[u8])]) -> Result<(), ImageError> {
        let failed = |e: redb::Error| match e {
            redb::Error::UnorderedKey => refused("its keys are out of order"),
            other => Fatal::with(FILE, "receiving an image", other).into(),
        };
        let txn = self.transaction().map_err(failed)?;
        append(txn, space, rows).map_err(failed)?;
        for (key, value) in rows {
            self.totals.add(space, key, value);
            self.uncommitted += (key.len() + value.len()) as u64;
        }
        Ok(())
    }

    fn transaction(&mut self) -> Result<&WriteTransaction, redb::Error> {
        if self.txn.is_none() {
            let mut txn = self.open_file()?.db.begin_write()?;
            txn.set_durability(Durability::None)?;
            self.txn = Some(txn);
        }
        self.txn.as_ref().ok_or(redb::Error::DatabaseClosed)
    }

    fn open_file(&self) -> Result<&OpenFile, redb::Error> {
        self.file.as_ref().ok_or(redb::Error::DatabaseClosed)
    }

    fn commit(&mut self) -> Result<(), Fatal> {
        self.uncommitted = 0;
        match self.txn.take() {
            Some(txn) => txn
                .commit()
                .map_err(|e| Fatal::with(FILE, "receiving an image", e)),
            None => Ok(()),
        }
    }

    fn take_trailer(&mut self, body: &[u8]) -> Result<(), ImageError> {
        let trailer: Trailer = decoded("trailer", body)?;
        if self.partial.is_some() {
            return Err(refused("a large value is cut short"));
        }
        let told = self.header.as_ref().map(|header| header.totals);
        if trailer.hash != self.hash.digest128()
            || trailer.records != self.totals.all_records()
            || told != Some(self.totals)
        {
            return Err(refused(
                "what came is not what its header and trailer tell; frames are missing or changed",
            ));
        }
        self.commit()?;
        Ok(())
    }
}

impl Verified {
    /// Position up to which the image goes.
    pub fn applied(&self) -> Option<LogPosition> {
        self.receiving.header.as_ref().and_then(|h| h.applied)
    }

    /// The configuration in the image.
    pub fn membership(&self) -> Option<(LogPosition, Bytes)> {
        let header = self.receiving.header.as_ref()?;
        let (position, bytes) = header.membership.clone()?;
        Some((position, bytes.into()))
    }

    /// Makes the image durable and puts it in the state's place: afterwards `state.views()`
    /// shows it; older views go on showing what they did. A power cut at any moment leaves the
    /// old state or the new one.
    ///
    /// # Errors
    /// When the disk fails; the state is not to be used afterwards.
    pub fn install(mut self, state: &mut State) -> Result<Checkpointed, Fatal> {
        state.usable()?;
        let images = state.view().images_received() + 1;
        if let Err(e) = self.finish(images) {
            return Err(state.fail("making an image durable", e));
        }
        let disk = self.receiving.disk.clone();
        drop(self);
        let renamed = disk
            .rename(FILE, FileName::State)
            .and_then(|()| disk.sync_dir());
        if let Err(e) = renamed {
            return Err(state.fail("putting an image in the state's place", e));
        }
        state.replace_file()
    }

    /// The one durable commit, with what the file says of itself.
    fn finish(&mut self, images: u64) -> Result<(), redb::Error> {
        let receiving = &mut self.receiving;
        let header = receiving
            .header
            .take()
            .ok_or_else(|| redb::Error::Corrupted("an image without a header".into()))?;
        let mut txn = receiving.open_file()?.db.begin_write()?;
        txn.set_durability(Durability::Immediate)?;
        txn.set_quick_repair(true);
        if let Some((position, bytes)) = header.membership {
            state::put_membership(&txn, position, &bytes.into())?;
        }
        let standing = Standing {
            applied: header.applied,
            revision: header.revision,
            totals: header.totals,
            installed: header.applied,
            images,
        };
        state::put_standing(&txn, &standing)?;
        txn.commit()?;
        Ok(())
    }
}

fn append(
    txn: &WriteTransaction,
    space: Space,
    rows: &[(&[u8], &[u8])],
) -> Result<(), redb::Error> {
    let mut table = txn.open_table(tables::of_space(space))?;
    let mut end = table.upper_bound_mut(Bound::<&[u8]>::Unbounded)?;
    for (key, value) in rows {
        end.insert_before(*key, *value)?;
    }
    end.close()?;
    Ok(())
}
