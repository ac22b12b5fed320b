//! Closes a file, with what is not committed or without it.

use super::super::Error;
use super::Writer;
use super::rows::Row;

impl Writer {
    /// Commits and closes: the target is to have it.
    ///
    /// # Errors
    /// [`Error`]: what was not committed is not in the file.
    pub async fn close(mut self) -> Result<(), Error> {
        let closed = self.finish().await;
        if closed.is_err() {
            // What the session has said of itself in the store would hold for whoever opens the file until the session ends.
            let _ = self.abandon().await;
        }
        closed
    }

    /// The same; if it fails, the writer is to be abandoned. Nothing is written through it afterwards.
    ///
    /// # Errors
    /// [`Error`]: what was not committed is not in the file.
    pub async fn finish(&mut self) -> Result<(), Error> {
        self.is_well()?;
        let journal = self.inner.number().await?;
        match self.commit_and(true, Some(journal)).await? {
            true => Ok(()),
            false => {
                let mut withdrawn = std::mem::take(&mut self.withdrawn);
                withdrawn.extend(std::mem::take(&mut self.restored).into_keys());
                self.withdraw(withdrawn);
                self.inner.close(&self.path, self.inode).await
            }
        }
    }

    /// Closes a file without what is not committed: the target is to have the newest commit.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn abandon(mut self) -> Result<(), Error> {
        self.puts.shutdown().await;
        let drafts = self.groups.values().flat_map(|group| group.chunks.values());
        let drafts = drafts.chain(self.pending.iter().map(|pending| &pending.chunk));
        let drafts = drafts.filter(|chunk| chunk.draft).flat_map(|chunk| chunk.clone().writings());
        let of_rows = self.groups.values().flat_map(|group| group.rows.values()).flat_map(Row::drafts);
        let drafts = drafts.chain(of_rows);
        let others = std::mem::take(&mut self.restored).into_keys().chain(std::mem::take(&mut self.sent));
        let drafts: Vec<_> = drafts.chain(std::mem::take(&mut self.withdrawn)).chain(others).collect();
        self.withdraw(drafts);
        self.groups.clear();
        self.seal_nothing();
        self.inner.close(&self.path, self.inode).await
    }
}
