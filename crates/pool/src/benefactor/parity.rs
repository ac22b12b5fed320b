//! Chunks that are made of the other members of their rows: to be kept here, or to be written to the target.

use std::fmt::Display;
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use surgetank_pool_core::benefactor::holdings;
use surgetank_pool_core::id::Incarnation;
use surgetank_pool_core::parity::Parity;

use super::Benefactor;
use crate::chunks::{CHUNK, DrainLost, Get, Lost, Rebuild, Reply, TableOf};
use crate::lost::{self, NotHad};
use crate::security::token::Ticket;

/// Where members are: addresses, and lives.
type Sources = [(String, Incarnation)];

impl Benefactor {
    /// Makes chunks of the rest of their rows.
    pub(super) async fn rebuild(self: &Arc<Self>, rebuild: Rebuild) -> Reply {
        if rebuild.incarnation != self.incarnation || !self.is_latest(rebuild.fence, true) {
            return Reply::Stale;
        }
        for lost in rebuild.lost {
            let (inode, entry, chunk) = (rebuild.of.0.inode, lost.entry, lost.chunk);
            if u64::from(entry.length) > CHUNK {
                return Reply::NotCopied(chunk);
            }
            let put = holdings::Put { incarnation: self.incarnation, inode, mount: rebuild.mount, entry };
            let arriving = match self.expect(&put) {
                Ok(Some(arriving)) => arriving,
                Ok(None) => continue,
                Err(refusal) => return refusal,
            };
            match self.make(rebuild.of, rebuild.parity, lost, &rebuild.sources).await {
                Ok(bytes) => arriving.stored(&bytes),
                Err(_) => return Reply::NotCopied(chunk),
            }
        }
        Reply::Done
    }

    /// Makes chunks of the rest of their rows, writes them into a file that the publisher has made, and flushes it.
    pub(super) async fn drain_lost(self: &Arc<Self>, drain: DrainLost) -> Reply {
        let refused = |why: &dyn Display| Reply::NotDrained(format!("{}: {why}", drain.file));
        let path = drain.file.clone();
        let opened = tokio::task::spawn_blocking(move || OpenOptions::new().write(true).open(path)).await;
        let file = match opened.map_err(std::io::Error::other).flatten() {
            Ok(file) => Arc::new(file),
            Err(error) => return refused(&error),
        };
        let mut drained = Vec::new();
        for lost in drain.lost {
            let (chunk, entry) = (lost.chunk, lost.entry);
            let bytes = match self.make(drain.of, drain.parity, lost, &drain.sources).await {
                Ok(bytes) => bytes,
                Err(NotHad::Ever) => return Reply::NotHere,
                Err(NotHad::Now) => return Reply::NotCopied(chunk),
            };
            let (file, at) = (Arc::clone(&file), drain.offset.saturating_add(u64::from(chunk) * CHUNK));
            match tokio::task::spawn_blocking(move || file.write_all_at(&bytes, at)).await {
                Ok(Ok(())) => drained.push((chunk, entry.length, entry.crc)),
                Ok(Err(error)) => return refused(&error),
                Err(error) => return refused(&error),
            }
        }
        match tokio::task::spawn_blocking(move || file.sync_data()).await {
            Ok(Ok(())) => Reply::Drained(drained),
            Ok(Err(error)) => refused(&error),
            Err(error) => refused(&error),
        }
    }

    /// A chunk with the bytes that were written, from members of its row.
    async fn make(
        self: &Arc<Self>,
        of: TableOf,
        parity: Parity,
        lost: Lost,
        sources: &Sources,
    ) -> Result<Vec<u8>, NotHad> {
        let fetch = |chunk, source: u16| {
            let (source, benefactor) = (sources.get(usize::from(source)).cloned(), Arc::clone(self));
            async move {
                let Some((address, incarnation)) = source else { return Err(NotHad::Ever) };
                let get = Get { incarnation, of, chunk, ticket: Ticket::default() };
                benefactor.fetch(&address, get).await.map(|(_, bytes)| bytes)
            }
        };
        lost::make((of, parity), lost, fetch).await
    }
}
