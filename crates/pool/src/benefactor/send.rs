//! Puts parts of objects together, of chunks that are here and of those of others, and sends them to their store.

use std::sync::Arc;

use super::Benefactor;
use crate::bucket::Web;
use crate::chunks::{CHUNK, Get, Piece, Reply, SendPart, Sent};
use crate::security::token::Ticket;

/// Bytes of a part, at most: more than any object of those that a store takes has.
const PART_MAX: u64 = 1 << 30;

impl Benefactor {
    /// Sends a part; its bytes are those that the chunks' checksums were made of.
    pub(super) async fn send(self: &Arc<Self>, part: SendPart) -> Reply {
        if self.is_later(part.incarnation) {
            return Reply::Stale;
        }
        let bytes: u64 = part.pieces.iter().map(|piece| u64::from(piece.length)).sum();
        if bytes > PART_MAX || part.pieces.iter().any(|piece| u64::from(piece.length) > CHUNK) {
            return Reply::NotDrained("a part is longer than any part of an object".to_owned());
        }
        let web = match self.web.get() {
            Some(web) => web,
            None => match Web::new() {
                Ok(web) => self.web.get_or_init(|| web),
                Err(error) => return Reply::NotDrained(error.to_string()),
            },
        };
        let (mut all, mut chunks) = (Vec::with_capacity(usize::try_from(bytes).unwrap_or_default()), Vec::new());
        for piece in &part.pieces {
            let (first, end) = (all.len(), all.len() + piece.length as usize);
            match self.append(piece, &part, &mut all).await {
                // Of the bytes that are sent, unless the file ends within the chunk.
                Ok(Some((length, _))) if all.len() - first == length as usize => {
                    chunks.push((length, crc32c::crc32c(&all[first..])));
                }
                Ok(Some(chunk)) => chunks.push(chunk),
                Ok(None) => {}
                Err(reply) => return reply,
            }
            all.resize(end, 0);
        }
        match web.put(&part.url, all.into()).await {
            Ok(tag) => Reply::Sent(Sent { tag, chunks }),
            Err(error) => Reply::NotDrained(error.to_string()),
        }
    }

    /// Appends a piece's bytes as far as its chunk has some; the chunk's bytes and checksum.
    async fn append(
        self: &Arc<Self>,
        piece: &Piece,
        part: &SendPart,
        all: &mut Vec<u8>,
    ) -> Result<Option<(u32, u32)>, Reply> {
        let Some((source, of, chunk)) = piece.chunk else { return Ok(None) };
        let mut add = |bytes: &[u8]| all.extend_from_slice(&bytes[..bytes.len().min(piece.length as usize)]);
        if source == 0 {
            let benefactor = Arc::clone(self);
            let read = tokio::task::spawn_blocking(move || benefactor.chunk(of, chunk)).await;
            let (entry, reading) = read.map_err(|error| Reply::NotDrained(error.to_string()))??;
            add(reading.as_ref());
            return Ok(Some((entry.length, entry.crc)));
        }
        let (address, incarnation) = part.sources.get(usize::from(source) - 1).ok_or(Reply::NotHere)?;
        let get = Get { incarnation: *incarnation, of, chunk, ticket: Ticket::default() };
        match self.fetch(address, get).await {
            Ok((crc, bytes)) if crc32c::crc32c(&bytes) == crc => {
                add(&bytes);
                Ok(Some((u32::try_from(bytes.len()).unwrap_or(u32::MAX), crc)))
            }
            _ => Err(Reply::NotHere),
        }
    }
}
