//! An image: the whole state as a stream of frames, each at most 1 MiB and checksummed. Read
//! from a view, so that content and position always fit; received into a file of its own, so
//! that a bad or broken-off image never touches the state.

use std::{ops::Bound, sync::Arc};

use bytes::{Buf, BufMut, Bytes};
use flower_api::limits::{BUNDLE_BYTES, FRAME_BYTES, MIB};
use flower_engine::Space;
use redb::{Durability, Range, WriteTransaction};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use crate::{
    backend::{self, OpenFile},
    disk::{Disk, FileName},
    error::Fatal,
    record::LogPosition,
    state::{self, Checkpointed, State},
    tables,
    view::{Standing, StateView, Totals},
};

const MAGIC: &[u8; 8] = b"flwimage";
/// Format of images.
const FORMAT: u8 = 1;
const FILE: FileName = FileName::Incoming;
/// Received bytes between two commits; what bounds the memory.
const COMMIT_BYTES: u64 = 8 * MIB;
/// Largest value: a bundle, with room for its manifest.
const VALUE_BYTES: u64 = 2 * BUNDLE_BYTES;
const HASH_BYTES: usize = 8;
/// Room for frame kind, space, lengths and hash.
const FRAME_ROOM: usize = 64;

const HEADER: u8 = 1;
const RUN: u8 = 2;
const PIECE: u8 = 3;
const TRAILER: u8 = 4;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Header {
    applied: Option<LogPosition>,
    revision: u64,
    membership: Option<(LogPosition, Vec<u8>)>,
    totals: Totals,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Trailer {
    records: u64,
    hash: u128,
}

/// Why an image was not taken.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ImageError {
    /// Damaged, cut short, out of order, or of another format. The state is as it was.
    #[error("the image is refused: {0}. The state is unchanged; another image may be sent")]
    Refused(String),
    /// The disk failed.
    #[error(transparent)]
    Fatal(#[from] Fatal),
}

fn refused(why: impl Into<String>) -> ImageError {
    ImageError::Refused(why.into())
}

/// Reads the frames of an image of a view, in order. Pins the view's pages while it lives.
pub struct ImageReader {
    view: Arc<StateView>,
    stage: Stage,
    hash: Xxh3,
    records: u64,
    sent_bytes: u64,
}

type Rows = Range<'static, &'static [u8], &'static [u8]>;
type Row = (Vec<u8>, Bytes);

enum Stage {
    Header,
    Space {
        space: Space,
        rows: Rows,
        /// Read, but did not fit the frame before.
        next: Option<Row>,
    },
    Piece {
        space: Space,
        rows: Rows,
        key: Vec<u8>,
        rest: Bytes,
    },
    Trailer,
    Done,
}

impl ImageReader {
    /// An image of `view`.
    pub fn new(view: Arc<StateView>) -> Self {
        Self {
            view,
            stage: Stage::Header,
            hash: Xxh3::new(),
            records: 0,
            sent_bytes: 0,
        }
    }

    /// The view that is read.
    pub fn view(&self) -> &Arc<StateView> {
        &self.view
    }

    /// Bytes of the frames so far.
    pub fn sent_bytes(&self) -> u64 {
        self.sent_bytes
    }

    /// Bytes of all frames, nearly.
    pub fn total_bytes(&self) -> u64 {
        let totals = self.view.totals();
        totals.stored_bytes() + totals.all_records() * 4 + 4096
    }

    fn advance(&mut self) -> Result<Option<Bytes>, Fatal> {
        loop {
            let stage = std::mem::replace(&mut self.stage, Stage::Done);
            match stage {
                Stage::Done => return Ok(None),
                Stage::Header => {
                    self.stage = self.enter(0)?;
                    return Ok(Some(self.header()));
                }
                Stage::Trailer => return Ok(Some(self.trailer())),
                Stage::Space { space, rows, next } => {
                    if let Some(frame) = self.run(space, rows, next)? {
                        return Ok(Some(frame));
                    }
                }
                Stage::Piece {
                    space,
                    rows,
                    key,
                    rest,
                } => return Ok(Some(self.piece(space, rows, key, rest))),
            }
        }
    }

    fn enter(&self, number: u8) -> Result<Stage, Fatal> {
        let Some(space) = Space::from_number(number) else {
            return Ok(Stage::Trailer);
        };
        let all = (Bound::<&[u8]>::Unbounded, Bound::<&[u8]>::Unbounded);
        let rows = self.view.table(space).range::<&[u8]>(all);
        Ok(Stage::Space {
            space,
            rows: rows.map_err(|e| unreadable(space, e))?,
            next: None,
        })
    }

    fn header(&mut self) -> Bytes {
        let standing = self.view.standing();
        let header = Header {
            applied: standing.applied,
            revision: standing.revision,
            membership: self
                .view
                .membership_position()
                .zip(self.view.membership().map(|bytes| bytes.to_vec())),
            totals: standing.totals,
        };
        let mut body = MAGIC.to_vec();
        body.push(FORMAT);
        body.extend(encoded(&header));
        self.seal(HEADER, &body)
    }

    fn trailer(&mut self) -> Bytes {
        let trailer = Trailer {
            records: self.records,
            hash: self.hash.digest128(),
        };
        self.seal(TRAILER, &encoded(&trailer))
    }

    /// One frame of rows of one space; absent when the space is exhausted.
    fn run(
        &mut self,
        space: Space,
        mut rows: Rows,
        mut next: Option<Row>,
    ) -> Result<Option<Bytes>, Fatal> {
        let mut body = vec![space as u8];
        loop {
            let row = match next.take() {
                Some(row) => Some(row),
                None => read_row(space, &mut rows)?,
            };
            let Some((key, value)) = row else {
                self.stage = self.enter(space as u8 + 1)?;
                break;
            };
            let size = key.len() + value.len() + 2 * size_of::<u32>() + FRAME_ROOM;
            if size as u64 > FRAME_BYTES && body.len() == 1 {
                self.records += 1;
                return Ok(Some(self.piece(space, rows, key, value)));
            }
            if (body.len() + size) as u64 > FRAME_BYTES {
                self.stage = Stage::Space {
                    space,
                    rows,
                    next: Some((key, value)),
                };
                break;
            }
            self.records += 1;
            body.put_u32(key.len() as u32);
            body.put_u32(value.len() as u32);
            body.extend_from_slice(&key);
            body.extend_from_slice(&value);
        }
        Ok((body.len() > 1).then(|| self.seal(RUN, &body)))
    }

    /// A part of a value that is larger than a frame: space, whether it is the last, key, bytes.
    fn piece(&mut self, space: Space, rows: Rows, key: Vec<u8>, mut rest: Bytes) -> Bytes {
        let room = FRAME_BYTES as usize - FRAME_ROOM - key.len();
        let part = rest.split_to(room.min(rest.len()));
        let mut body = vec![space as u8, u8::from(rest.is_empty())];
        body.put_u32(key.len() as u32);
        body.extend_from_slice(&key);
        body.extend_from_slice(&part);
        self.stage = if rest.is_empty() {
            Stage::Space {
                space,
                rows,
                next: None,
            }
        } else {
            Stage::Piece {
                space,
                rows,
                key,
                rest,
            }
        };
        self.seal(PIECE, &body)
    }

    fn seal(&mut self, kind: u8, body: &[u8]) -> Bytes {
        let mut frame = Vec::with_capacity(body.len() + 1 + HASH_BYTES);
        frame.push(kind);
        frame.extend_from_slice(body);
        let hash = xxh3_64(&frame);
        frame.put_u64(hash);
        self.hash.update(&frame);
        self.sent_bytes += frame.len() as u64;
        frame.into()
    }
}

impl Iterator for ImageReader {
    type Item = Result<Bytes, Fatal>;
    fn next(&mut self) -> Option<Self::Item> {
        self.advance().transpose()
    }
}

fn read_row(space: Space, rows: &mut Rows) -> Result<Option<Row>, Fatal> {
    match rows.next() {
        None => Ok(None),
        Some(Err(e)) => Err(unreadable(space, e)),
        Some(Ok((key, value))) => Ok(Some((
            key.value().to_vec(),
            Bytes::copy_from_slice(value.value()),
        ))),
    }
}

fn unreadable(space: Space, error: impl std::fmt::Display) -> Fatal {
    Fatal::with(
        FileName::State,
        format_args!("reading table {space} for an image"),
        error,
    )
}

fn encoded<T: Serialize>(value: &T) -> Vec<u8> {
    // A growing vector takes whatever these plain types come to.
    postcard::to_stdvec(value).expect("postcard into a vector")
}

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
                let header = postcard::from_bytes(rest)
                    .map_err(|e| refused(format!("its header is damaged: {e}")))?;
                self.header = Some(header);
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
        let trailer: Trailer = postcard::from_bytes(body)
            .map_err(|e| refused(format!("its trailer is damaged: {e}")))?;
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

fn open_frame(frame: &[u8]) -> Result<(u8, &[u8]), ImageError> {
    if frame.len() as u64 > FRAME_BYTES {
        return Err(refused(format!(
            "a frame is larger than {FRAME_BYTES} bytes"
        )));
    }
    let Some((content, hash)) = frame.split_last_chunk::<HASH_BYTES>() else {
        return Err(refused("a frame is cut short"));
    };
    if xxh3_64(content) != u64::from_be_bytes(*hash) {
        return Err(refused("a frame's checksum does not match"));
    }
    match content.split_first() {
        Some((kind, body)) => Ok((*kind, body)),
        None => Err(refused("a frame is cut short")),
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
