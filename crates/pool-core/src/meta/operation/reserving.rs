//! Reservations of room in the quotas of users.

use super::recorder::{Recorder, Stop};
use super::{Refusal, Reply};
use crate::id::{Inode, SessionId, Version};
use crate::meta::key::{Key, Prefix};
use crate::meta::store::{Compare, Lease, Stored};
use crate::meta::value::Value;
use crate::planted::{Bug, planted};
use crate::quota;

impl Recorder<'_> {
    /// A late copy of an earlier request takes nothing away.
    pub(super) fn reserve(
        &mut self,
        inode: Inode,
        (session, lease): (SessionId, Lease),
        (user, counts): (u32, u64),
        size: u64,
    ) -> Result<Reply, Stop> {
        let (node, writers) = (self.node(inode), self.under(Prefix::Writers(inode)));
        let (node, writers) = (node?, writers?);
        let key = Key::Writer(inode, session);
        let Some(Stored { value, .. }) = self.get(key.clone())? else { return Err(Refusal::NotTheWriter.into()) };
        // Another session may end without a word, and the file counts less then.
        let longest = writers.iter().max_by_key(|(_, stored)| reserved(&stored.value));
        if let Some((writer, stored)) = longest.filter(|(_, stored)| reserved(&stored.value) > 0) {
            self.compare(Compare::Created(writer.clone(), stored.created));
        }
        let counts_now = quota::of_node(node, quota::reserved(writers.iter().map(|(_, stored)| &stored.value)));
        let is_another = node.owner.1 != user && !planted(Bug::ReservedForAnother);
        if is_another || counts_now.bytes < counts && !planted(Bug::ReservedThoughDrained) {
            return Err(Refusal::Moved.into());
        }
        let former = if planted(Bug::ReservationShrinks) { 0 } else { reserved(value) };
        self.put_leased(key, Value::Reserved(session, rewrites(value), size.max(former)), lease);
        Ok(Reply::Done)
    }
}

/// Which version a writer rewrites.
pub(super) const fn rewrites(writer: &Value) -> Option<Version> {
    match writer {
        Value::Rewriter(_, version) => Some(*version),
        Value::Reserved(_, rewrites, _) => *rewrites,
        _ => None,
    }
}

/// What a writer has reserved.
pub(super) const fn reserved(writer: &Value) -> u64 {
    match writer {
        Value::Reserved(_, _, size) => *size,
        _ => 0,
    }
}
