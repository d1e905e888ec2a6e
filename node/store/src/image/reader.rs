//! The sending side: frames of a view, in order.

use std::{ops::Bound, sync::Arc};

use bytes::{BufMut, Bytes};
use flower_api::limits::FRAME_BYTES;
use flower_engine::Space;
use redb::Range;
use serde::Serialize;
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use super::{FORMAT, HASH_BYTES, HEADER, Header, MAGIC, PIECE, RUN, TRAILER, Trailer};
use crate::{disk::FileName, error::Fatal, view::StateView};

/// Room for frame kind, space, lengths and hash.
const FRAME_ROOM: usize = 64;

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
