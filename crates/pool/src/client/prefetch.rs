//! Brings back into the pool what the target alone has, so that it is read at the speed of memory: on whichever host.

use surgetank_pool_core::meta::operation::{Operation, Refusal};
use surgetank_pool_core::meta::{FileState, Kind};

use super::{Error, PoolClient, Reader, Writer};
use crate::planted::objects::{Bug, planted};

impl PoolClient {
    /// Reads a file's bytes from the target into the pool; `false`: it is there already, or somebody writes it. The file stays as it is, and the target
    /// hears nothing of it. Room is not made by force: what is not read elsewhere leaves the pool first, and this again when room is short.
    ///
    /// # Errors
    /// [`Error`]; the file has the bytes that it had.
    pub async fn prefetch(&self, path: &str) -> Result<bool, Error> {
        self.prefetch_until(path, std::future::pending()).await
    }

    /// The same, unless it is told to stop meanwhile: then `false`. The file has the bytes that it had; if a part of them was committed, it is
    /// published once more.
    ///
    /// # Errors
    /// [`Error`]; the file has the bytes that it had.
    pub async fn prefetch_until(&self, path: &str, stop: impl Future<Output = ()>) -> Result<bool, Error> {
        let inode = self.inner.lookup(path).await?;
        let content = self.inner.content(path, inode).await?;
        if content.node.kind != Kind::File(FileState::Evicted) || content.node.size == 0 {
            return Ok(false);
        }
        let (of, times) = (content.node.version, content.node.times);
        let mut reader = self.read_node(inode, path).await?;
        // What was read is of this version alone: upon a later one it would undo what others have written.
        let writer = self.write_node(inode, path).await?;
        let mut writer = if planted(Bug::BroughtUponOthers) { writer } else { writer.of_one_version() };
        if (reader.version(), writer.version()) != (of, of) {
            return writer.abandon().await.map(|()| false);
        }
        let session = self.inner.session;
        let filled = tokio::select! {
            filled = fill(&mut reader, &mut writer) => Some(filled),
            () = stop => None,
        };
        let Some(filled) = filled else { return writer.abandon().await.map(|()| false) };
        let brought = match filled {
            Ok(()) => self.inner.operate(path, &Operation::Prefetched { inode, session, of, times }).await.map(drop),
            Err(error) => Err(error),
        };
        let Err(error) = brought else { return Ok(true) };
        // What was committed of it is the same as what the target has.
        let abandoned = writer.abandon().await;
        match error {
            // Somebody has written it meanwhile: it is drained as any file.
            Error::Refused(_, Refusal::Version(_)) => abandoned.map(|()| false),
            error => abandoned.and(Err(error)),
        }
    }
}

/// Writes everything that is read, and commits it.
async fn fill(reader: &mut Reader, writer: &mut Writer) -> Result<(), Error> {
    let mut at = 0;
    while let Some((begins, bytes)) = reader.read_chunk(at).await? {
        writer.write_bytes_at(begins, &bytes).await?;
        at = begins + bytes.len() as u64;
    }
    writer.sync().await
}
