//! What wardens ask of a benefactor: to fetch copies from others, to take places over, and to drop what nobody needs.

use std::sync::PoisonError;
use std::time::Duration;

use surgetank_pool_core::benefactor::Piece;
use surgetank_pool_core::benefactor::holdings::{self, Admission, NotAdopted, own};

use super::Benefactor;
use crate::chunks::{Adopt, Copy, Fence, Get, News, Reply, Request};
use crate::lost::NotHad;
use crate::rpc::Peer;
use crate::security::token::Ticket;

/// How long a source may take for a chunk.
const ANSWER: Duration = Duration::from_secs(5);

impl Benefactor {
    /// Whether nothing later has come from a warden. A message by which something is brought (`brings`) may be passed by others of its warden;
    /// words that rest on what was there before may not.
    pub(super) fn is_latest(&self, fence: Fence, brings: bool) -> bool {
        let mut latest = self.fence.lock().unwrap_or_else(PoisonError::into_inner);
        let heeded = fence >= *latest || (brings && fence.0 == latest.0);
        *latest = fence.max(*latest);
        heeded
    }

    /// Fetches copies of chunks.
    pub(super) async fn copy(&self, copy: Copy) -> Reply {
        if copy.incarnation != self.incarnation || !self.is_latest(copy.fence, true) {
            return Reply::Stale;
        }
        for (chunk, entry, source) in copy.part {
            let put = holdings::Put { incarnation: self.incarnation, inode: copy.of.0.inode, mount: copy.mount, entry };
            let arriving = match self.expect(&put) {
                Ok(Some(arriving)) => arriving,
                Ok(None) => continue,
                Err(refusal) => return refusal,
            };
            let Some((address, incarnation)) = copy.sources.get(usize::from(source)) else {
                return Reply::NotCopied(chunk);
            };
            let get = Get { incarnation: *incarnation, of: copy.of, chunk, ticket: Ticket::default() };
            match self.fetch(address, get).await {
                Ok((_, bytes)) if bytes.len() == entry.length as usize && crc32c::crc32c(&bytes) == entry.crc => {
                    arriving.stored(&bytes);
                }
                _ => return Reply::NotCopied(chunk),
            }
        }
        Reply::Done
    }

    /// Reserves room for a chunk that is to come; `None`: it is here.
    ///
    /// # Errors
    /// What is answered if it may not come now.
    pub(super) fn expect(&self, put: &holdings::Put) -> Result<Option<Arriving<'_>>, Reply> {
        let admission = self.holdings().put_copy(put, self.free_ssd());
        match admission {
            Admission::Room(piece) => Ok(Some(Arriving { benefactor: self, instance: put.entry.instance, piece })),
            Admission::Here => Ok(None),
            Admission::Stale => Err(Reply::Stale),
            Admission::Coming | Admission::UnknownSession | Admission::Withdrawn | Admission::Full => {
                self.look_at(&self.holdings());
                Err(Reply::Full)
            }
        }
    }

    /// A chunk of another benefactor, and its checksum.
    pub(super) async fn fetch(&self, address: &str, get: Get) -> Result<(u32, bytes::Bytes), NotHad> {
        let peer = {
            let mut sources = self.sources.lock().unwrap_or_else(PoisonError::into_inner);
            match sources.get(address) {
                Some(peer) => peer.clone(),
                None => {
                    let peer = Peer::new(address, &self.credentials.access()).map_err(|_| NotHad::Now)?;
                    sources.insert(address.to_owned(), peer.clone());
                    peer
                }
            }
        };
        match peer.ask::<Self>(Request::Get(get), ANSWER).await {
            Ok(Reply::Chunk(crc, bytes)) => Ok((crc, bytes)),
            Ok(Reply::NotHere | Reply::Corrupt) => Err(NotHad::Ever),
            // A later life of its may have it on SSD.
            _ => Err(NotHad::Now),
        }
    }

    /// Takes a place over.
    pub(super) async fn adopt(&self, adopt: Adopt) -> Reply {
        if adopt.incarnation != self.incarnation || !self.is_latest(adopt.fence, true) {
            return Reply::Stale;
        }
        let chunks: Vec<_> = own(&adopt.part).map(|(_, entry)| entry.instance).collect();
        let logged = {
            let mut holdings = self.holdings();
            match holdings.adopt(adopt.of, &adopt.part, adopt.named) {
                // A record of a former table may be there still, though it was over.
                Ok(()) => self.tier.as_ref().map(|tier| (tier.sealed(adopt.of).0, true)),
                Err(NotAdopted::Missing(missing)) => return Reply::Missing(missing.0),
                Err(NotAdopted::InTheWay) => return Reply::Stale,
            }
        };
        self.logged(logged, &chunks, adopt.durable).await
    }

    /// Drops what nobody needs.
    pub(super) fn forget(&self, news: News) {
        let (fence, words) = news.words.unwrap_or_default();
        let is_latest = self.is_latest(fence, false);
        let mut holdings = self.holdings();
        news.withdrawn.into_iter().for_each(|instance| holdings.withdraw_for_good(instance));
        words.into_iter().filter(|word| is_latest || word.lasts()).for_each(|word| word.tell(&mut holdings));
        self.look_at(&holdings);
    }
}

/// A chunk that is on its way here. If its request ends before it has come, it never came, and its room is free.
pub(super) struct Arriving<'a> {
    benefactor: &'a Benefactor,
    instance: holdings::Instance,
    piece: Piece,
}

impl Arriving<'_> {
    /// It has come.
    pub(super) fn stored(self, bytes: &[u8]) {
        // SAFETY: the piece was reserved for this chunk alone, and nobody reads it before it counts as stored.
        unsafe { self.benefactor.memory.write(self.piece, bytes) };
        let mut holdings = self.benefactor.holdings();
        holdings.stored(self.instance, true);
        self.benefactor.look_at(&holdings);
        drop(holdings);
        std::mem::forget(self);
    }
}

impl Drop for Arriving<'_> {
    fn drop(&mut self) {
        self.benefactor.holdings().stored(self.instance, false);
    }
}
